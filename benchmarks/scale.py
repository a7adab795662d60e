"""Thousands of ranks from a few: how long summaries of a large job take to load, and its layout to infer.

`python -m benchmarks.scale --ranks 1000 16384` makes summaries of a job with TP, PP and DP by shifting the ranks of
bundled captures, writes them as one merged file, and prints CPU seconds and peak memory of each stage.
"""

from __future__ import annotations

import argparse
import resource
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from itertools import pairwise
from multiprocessing import get_context
from pathlib import Path

import pyarrow as pa

from analyzer.reading.one import Job, summarized
from analyzer.summary.columns import FOR_LAYOUT
from analyzer.summary.file import read_table, write_table
from analyzer.summary.model import RankSummary
from analyzer.summary.table import from_table, merged, to_table, views_of
from benchmarks.ingest import put
from heuristics.layout import infer_views
from heuristics.view import GroupView, compact

MARK = "<!-- benchmarks.scale -->"
SAMPLE = Path(__file__).parents[1] / "sample_traces" / "tp2_pp2_dp2"
TP, PP = 2, 2
RANKS_AT_A_TIME = 512


def samples() -> dict[tuple[int, int, int], RankSummary]:
    """The captured ranks by their place (dp, pp, tp)."""
    found = [s for path in sorted(SAMPLE.glob("rank*.json.gz")) for s in from_table(summarized(Job(str(path))))]
    return {place(rank.rank or 0, 2): rank for rank in found}


def place(rank: int, dp: int) -> tuple[int, int, int]:
    """(dp, pp, tp) of a rank: tp is fastest, then dp, then pp, as the captured job has it."""
    return rank // TP % dp, rank // (TP * dp), rank % TP


def members(group: Sequence[int], rank: int, own: int, dp: int) -> list[int]:
    """A captured group of eight ranks in a job with ``dp`` replicas, as the rank ``own`` has it.

    What varies within the captured group varies in the large one; the rest is as it is for ``own``.
    """
    places = [place(member, 2) for member in group]
    here = place(own, dp)
    axes = [{p[axis] for p in places} for axis in range(3)]
    replicas = range(dp) if len(axes[0]) == 2 else [here[0]]
    stages = sorted(axes[1]) if len(axes[1]) == 2 else [here[1]]
    shards = sorted(axes[2]) if len(axes[2]) == 2 else [here[2]]
    del rank
    return sorted(t + TP * (d + dp * p) for d in replicas for p in stages for t in shards)


def moved(sample: RankSummary, own: int, dp: int) -> RankSummary:
    """A captured rank as the rank ``own`` of the large job."""
    old = sample.rank or 0
    world = TP * PP * dp

    def peer(captured: int) -> int:
        there = place(captured, 2)
        return there[2] + TP * (place(own, dp)[0] + dp * there[1])

    def group(view: GroupView) -> GroupView:
        if view.ranks is None or old not in view.ranks:
            return replace(view, size=view.size if view.size < 8 else world)
        ranks = members(view.ranks, old, own, dp)
        return replace(view, size=len(ranks), ranks=compact(ranks))

    groups = tuple(group(view) for view in sample.view.groups)
    sizes = [view.size for view in groups]
    families = tuple(
        replace(
            f,
            peer=peer(f.peer) if f.peer >= 0 else f.peer,
            members=sizes[f.group] if f.group >= 0 and f.members else f.members,
        )
        for f in sample.view.families
    )
    rows = sample.groups.to_pylist()
    table = sample.groups
    lists = [list(v.ranks) if v.ranks is not None else None for v in groups[: len(rows)]]
    for name, values, kind in (
        ("ranks", lists, pa.list_(pa.int32())),
        ("size", [v.size for v in groups[: len(rows)]], pa.int32()),
    ):
        table = table.set_column(table.schema.get_field_index(name), name, pa.array(values, kind))
    return replace(
        sample,
        path=f"rank{own}.json.gz",
        identity=replace(sample.identity, rank=own, world_size=world),
        groups=table,
        view=replace(sample.view, rank=own, world_size=world, groups=groups, families=families),
    )


def make(ranks: int, folder: Path) -> Path:
    """One merged file of a job of so many ranks."""
    dp = ranks // (TP * PP)
    known = samples()
    parts = []
    for first in range(0, ranks, RANKS_AT_A_TIME):
        chosen = range(first, min(first + RANKS_AT_A_TIME, ranks))
        parts.append(to_table([moved(known[(place(own, dp)[0] % 2, *place(own, dp)[1:])], own, dp) for own in chosen]))
    path = folder / f"job{ranks}.parquet"
    write_table(merged(parts), path)
    return path


def measure(path: Path, ranks: int) -> str:
    """A row of the table: the stages."""
    seconds = [_cpu()]
    walls = [time.perf_counter()]
    table = read_table(str(path), FOR_LAYOUT)
    seconds.append(_cpu())
    walls.append(time.perf_counter())
    views = views_of(table)
    seconds.append(_cpu())
    walls.append(time.perf_counter())
    layout = infer_views(views).layout
    seconds.append(_cpu())
    walls.append(time.perf_counter())
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    read, decode, infer = (b - a for a, b in pairwise(seconds))
    return (
        f"| {ranks:,} | {path.stat().st_size / ranks / 1e3:.1f} | {read:.2f} | {decode:.2f} | {infer:.2f} | "
        f"{walls[-1] - walls[0]:.2f} | {peak:,.0f} | tp{layout.tp}-cp{layout.cp}-pp{layout.pp}-dp{layout.dp}, "
        f"{layout.confidence:.2f} |"
    )


def _cpu() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, nargs="+", default=[1000, 16384])
    parser.add_argument("--into", type=Path, help="a page with two marks, between which the table goes")
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()) / "commlens_scale")
    args = parser.parse_args()
    args.folder.mkdir(parents=True, exist_ok=True)
    lines = ["| ranks | kB a rank | read CPU s | decode CPU s | infer CPU s | wall s | peak MB | layout |"]
    lines.append("|---:|---:|---:|---:|---:|---:|---:|---|")
    for ranks in args.ranks:
        path = args.folder / f"job{ranks}.parquet"
        if not path.exists():
            make(ranks, args.folder)
        with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as fresh:  # whose peak memory is its own
            lines.append(fresh.submit(measure, path, ranks).result())
        print(lines[-1])
    print("\n".join(lines))
    if args.into is not None:
        put("\n".join(lines), args.into, MARK)


if __name__ == "__main__":
    main()
