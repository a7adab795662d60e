"""The bundled captures: complete, small, readable, and with exactly the traffic that was counted as the jobs ran."""

from __future__ import annotations

import json
from collections import Counter
from functools import cache
from pathlib import Path
from typing import Any

import pytest

import parsers
from heuristics.dtypes import normalise
from heuristics.label import label

SAMPLES = Path(__file__).resolve().parents[2] / "sample_traces"
CASES = sorted(path.parent.name for path in SAMPLES.glob("*/truth.json"))
WANTED = {
    "ddp4", "ddp4_raw", "fsdp2_4", "fsdp2_4_noreshard", "hsdp_2x4", "zero1_4", "tp4", "tp4_sp", "cp4_ring", "ulysses4",
    "pp2_gpipe", "pp4_1f1b", "pp4_interleaved_v2", "ep4_dp8", "tp2_pp2_dp2",
}  # fmt: skip
MAX_BYTES = 500_000
ITEMSIZE = {"float32": 4, "bfloat16": 2, "int64": 8}

each_case = pytest.mark.parametrize("case", CASES)


@cache
def truth(case: str) -> dict[str, Any]:
    return json.loads((SAMPLES / case / "truth.json").read_text(encoding="utf-8"))


def counted(case: str, rank: int) -> Counter[tuple[Any, ...]]:
    """Calls by (step, operation, group, elements in and out, type, peer) as the running job issued them."""
    facts = truth(case)
    calls: Counter[tuple[Any, ...]] = Counter()
    for row in facts["observed_per_step"][str(rank)]:
        key = (
            row["collective"],
            tuple(row["group_ranks"]),
            row["in_nelems"],
            row["out_nelems"],
            normalise(row["dtype"]),
            row["peer_global_rank"],
        )
        per_step = row["calls_per_step"]
        for step, number in enumerate(per_step if isinstance(per_step, list) else [per_step] * facts["steps"]):
            calls[(step, *key)] += number
    return +calls


@cache
def found(case: str, rank: int) -> tuple[dict[str, Any], ...]:
    """The collectives that are read out of the trace, with the ranks of their groups."""
    (trace,) = parsers.read(SAMPLES / case / f"rank{rank}.json.gz")
    labelled = label(trace)
    members = [tuple(ranks or ()) for ranks in labelled.groups.column("ranks").to_pylist()]
    columns = ["step", "op", "group", "in_nelems", "out_nelems", "dtype", "peer", "size_bytes", "sent_bytes"]
    rows = labelled.collectives.select(columns).to_pylist()
    return tuple(row | {"ranks": members[row["group"]]} for row in rows)


def ring_bytes(operation: str, ranks: int, in_bytes: int, out_bytes: int) -> tuple[int, int]:
    """Total array and bytes that one rank sends, by the textbook (bandwidth-optimal) cost of each operation."""
    if operation.startswith("allreduce"):
        return in_bytes, 2 * (ranks - 1) * in_bytes // ranks
    if "allgather" in operation:
        return out_bytes, (ranks - 1) * in_bytes
    if "reduce_scatter" in operation:
        return in_bytes, (ranks - 1) * out_bytes
    if operation == "all_to_all":
        return in_bytes, (ranks - 1) * in_bytes // ranks
    return in_bytes, in_bytes if operation == "send" else 0


def test_every_kind_of_parallelism_is_bundled() -> None:
    assert set(CASES) >= WANTED


@each_case
def test_every_rank_is_there_and_the_case_is_small(case: str) -> None:
    facts = truth(case)
    files = {path.name: path.stat().st_size for path in (SAMPLES / case).iterdir()}
    assert set(files) == {"truth.json", *(f"rank{rank}.json.gz" for rank in range(facts["world_size"]))}
    assert sum(files.values()) <= MAX_BYTES


@each_case
def test_true_degrees_multiply_to_the_world(case: str) -> None:
    facts = truth(case)
    assert facts["tp"] * facts["cp"] * facts["pp"] * facts["dp"] == facts["world_size"]
    assert facts["dp"] % facts["ep"] == 0
    assert facts["captured_ranks"] == list(range(facts["world_size"]))


@each_case
def test_files_say_who_wrote_them_and_nothing_about_the_machine(case: str) -> None:
    facts = truth(case)
    for rank in facts["captured_ranks"]:
        (trace,) = parsers.read(SAMPLES / case / f"rank{rank}.json.gz")
        assert trace.identity.rank == rank
        assert trace.identity.world_size == facts["world_size"]
        assert trace.identity.host == "node0"
        assert trace.health.complete
        assert trace.health.repaired == trace.health.quarantined == trace.health.dropped == 0
        assert trace.steps.num_rows == facts["steps"]


@each_case
def test_calls_per_step_are_those_that_the_job_issued(case: str) -> None:
    for rank in truth(case)["captured_ranks"]:
        keys = ("step", "op", "ranks", "in_nelems", "out_nelems", "dtype", "peer")
        assert Counter(tuple(row[key] for key in keys) for row in found(case, rank)) == counted(case, rank), rank


@each_case
def test_bytes_follow_from_elements_and_group_size(case: str) -> None:
    checked = 0
    for rank in truth(case)["captured_ranks"]:
        for row in found(case, rank):
            if row["op"] == "all_to_allv":  # what stays at home is in the splits, which truth does not hold
                continue
            size = ITEMSIZE[row["dtype"]]
            expected = ring_bytes(row["op"], len(row["ranks"]), size * row["in_nelems"], size * row["out_nelems"])
            assert (row["size_bytes"], row["sent_bytes"]) == expected, row
            checked += 1
    assert checked > 0


@each_case
def test_what_is_sent_to_a_rank_it_receives(case: str) -> None:
    """Point-to-point messages pair up over the ranks: as many sends from a to b as receives of b from a."""
    ranks = truth(case)["captured_ranks"]
    sends = Counter((r, row["peer"], row["step"]) for r in ranks for row in found(case, r) if row["op"] == "send")
    receives = Counter((row["peer"], r, row["step"]) for r in ranks for row in found(case, r) if row["op"] == "recv")
    assert sends == receives
    assert bool(sends) == (truth(case)["pp"] > 1 or truth(case)["cp_kind"] == "ring")
