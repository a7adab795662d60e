"""Every captured job: the calls of each rank are exactly those that the capture counted."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import parsers
from heuristics.dtypes import normalise
from heuristics.label import label
from heuristics.labelled import LabelledRank

RAW = "__rawgloo"
_SHORT = re.compile(r"\[(\d+), (\d+)\]\.\.(\d+) \(n=(\d+)\)")


def _cases(shared: Path) -> Iterator[Path]:
    return (path.parent for path in sorted((shared / "data" / "captures").glob("*/truth.json")))


def _ranks(case: Path) -> Iterator[LabelledRank]:
    for path in sorted(case.glob("rank*.json.gz")):
        yield from (label(trace) for trace in parsers.read(path))


def _members(written: list[int] | str | None) -> tuple[int, ...]:
    """The ranks of a group; large ones are written ``[0, 8]..1016 (n=128)``."""
    if isinstance(written, str):
        first, second, last, n = map(int, _SHORT.fullmatch(written).groups())  # type: ignore[union-attr]
        ranks = tuple(range(first, last + 1, second - first))
        assert len(ranks) == n
        return ranks
    return tuple(written or ())


def _counted(rank: LabelledRank) -> Counter[tuple[Any, ...]]:
    groups = rank.groups.column("ranks").to_pylist()
    names = ("op", "group", "group_size", "in_nelems", "out_nelems", "dtype", "peer", "step")
    calls: Counter[tuple[Any, ...]] = Counter()
    for op, group, size, ins, outs, dtype, peer, step in zip(
        *rank.collectives.select(names).to_pydict().values(), strict=True
    ):
        assert step is not None
        ranks = () if group is None else tuple(groups[group] or ())
        calls[op, ranks, size, ins, outs, dtype, peer] += 1
    return calls


def _expected(rows: list[dict[str, Any]], steps: int) -> Counter[tuple[Any, ...]]:
    calls: Counter[tuple[Any, ...]] = Counter()
    for row in rows:
        key = (
            row["collective"],
            _members(row["group_ranks"]),
            row["group_size"],
            row["in_nelems"],
            row["out_nelems"],
            normalise(row["dtype"]),
            row["peer_global_rank"],
        )
        per_step = row["calls_per_step"]
        calls[key] += sum(per_step) if isinstance(per_step, list) else per_step * steps
    return calls


def test_calls_sizes_groups_and_peers_are_those_of_every_captured_job(shared: Path) -> None:
    checked = stated = 0
    for case in _cases(shared):
        truth = json.loads((case / "truth.json").read_text())["observed_per_step"]
        stated += len(truth)
        for rank in _ranks(case):
            rows = truth.get(str(rank.trace.identity.rank))
            if rows is None:
                continue
            checked += 1
            steps = rank.trace.steps.num_rows
            assert _counted(rank) == _expected(rows, steps), f"{case.name} rank {rank.trace.identity.rank}"
            assert rank.stats.unclassified_ns == 0
            assert set(rank.stats.comm_ns_by_source) <= {"metadata"}
    assert checked == stated > 200


def test_calls_without_metadata_are_those_of_the_same_job_with_metadata(shared: Path) -> None:
    """The twins were captured from the same programs: primitives, sizes, types and directions must agree."""
    names = ("primitive", "in_nelems", "out_nelems", "dtype", "direction", "step", "phase")
    twins = 0
    for case in _cases(shared):
        if not case.name.endswith(RAW):
            continue
        for bare, full in zip(_ranks(case), _ranks(case.with_name(case.name.removesuffix(RAW))), strict=True):
            twins += 1
            one, other = (
                Counter(zip(*rank.collectives.select(names).to_pydict().values(), strict=True)) for rank in (bare, full)
            )
            assert one == other, f"{case.name} rank {bare.trace.identity.rank}"
            assert set(bare.stats.comm_ns_by_source) == {"operator"}
    assert twins == 40


def test_every_call_on_gloo_has_the_interval_of_its_execution(shared: Path) -> None:
    case = shared / "data" / "captures" / "tp2pp2dp2"
    for rank in _ranks(case):
        table = rank.collectives
        assert set(table.column("library").to_pylist()) == {"gloo"}
        late = [a >= b for a, b in zip(*table.select(["ts_ns", "launch_ts_ns"]).to_pydict().values(), strict=True)]
        assert all(late)
        collective = [p != "send_recv" for p in table.column("primitive").to_pylist()]
        moved = [
            stream != tid
            for stream, tid, queued in zip(
                table.column("stream").to_pylist(), table.column("tid").to_pylist(), collective, strict=True
            )
            if queued
        ]
        assert all(moved)


def test_sent_bytes_follow_the_ledger(shared: Path) -> None:
    """Hand arithmetic: rank 0 of TP 2 x PP 2 x DP 2, per step, float32."""
    rank = next(_ranks(shared / "data" / "captures" / "tp2pp2dp2"))
    sent: Counter[str] = Counter()
    columns = rank.collectives.select(["primitive", "direction", "sent_bytes"]).to_pydict()
    for primitive, direction, bytes_ in zip(*columns.values(), strict=True):
        sent[direction or primitive] += bytes_
    steps = 3
    assert sent["all_gather"] == steps * 36 * 6144 * 4 // 2
    assert sent["reduce_scatter"] == steps * 36 * 6144 * 4 // 2
    assert sent["all_reduce"] == steps * (57856 + 24 * 64) * 4
    assert sent["send"] == steps * 4 * 3072 * 4
    assert sent["recv"] == 0


def test_uneven_exchanges_send_what_leaves_the_rank(shared: Path) -> None:
    """Rank 0 of `ep4_dp8`: each exchange sends its rows less those of its own entry of the split list."""
    rank = next(_ranks(shared / "data" / "captures" / "ep4_dp8"))
    columns = rank.collectives.select(["op", "in_nelems", "in_split", "sent_bytes"]).to_pydict()
    rows = [row for row in zip(*columns.values(), strict=True) if row[0] == "all_to_allv"]
    assert len(rows) > 10
    for _, elements, split, sent in rows:
        width = elements // sum(split)
        assert sent == (sum(split) - split[0]) * width * 4
