"""What is unusual and still right: each of these traces has an answer, and it is the one of the usual trace."""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from analyzer import pipeline
from analyzer.model import Analysis, to_json
from parsers.errors import InputError
from tests.analyzer.kineto_files import ddp_trace
from tests.examples import examples

Document = dict[str, Any]
Analyse = Callable[..., Analysis]

STEP = (6000.0, 4000.0, 400.0, 1200.0)
"""Of every rank: step, compute, exposed, overlapped; in µs."""


@pytest.fixture
def analyse(tmp_path: Path) -> Analyse:
    """The analysis of documents, in a directory with a file for each."""

    def run(*documents: Any, names: tuple[str, ...] = ()) -> Analysis:
        for place, document in enumerate(documents):
            name = names[place] if names else f"rank{place}.json"
            (tmp_path / name).write_text(document if isinstance(document, str) else json.dumps(document))
        return pipeline.analyze(tmp_path)

    return run


def step(analysis: Analysis) -> tuple[float, float, float, float]:
    found = analysis.exposure
    assert found is not None
    return found.step_us, found.compute_us, found.exposed_us, found.overlapped_us


def calls(analysis: Analysis) -> list[tuple[str, float, float]]:
    return [(row.primitive, row.calls_per_step, row.time_us_per_step) for row in analysis.collectives]


def kept(document: Document, keep: Callable[[Document], bool]) -> Document:
    return {**document, "traceEvents": [event for event in document["traceEvents"] if keep(event)]}


def changed(document: Document, change: Callable[[Document], Any]) -> Document:
    made = copy.deepcopy(document)
    for event in made["traceEvents"]:
        change(event)
    return made


def _on_a_grid(event: Document) -> None:
    event["ts"] -= event["ts"] % 100
    event["dur"] = event["dur"] - event["dur"] % 100 or 50


USUAL = [("all_reduce", 4.0, 1600.0)]


# -- order


@examples(15)
@given(st.randoms(use_true_random=False), st.booleans())
def test_the_order_of_events_changes_nothing(tmp_path: Path, rng: random.Random, ties: bool) -> None:
    document = ddp_trace(0)
    if ties:  # parent and child, launch and operator, kernel and kernel at one time
        document = changed(
            document, lambda e: e.update(ts=e["ts"] - e["ts"] % 100, dur=e["dur"] - e["dur"] % 100 or 50)
        )
    path = tmp_path / "rank0.json"
    path.write_text(json.dumps(document))
    usual = to_json(pipeline.analyze(path))
    rng.shuffle(document["traceEvents"])
    keys = list(document)
    rng.shuffle(keys)
    path.write_text(json.dumps({key: document[key] for key in keys}))
    assert to_json(pipeline.analyze(path)) == usual


# -- what is not there


def test_no_runtime_events(analyse: Analyse) -> None:
    found = analyse(kept(ddp_trace(0), lambda e: e["cat"] != "cuda_runtime"))
    assert (step(found), calls(found)) == (STEP, USUAL)
    assert (found.trust.steps.complete, found.trust.comm_time_with_group) == ([0, 1, 2], 1.0)


@pytest.mark.parametrize("left", [("cpu_op", "user_annotation"), ("cpu_op", "user_annotation", "cuda_runtime")])
def test_no_kernels_and_cpu_only(analyse: Analyse, left: tuple[str, ...]) -> None:
    found = analyse(kept(ddp_trace(0), lambda e: e["cat"] in left))
    assert calls(found) == [("all_reduce", 4.0, 120.0)]  # the operators, 30 µs each
    assert step(found) == (6000.0, 0.0, 120.0, 0.0)
    assert any(warning.startswith("no GPU ran: communication is the operator") for warning in found.trust.warnings)


def test_no_communication(analyse: Analyse) -> None:
    found = analyse(ddp_trace(0, comm=False))
    assert step(found) == (6000.0, 4000.0, 0.0, 0.0)
    assert "comm.none" in {f.id for f in found.findings}


def test_a_world_of_one(analyse: Analyse) -> None:
    found = analyse(ddp_trace(0, 1, comm=False))
    assert (found.world_size, found.trust.ranks_missing, found.collectives) == (1, [], [])
    assert "comm.world_of_one" in {f.id for f in found.findings}


def test_no_events_at_all_are_one_line(analyse: Analyse) -> None:
    with pytest.raises(InputError, match=r"rank0\.json: holds no events; the profiler recorded nothing"):
        analyse(kept(ddp_trace(0), lambda _: False))


# -- which ranks


def test_a_merged_file_of_two_ranks_is_two_ranks(analyse: Analyse) -> None:
    merged = ddp_trace(0)
    merged["traceEvents"] += ddp_trace(1)["traceEvents"]
    found = analyse(merged, names=("merged.json",))
    assert [item.rank for item in found.inputs] == [None, None]
    assert (step(found), calls(found)) == (STEP, USUAL)
    assert any("one file holds the events of 2 processes" in warning for warning in found.trust.warnings)


def test_missing_and_duplicate_ranks(analyse: Analyse) -> None:
    found = analyse(
        ddp_trace(0, 4),
        ddp_trace(1, 4),
        ddp_trace(3, 4),
        ddp_trace(3, 4),
        names=("a.json", "b.json", "c.json", "d.json"),
    )
    assert (found.trust.ranks_present, found.trust.ranks_missing, found.trust.ranks_duplicated) == ([0, 1, 3], [2], [3])
    assert (step(found), calls(found)) == (STEP, USUAL)


def of_job(name: str, rank: int) -> Document:
    return {**ddp_trace(rank), "PT_PROFILER_JOB_NAME": name}


@pytest.mark.parametrize(
    ("first", "second", "said"),
    [
        (ddp_trace(0), ddp_trace(1, 4), "2 different jobs (world size 2: "),
        (
            {**ddp_trace(0), "PT_PROFILER_JOB_NAME": "a"},
            {**ddp_trace(1), "PT_PROFILER_JOB_NAME": "b"},
            "2 different jobs (run a: ",
        ),
    ],
)
def test_two_jobs_in_one_directory_are_refused(analyse: Analyse, first: Document, second: Document, said: str) -> None:
    with pytest.raises(InputError) as caught:
        analyse(first, second)
    assert said in str(caught.value)


def test_json_that_is_no_trace_beside_traces(analyse: Analyse) -> None:
    found = analyse(
        ddp_trace(0), {"learning_rate": 1e-4}, "[1, 2, 3]", names=("rank0.json", "config.json", "list.json")
    )
    assert (step(found), calls(found)) == (STEP, USUAL)
    assert "2 JSON files that are no traces were left out: config.json, list.json" in found.trust.warnings


def test_ranks_with_different_steps(analyse: Analyse) -> None:
    late = kept(ddp_trace(1, steps=4), lambda e: e["ts"] >= 6950)
    found = analyse(ddp_trace(0), late)
    assert found.trust.steps.complete == [0, 1, 2, 3]
    assert (step(found), calls(found)) == (STEP, USUAL)


# -- numbers and names


def _named_stream(event: Document) -> None:
    if event["cat"] == "kernel":
        event["args"]["stream"] = event["tid"] = f"stream {event['args']['stream']}"


def _default_stream(event: Document) -> None:
    if event["cat"] == "kernel" and event["args"]["stream"] == 7:
        event["args"]["stream"] = event["tid"] = 0


def _beyond_doubles(event: Document) -> None:
    event["pid"] += 2**53
    if "correlation" in event["args"]:
        event["args"]["correlation"] += 2**53


def _from_zero(event: Document) -> None:
    event["ts"] -= 1000


def _clock_step(event: Document) -> None:
    event["ts"] += 1e7 if event["ts"] >= 6950 else 0


def _as_text(event: Document) -> None:
    event["ts"], event["dur"] = str(event["ts"]), str(event["dur"])


@pytest.mark.parametrize("change", [_named_stream, _default_stream, _beyond_doubles, _from_zero, _clock_step, _as_text])
def test_other_numbers_and_the_same_answer(analyse: Analyse, change: Callable[[Document], None]) -> None:
    document = changed(ddp_trace(0), change)
    if change is _from_zero:
        document["baseTimeNanoseconds"] = 0
    found = analyse(document)
    assert (step(found), calls(found)) == (STEP, USUAL)
    assert found.trust.events_quarantined == 0


def test_times_beyond_what_a_double_holds(analyse: Analyse) -> None:
    """Kineto before 2024 wrote microseconds since 1970, with three decimals: more digits than a double has."""
    text = json.dumps(changed(ddp_trace(0), lambda e: e.update(ts=f"@{1_700_000_000_000_000 + int(e['ts'])}.125@")))
    found = analyse(
        text.replace('"@', "").replace('@"', "").replace('"baseTimeNanoseconds": 1700000000000000000', '"a": 1')
    )
    assert (step(found), calls(found)) == (STEP, USUAL)


def test_a_runtime_call_and_the_driver_call_under_it(analyse: Analyse) -> None:
    document = ddp_trace(0)
    runtime = [event for event in document["traceEvents"] if event["cat"] == "cuda_runtime"]
    document["traceEvents"] += [{**event, "cat": "cuda_driver", "name": "cuLaunchKernelEx"} for event in runtime]
    found = analyse(document)
    assert (step(found), calls(found)) == (STEP, USUAL)


def test_kernels_replayed_from_a_cuda_graph(analyse: Analyse) -> None:
    document = kept(ddp_trace(0), lambda e: e["cat"] in ("kernel", "user_annotation"))
    for number, event in enumerate(e for e in document["traceEvents"] if e["cat"] == "kernel"):
        event["args"] |= {"correlation": 7000 + int(event["ts"] - 1000) // 6000, "graph node id": number % 8 + 1}
    launch = {"ph": "X", "cat": "cuda_runtime", "name": "cudaGraphLaunch", "pid": 100, "tid": 100, "dur": 5}
    document["traceEvents"] += [
        {**launch, "ts": 1001 + 6000 * number, "args": {"correlation": 7000 + number}} for number in range(3)
    ]
    found = analyse(document)
    assert (step(found), calls(found)) == (STEP, USUAL)
