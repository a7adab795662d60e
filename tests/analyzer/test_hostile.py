"""Files that somebody made to do harm: names that act, input that grows, links that lead astray."""

from __future__ import annotations

import json
import re
import string
import time
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from analyzer import pipeline
from analyzer.cli import main
from analyzer.escaping import printable, spreadsheet
from heuristics.kernel_table import KernelTable
from parsers import registry
from tests.analyzer.kineto_files import ALL_REDUCE, GEMM, ddp_trace, write_job
from tests.parsers.made import three_steps

ATTACKS = (
    "\x1b[2J\x1b]0;owned\x07",  # clears the terminal and names its window
    "\x9b31m",  # the same beginning in one byte
    "<script>alert(1)</script>",
    "::error title=x::owned",
    "\r\n::set-output name=x::y",
    "| a | b |\n|---|---|",
    "![x](http://example.com/x.png)",
    "\u202egnp.exe",  # text that runs backwards
)


@pytest.fixture
def hostile(tmp_path: Path) -> Path:
    """A job whose every name is an attack, and whose results all have something to say about it."""
    for rank in range(2):
        document = ddp_trace(rank)
        for number, event in enumerate(document["traceEvents"]):
            attack = ATTACKS[number % len(ATTACKS)]
            if event["name"] == GEMM:
                event["name"] = f"gemm {attack}"
            elif event["name"] == ALL_REDUCE:
                event["name"] = f"nccl_unheard_of {attack}" if number % 3 else f"{ALL_REDUCE} {attack}"
            if "Process Group Description" in event["args"]:
                event["args"] |= {"Process Group Description": attack, "Process Group Name": f"{attack}{number % 4}"}
        document["PT_PROFILER_JOB_NAME"] = ATTACKS[0]
        document["host_name"] = ATTACKS[2]
        (tmp_path / f"rank{rank}.json").write_text(json.dumps(document))
    return tmp_path


def out(*words: Any) -> tuple[int, str, str]:
    result = CliRunner().invoke(main, [str(word) for word in words])
    assert result.exception is None or isinstance(result.exception, SystemExit)
    return result.exit_code, result.stdout, result.stderr


def is_inert(text: str) -> bool:
    """Whether a terminal or a log shows the text and does nothing else."""
    return all(char.isprintable() or char == "\n" for char in text)


@pytest.mark.parametrize("form", ["text", "md", "json"])
def test_names_from_a_trace_do_nothing_in_a_result(hostile: Path, form: str) -> None:
    code, said, errors = out(hostile, "--format", form, "-v")
    assert code == 0
    assert is_inert(errors)
    if form == "json":
        assert json.loads(said)["schema_version"] == 1
        assert "\x1b" not in said
    else:
        assert is_inert(said)
        assert not re.search(r"^::", said, re.MULTILINE)
    if form == "md":
        assert "<script>" not in said
        assert "![x](" not in said


@pytest.mark.parametrize("form", ["text", "md", "junit", "github", "sarif", "html"])
def test_names_from_a_trace_do_nothing_in_a_verdict(hostile: Path, tmp_path: Path, form: str) -> None:
    sound = write_job(tmp_path / "sound")
    _, said, _ = out("compare", sound, hostile, "--format", form, "--inconclusive", "warn")
    assert said
    assert is_inert(said)
    assert "<script>alert(1)</script>" not in (said if form in ("md", "junit", "html") else "")
    if form == "github":
        assert all(line.startswith(("::error title=", "::warning title=")) for line in said.splitlines())


def test_file_names_do_nothing_either(tmp_path: Path) -> None:
    folder = tmp_path / "a\n::error::b \x1b[31m"
    write_job(folder)
    code, said, errors = out(folder, "-v")
    assert (code, is_inert(said), is_inert(errors)) == (0, True, True)
    code, said, errors = out(folder / "no\nsuch \x1b[2Jfile")
    assert (code, said, len(errors.splitlines()), is_inert(errors)) == (2, "", 1, True)


def test_what_is_printable() -> None:
    assert printable("plain – µs ✓ 日本") == "plain – µs ✓ 日本"
    assert printable("".join(ATTACKS[:2])) == "�[2J�]0;owned��31m"
    assert printable("a\nb\tc\u2028d\u202ee") == "a�b�c�d�e"


@pytest.mark.parametrize("first", "=+-@\t\r\n＝")
def test_no_name_becomes_a_formula(first: str) -> None:
    assert spreadsheet(f"{first}cmd|' /C calc'!A0") == f"'{first}cmd|' /C calc'!A0"
    assert spreadsheet(f"a{first}1") == f"a{first}1"


# -- input that grows


def cpu_seconds(text: str, path: Path) -> float:
    path.write_text(text)
    start = time.process_time()
    pipeline.analyze(path)
    return time.process_time() - start


def used_groups(count: int) -> str:
    """Every call on a group of its own."""
    job = three_steps()
    found = [event for event in job.events if "Process Group Name" in event.get("args", {})]
    for number in range(count):
        event = found[number % len(found)]
        job.events.append({**event, "args": {**event["args"], "Process Group Name": str(number + 5)}})
    return job.text()


def declared_groups(count: int) -> str:
    job = three_steps()
    more = [{"pg_name": str(n + 1), "pg_desc": "x", "pg_size": 2, "ranks": [0, 1 + n % 3]} for n in range(count)]
    job.header["distributedInfo"]["pg_config"] += more
    return job.text()


def nested_operators(count: int) -> str:
    job = three_steps()
    for number in range(count):
        job.x("cpu_op", "c10d::allreduce_", 1000 + number * 1e-3, 20_000 - 2e-3 * number)
    return job.text()


def kernels_of_one_time(count: int) -> str:
    job = three_steps()
    for _ in range(count):
        job.kernel("gemm", 1000.0, 500, 7)
    return job.text()


@pytest.mark.parametrize("make", [used_groups, declared_groups, nested_operators, kernels_of_one_time])
def test_work_does_not_grow_with_the_square_of_the_input(tmp_path: Path, make: Any) -> None:
    cpu_seconds(make(10), tmp_path / "rank0.json")  # what is imported and compiled once
    small, large = (cpu_seconds(make(count), tmp_path / "rank0.json") for count in (1500, 12_000))
    assert large < 24 * small + 1  # eight times as much; its square would be sixty-four


def test_a_world_that_no_job_has_is_not_believed(tmp_path: Path) -> None:
    document = ddp_trace(0)
    document["distributedInfo"] |= {"world_size": 2**40, "rank": 2**35}
    path = tmp_path / "trace.json"
    path.write_text(json.dumps(document))
    (trace,) = registry.read(path)
    assert (trace.identity.rank, trace.identity.world_size) == (None, None)
    assert f"rank {2**35} of {2**40} is no rank of a job: it is not believed" in trace.health.notes
    assert pipeline.analyze(path).trust.ranks_missing == []


@pytest.mark.parametrize(
    "seed", ["nccl", "ncclDevKernel_", "void deep_ep::", "<", "a_", "AllReduce_Sum_", "::", "(", " "]
)
def test_regular_expressions_are_linear_on_names(seed: str) -> None:
    """Four times the name may take a little more than four times as long, never sixteen times."""

    def seconds(length: int) -> float:
        names = [(seed * length)[:length] + end for end in ("", "!", ")", ">", "_LL") for _ in range(3)]
        table = KernelTable.default()
        start = time.process_time()
        for name in names:
            table.kernel(name)
            table.operator(name)
        return time.process_time() - start

    seconds(100)
    assert seconds(40_000) < 12 * seconds(10_000) + 0.3


def test_names_of_a_megabyte(tmp_path: Path) -> None:
    job = three_steps()
    for event in job.events:
        if event["cat"] == "kernel":
            event["name"] += string.ascii_letters * 20_000
    path = tmp_path / "rank0.json"
    path.write_text(job.text())
    start = time.process_time()
    found = pipeline.analyze(path)
    assert time.process_time() - start < 20
    assert sum(row.calls_per_step for row in found.collectives) == 4
    assert len(out(path)[1]) < 20_000
