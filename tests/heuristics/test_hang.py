"""The hang report: for whom every rank waits, and which calls contradict each other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from heuristics.hang import HangReport, hang_report
from parsers import read
from parsers.errors import InputError
from parsers.tables import RankTrace
from tests.parsers.flight_dumps import as_pickle, dump, entry

Entries = Sequence[Mapping[str, Any]]
WORLD = ("0", "default_pg")
TP, DP = ("1", "mesh_tp"), ("2", "mesh_dp")


class Job:
    """Dumps of a job of four ranks: all in the world; (0, 1) and (2, 3) in tp, (0, 2) and (1, 3) in dp."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __call__(
        self, calls: Mapping[int, Entries], status: Mapping[int, Mapping[int, tuple[int, int, int]]] | None = None
    ) -> list[RankTrace]:
        traces = []
        for rank, entries in calls.items():
            groups = {
                "0": ("default_pg", range(4)),
                "1": ("mesh_tp", (0, 1) if rank < 2 else (2, 3)),
                "2": ("mesh_dp", (rank % 2, rank % 2 + 2)),
            }
            numbered = [{**e, "record_id": number} for number, e in enumerate(entries)]
            path = self.folder / f"rank{rank}"
            path.write_bytes(as_pickle(dump(numbered, groups, status=(status or {}).get(rank))))
            traces += read(path)
        return traces


@pytest.fixture
def job(tmp_path: Path) -> Job:
    return Job(tmp_path)


def _reduce(seq: int, state: str = "completed", **more: Any) -> dict[str, Any]:
    return entry("all_reduce", seq, WORLD, state=state, **more)


def _suspects(report: HangReport) -> dict[int, str]:
    return {suspect.rank: suspect.reason for suspect in report.suspects}


def test_a_rank_that_never_comes_is_the_one_to_look_at(job: Job) -> None:
    stack = [("train", "train.py", 10)]
    loader = [("next", "loader.py", 7)]
    calls = {rank: [_reduce(1), _reduce(2, "scheduled", frames=stack)] for rank in (0, 1, 3)}
    report = hang_report(job({**calls, 2: [_reduce(1, frames=loader)]}))
    assert _suspects(report) == {2: "waits in no call: its host thread did not come to the next one"}
    assert report.suspects[0].waited_for_by == (0, 1, 3)
    (divergence,) = report.divergences
    assert (divergence.seq, divergence.op, divergence.state) == (2, "all_reduce", "FULLY_MATCHED")
    assert (divergence.waiting, divergence.missing, divergence.finished) == ((0, 1, 3), (2,), ())
    assert (divergence.expected, dict(divergence.issued)) == (2, {0: 2, 1: 2, 2: 1, 3: 2})
    assert divergence.stacks == (((0, 1, 3), "train (train.py:10)"),)
    assert divergence.missing_stacks == (((2,), "next (loader.py:7)"),)
    assert not divergence.held
    assert report.verdict == "look at rank 2: waits in no call: its host thread did not come to the next one"


def test_the_chain_of_waiting_leads_to_its_end(job: Job) -> None:
    # 0 waits for 2 on dp, 2 waits for 3 on tp, 3 is in nothing; 1 waits for 0.
    ready = [entry("all_reduce", 1, TP), entry("all_reduce", 1, DP)]
    report = hang_report(
        job(
            {
                0: [*ready, entry("all_reduce", 2, DP, state="scheduled")],
                1: [*ready, entry("all_reduce", 2, TP, state="scheduled")],
                2: [*ready, entry("all_reduce", 2, TP, state="scheduled")],
                3: ready,
            }
        )
    )
    assert dict(report.waits_for) == {0: (2,), 1: (0,), 2: (3,)}
    assert list(_suspects(report)) == [3]


def test_a_gpu_that_lags_is_told_from_ranks_that_wait(job: Job) -> None:
    calls = {rank: [_reduce(1), _reduce(2, "completed"), _reduce(3, "started")] for rank in (0, 2, 3)}
    report = hang_report(job({**calls, 1: [_reduce(1), _reduce(2, "started"), _reduce(3, "scheduled")]}))
    assert list(_suspects(report)) == [1]
    assert report.suspects[0].reason == (
        "its GPU has not finished all_reduce #2 of default_pg, which rank 0 has: look at the device"
    )
    assert report.divergences[0].state == "COLLECTIVE_STATE_MISMATCH"
    assert report.divergences[0].outliers == (1,)


@pytest.mark.parametrize(
    ("wrong", "state"),
    [
        (entry("_all_gather_base", 2, WORLD, taken=[[4096]], state="started"), "COLLECTIVE_TYPE_MISMATCH"),
        (_reduce(2, "started", given=[[512]]), "SIZE_OR_SYNTAX_MISMATCH"),
        (_reduce(2, "started", dtype="BFloat16"), "COLLECTIVE_DTYPE_MISMATCH"),
    ],
)
def test_a_call_that_differs_is_named_in_flight_recorders_terms(job: Job, wrong: dict[str, Any], state: str) -> None:
    calls = {rank: [_reduce(1), _reduce(2, "started")] for rank in (0, 1, 2)}
    report = hang_report(job({**calls, 3: [_reduce(1), wrong]}))
    (divergence,) = report.divergences
    assert (divergence.seq, divergence.state, divergence.outliers) == (2, state, (3,))
    assert divergence.details[0].startswith("ranks 0, 1, 2: all_reduce 1024 -> 1024 Float")
    assert divergence.details[1].startswith("rank 3:")
    assert list(_suspects(report)) == [3]


def test_two_ranks_that_differ_are_both_named(job: Job) -> None:
    report = hang_report(
        job(
            {
                0: [entry("all_reduce", 1, TP, state="started", given=[[4]])],
                1: [entry("all_reduce", 1, TP, state="started", given=[[8]])],
            }
        )
    )
    assert report.divergences[0].outliers == ()
    assert list(_suspects(report)) == [0, 1]


@pytest.mark.parametrize(
    ("op", "given", "taken", "said"),
    [
        ("_all_gather_base", [[8]], [[24]], "_all_gather_base of 8 elements on 4 ranks gives 24, not 32"),
        ("_reduce_scatter_base", [[32]], [[9]], "_reduce_scatter_base of 32 elements on 4 ranks gives 9 each"),
    ],
)
def test_sizes_that_contradict_the_group(job: Job, op: str, given: Any, taken: Any, said: str) -> None:
    call = entry(op, 1, WORLD, given=given, taken=taken, state="started")
    report = hang_report(job({rank: [call] for rank in range(4)}))
    assert report.divergences[0].state == "SIZE_OR_SYNTAX_MISMATCH"
    assert report.divergences[0].details == (said,)


def test_what_goes_into_an_all_to_all_must_come_out(job: Job) -> None:
    def call(given: int, taken: int) -> list[dict[str, Any]]:
        return [entry("all_to_all", 1, TP, given=[[given, 8]], taken=[[taken, 8]], state="started")]

    sound = hang_report(job({0: call(3, 5), 1: call(5, 3)}))
    assert sound.divergences[0].state == "FULLY_MATCHED"
    wrong = hang_report(job({0: call(3, 5), 1: call(5, 5)}))
    assert wrong.divergences[0].state == "SIZE_OR_SYNTAX_MISMATCH"
    assert wrong.divergences[0].details == ("all_to_all: 64 elements go in on all ranks, 80 come out",)


def test_calls_in_different_order_are_a_deadlock(job: Job) -> None:
    # Ranks 0 and 1 wait on tp, 2 and 3 too; dp comes second on all but the pairs are crossed: 0 waits for 2, 2 for 0.
    first = {
        0: [entry("all_reduce", 1, TP, state="started"), entry("all_reduce", 1, DP, state="scheduled")],
        1: [entry("all_reduce", 1, DP, state="started"), entry("all_reduce", 1, TP, state="scheduled")],
        2: [entry("all_reduce", 1, DP, state="started"), entry("all_reduce", 1, TP, state="scheduled")],
        3: [entry("all_reduce", 1, TP, state="started"), entry("all_reduce", 1, DP, state="scheduled")],
    }
    report = hang_report(job(first))
    assert report.suspects == ()
    assert report.deadlock == (0, 1, 2, 3)
    assert report.verdict == "ranks 0, 1, 2, 3 wait for each other: calls in different order"


def test_everybody_in_the_same_call_points_at_the_network(job: Job) -> None:
    report = hang_report(job({rank: [_reduce(1), _reduce(2, "started")] for rank in range(4)}))
    assert report.suspects == ()
    assert report.divergences[0].held
    assert report.verdict == ("every rank is in all_reduce #2 of default_pg and their calls agree: look at the network")


def test_no_hang_is_said(job: Job) -> None:
    report = hang_report(job({rank: [_reduce(1), _reduce(2)] for rank in range(4)}))
    assert report.divergences == ()
    assert report.verdict == "no call is unfinished: the dumps show no hang"


def test_a_rank_without_a_dump_is_suspected_only_if_nobody_else_is_behind(job: Job) -> None:
    waiting = {rank: [_reduce(1), _reduce(2, "scheduled")] for rank in (0, 1, 2)}
    report = hang_report(job(waiting))
    assert _suspects(report) == {3: "left no dump: it crashed, or its dump was not given"}
    assert (report.absent, report.divergences[0].unknown) == ((3,), (3,))
    assert "(3 of 4 ranks left a dump)" in report.verdict
    other = hang_report(job({**waiting, 2: [_reduce(1)]}))
    assert list(_suspects(other)) == [2]


def test_a_send_waits_for_the_receive(job: Job) -> None:
    link = ("3", "mesh_pp")

    def call(name: str, seq: int, peer: str, **more: Any) -> dict[str, Any]:
        return entry(f"{name} {peer}", seq, link, **more)

    folder = job.folder
    traces = []
    for rank, entries in {
        0: [call("send", 1, "0->1"), call("send", 2, "0->1", state="scheduled")],
        1: [call("recv", 1, "1<-0")],
    }.items():
        path = folder / f"pp_rank{rank}"
        path.write_bytes(
            as_pickle(
                dump(entries, {"0": ("default_pg", (0, 1)), "3": ("mesh_pp", (0, 1)), str(9 + rank): ("", [rank])})
            )
        )
        traces += read(path)
    report = hang_report(traces)
    (message,) = report.messages
    assert (message.rank, message.op, message.peer, message.seq, message.matched) == (0, "send", 1, 2, False)
    assert list(_suspects(report)) == [1]


def test_the_status_says_how_far_a_rank_without_entries_came(job: Job) -> None:
    # Rank 3's ring has been emptied (a dump of active calls), but its status knows: 5 reductions, all finished.
    calls: dict[int, Entries] = {rank: [{**_reduce(6, "scheduled"), "record_id": 50}] for rank in (0, 1, 2)}
    done = dict.fromkeys(range(3), (5, 5, 5))
    report = hang_report(job({**calls, 3: []}, {3: done}))
    assert dict(report.divergences[0].issued) == {0: 6, 1: 6, 2: 6, 3: 5}
    assert list(_suspects(report)) == [3]


def test_calls_per_step_place_the_hang_in_the_run(job: Job) -> None:
    calls: dict[int, Entries] = {rank: [_reduce(24), _reduce(25, "started")] for rank in range(4)}
    report = hang_report(job(calls), {"0": 10})
    assert (report.divergences[0].step, report.divergences[0].call_in_step) == (2, 4)


def test_other_files_are_no_dumps() -> None:
    with pytest.raises(InputError, match="none of the files is a Flight Recorder dump"):
        hang_report([])


@pytest.mark.parametrize(
    ("name", "faulty", "reason"),
    [
        # fault_injection.log beside the dumps says which ranks were made to fail, and how.
        ("lock_gil_1st", [9, 14], "waits in no call"),
        ("gpu_error_1st", [12, 14], "its GPU has not finished _all_gather_base #42806"),
    ],
)
def test_injected_faults_of_a_real_job_are_found(shared: Path, name: str, faulty: list[int], reason: str) -> None:
    folder = shared / "data/formats/flight_recorder/nvrx_megatron16" / name
    assert f"Fault ranks: {faulty}" in (folder / "fault_injection.log").read_text()
    report = hang_report(trace for rank in range(16) for trace in read(folder / f"_dump_{rank}"))
    assert [suspect.rank for suspect in report.suspects] == faulty
    assert all(suspect.reason.startswith(reason) for suspect in report.suspects)
    assert report.ranks == tuple(range(16))
    assert {rank for d in report.divergences[:4] for rank in (*d.missing, *d.outliers)} == set(faulty)


def test_the_first_divergent_collective_of_a_real_group(shared: Path) -> None:
    folder = shared / "data/formats/flight_recorder/nvrx_megatron16/lock_gil_1st"
    report = hang_report(trace for rank in range(16) for trace in read(folder / f"_dump_{rank}"))
    experts = next(d for d in report.divergences if d.desc == "EXPERT_MODEL_PARALLEL_GROUP")
    assert (experts.seq, experts.op) == (45265, "all_to_all")
    assert experts.missing == (9, 14)
    assert experts.waiting == (8, 10, 11, 12, 13, 15)
    assert (experts.issued[9], experts.issued[8], experts.expected) == (45264, 45267, 45267)
