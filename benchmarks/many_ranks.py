"""Summaries of a job of thousands of ranks, made from a few of its ranks by moving them over the mesh.

One rank per pipeline stage is simulated as a member of the whole job (`benchmarks.synthesis`), written as a trace and
summarized like any other. The other ranks of its stage do the same on groups that lie elsewhere: a group that spans an
axis of the mesh stays where it is when a rank moves along that axis, any other moves along. Every rank has its own
number, groups, peers, device, host and clock; what it does and for how long it has from its stage.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from math import prod
from multiprocessing import get_context
from pathlib import Path
from types import MappingProxyType
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from analyzer.reading.one import Job, summarized
from analyzer.summary.columns import SPACED
from analyzer.summary.file import RANKS_PER_GROUP, write_table, write_tables
from analyzer.summary.table import views_of
from analyzer.summary.view import place_of
from benchmarks.synthesis.generate import generate
from benchmarks.synthesis.groups import Mesh
from benchmarks.synthesis.spec import Spec
from heuristics.arrays import NULL, lists, numpy
from heuristics.columns import array
from heuristics.view import GroupView, RankView
from parsers.columns import text_array

Ints = npt.NDArray[np.int64]

GPUS_PER_NODE = 8
WORST_CLOCK_NS = 200_000
"""How far the clocks of hosts are from each other: what network time keeps them to within a data centre."""

CLOCK = (
    *("collectives.ts_ns", "collectives.launch_ts_ns", "steps.begin", "steps.end"),
    *("line.compute_start", "line.memcpy_start", "turns.start", "host.passes", "view.landmark_start"),
)
"""Columns that hold times of the day; the others hold differences."""

STAGE = "pp"


@dataclass(frozen=True)
class Shape:
    """A kind of job: framework, layout with the replicas left open, and the mesh whose axes all groups follow.

    ``axes`` are fastest first; one of them has size 0 and takes what the world leaves.
    """

    framework: str
    layout: str
    replicas_per_place: int
    axes: Mapping[str, int]

    def mesh(self, ranks: int) -> Mesh:
        """The mesh of a job of so many ranks.

        Raises:
            ValueError: they do not fill it.
        """
        rest, over = divmod(ranks, prod(size for size in self.axes.values() if size))
        if over or not rest:
            raise ValueError(f"{ranks} ranks do not fill {dict(self.axes)}")
        return Mesh({axis: size or rest for axis, size in self.axes.items()})

    def spec(self, ranks: int) -> Spec:
        """The job, of which the first rank of every stage is written."""
        mesh = self.mesh(ranks)
        rest = next(mesh.axes[axis] for axis, size in self.axes.items() if not size)
        stages = mesh.axes.get(STAGE, 1)
        layout = f"{self.layout}-dp{rest * self.replicas_per_place}"
        return Spec.parse(self.framework, layout, ranks=tuple(range(0, ranks, ranks // stages)))


SHAPES: Mapping[str, Shape] = MappingProxyType(
    {
        "dense": Shape("megatron", "tp8-pp8", 1, MappingProxyType({"tp": 8, "dp": 0, STAGE: 8})),
        # Without tensor parallelism inside of experts, the 8 expert ranks are the 4 tensor ranks of 2 replicas.
        "moe": Shape("megatron", "tp4-pp4-ep8", 2, MappingProxyType({"tp": 4, "ep": 2, "dp": 0, STAGE: 4})),
        "hsdp": Shape("torchtitan", "tp8-rep4", 4, MappingProxyType({"tp": 8, "shard": 0, "replicate": 4})),
    }
)


@dataclass(frozen=True, eq=False)
class Stage:
    """The summary of one rank, from which those of all ranks of its stage follow.

    Attributes:
        mesh: of the job.
        rank: the first of the stage.
        table: its summary, one row.
    """

    mesh: Mesh
    rank: int
    table: pa.Table

    @property
    def ranks(self) -> range:
        """All ranks of the stage."""
        return range(self.rank, self.rank + self.mesh.world // self.mesh.axes.get(STAGE, 1))


def stages(shape: Shape, ranks: int) -> list[Stage]:
    """Simulate and summarize one rank per stage."""
    spec, mesh = shape.spec(ranks), shape.mesh(ranks)
    with tempfile.TemporaryDirectory() as scratch:
        folder = generate(spec, scratch)
        tables = [summarized(Job(str(folder / f"rank{rank}.json.gz"))) for rank in spec.ranks or ()]
    return [Stage(mesh, rank, table) for rank, table in zip(spec.ranks or (), tables, strict=True)]


def _follows(mesh: Mesh, group: GroupView) -> frozenset[str]:
    """The axes along which a group moves with its rank: those on which it has one place only.

    Raises:
        ValueError: it has some places of an axis, but not all.
    """
    members, stride, found = np.array(group.ranks), 1, set()
    for axis, size in mesh.axes.items():
        places = len(np.unique(members // stride % size))
        if places == 1:
            found.add(axis)
        elif places != size and axis != STAGE:
            raise ValueError(f"{group.desc} has {places} of {size} places along {axis}")
        stride *= size
    return frozenset(found - {STAGE})


def moved(stage: Stage, own: Ints) -> pa.Table:
    """Summaries of ranks that do as the rank of a stage does."""
    (here,), count = views_of(stage.table), len(own)
    along = _along(stage.mesh, own - stage.rank)
    follows = [_follows(stage.mesh, group) for group in here.groups]
    steps = [sum((along[axis] for axis in axes), np.zeros(count, np.int64)) for axes in follows]
    moves = np.stack(steps, axis=1)
    clock = _clocks(stage.mesh.world)[own // GPUS_PER_NODE]
    views = [_view(here, *own_moves) for own_moves in zip(own.tolist(), moves.tolist(), strict=True)]
    listed, spaced = (_group_of_leaf(stage.table, name) for name in ("groups.ranks", SPACED))
    first_only = np.arange(len(spaced)) % 3 == 0  # of first rank, number and distance
    added: dict[str, Ints] = {
        "groups.ranks": moves[:, listed],
        SPACED: moves[:, spaced] * first_only,
        "collectives.peer": own - stage.rank,
        "collectives.device": own % GPUS_PER_NODE,
        **dict.fromkeys(CLOCK, clock),
    }
    names = [group.name for view in views for group in view.groups[: len(stage.table.column("groups.name")[0])]]
    table = pa.concat_tables([stage.table] * count).combine_chunks()
    columns = {name: table.column(name).chunk(0) for name in table.column_names}
    columns |= {name: _with_leaves(columns[name], _plus(_leaves(columns[name]), by)) for name, by in added.items()}
    columns |= {
        "rank": array(own.astype(np.int32)),
        "head": text_array(_heads(stage.table.column("head")[0].as_py(), own, clock)),
        "view": text_array([msgspec.json.encode(place_of(view)).decode() for view in views]),
        "groups.name": _with_leaves(columns["groups.name"], text_array(names)),
    }
    return pa.Table.from_arrays(list(columns.values()), schema=table.schema)


def _along(mesh: Mesh, ranks: Ints) -> dict[str, Ints]:
    """How far each rank is along each axis, in ranks."""
    stride, found = 1, {}
    for axis, size in mesh.axes.items():
        found[axis] = ranks // stride % size * stride
        stride *= size
    return found


def _clocks(world: int) -> Ints:
    """How far ahead the clock of each host is, in ns; the same in every run."""
    hosts = -(-world // GPUS_PER_NODE)
    return np.random.default_rng(0).integers(0, WORST_CLOCK_NS, hosts)


def _view(here: RankView, own: int, moves: list[int]) -> RankView:
    """The view of a stage's rank as another rank has it; names of groups that moved are new, and equal for members."""
    by = own - here.rank
    families = tuple(f if f.peer < 0 else replace(f, peer=f.peer + by) for f in here.families)
    groups = tuple(_group(group, far) for group, far in zip(here.groups, moves, strict=True))
    return replace(here, rank=own, groups=groups, families=families)


def _group(group: GroupView, by: int) -> GroupView:
    if not by or group.ranks is None:
        return group
    ranks: Any = group.ranks
    if isinstance(ranks, range):
        ranks = range(ranks.start + by, ranks.stop + by, ranks.step)
    else:
        ranks = tuple(rank + by for rank in ranks)
    return replace(group, ranks=ranks, name=f"{group.name}+{by}")


def _heads(text: str, own: Ints, clock: Ints) -> list[str]:
    head = msgspec.json.decode(text)
    times = {name: head[name] for name in ("span", "first", "last")}
    said = []
    for rank, ahead in zip(own.tolist(), clock.tolist(), strict=True):
        head["path"] = f"rank{rank}.json.gz"
        head["identity"] |= {"rank": rank, "host": f"node{rank // GPUS_PER_NODE}"}
        head["first"], head["last"] = times["first"] + ahead, times["last"] + ahead
        head["span"] = times["span"] and [moment + ahead for moment in times["span"]]
        said.append(msgspec.json.encode(head).decode())
    return said


def _group_of_leaf(row: pa.Table, name: str) -> Ints:
    """The group that each number belongs to, in a column that holds a list per group."""
    groups = pa.table({"ranks": row.column(name).chunk(0).values})
    offsets, _ = lists(groups, "ranks")
    return np.repeat(np.arange(len(offsets) - 1), np.diff(offsets))


def _leaves(column: pa.Array) -> pa.Array:
    """The values within lists, however deep."""
    while pa.types.is_list(column.type):
        column = column.values
    return column


def _with_leaves(column: pa.Array, leaves: pa.Array) -> pa.Array:
    """The same lists of other values."""
    if not pa.types.is_list(column.type):
        return leaves
    within = _with_leaves(column.values, leaves)
    return pa.Array.from_buffers(column.type, len(column), column.buffers()[:2], children=[within])


def _plus(leaves: pa.Array, by: Ints) -> pa.Array:
    """Values of all ranks, moved by so much a rank (or a value of a rank); those below 0 and nulls mean nothing."""
    found = numpy(leaves)
    each = np.repeat(by, len(found) // len(by)) if by.ndim == 1 else by.ravel()
    kind = leaves.type.to_pandas_dtype()
    return array(np.where(found >= 0, found + each, found).astype(kind), found != NULL if leaves.null_count else None)


def blocks(found: list[Stage]) -> Iterator[tuple[Stage, Ints]]:
    """All ranks in order, as many at a time as a file compresses together."""
    for stage in found:
        for first in stage.ranks[::RANKS_PER_GROUP]:
            yield stage, np.arange(first, min(first + RANKS_PER_GROUP, stage.ranks.stop))


def make_merged(shape: Shape, ranks: int, path: Path) -> Path:
    """One file with the summaries of all ranks of a job."""
    write_tables((moved(stage, own) for stage, own in blocks(stages(shape, ranks))), path)
    return path


def make_apart(shape: Shape, ranks: int, folder: Path) -> Path:
    """A directory with a file per rank, as many jobs of a cluster leave it."""
    folder.mkdir(parents=True)
    with ProcessPoolExecutor(mp_context=get_context("spawn")) as pool:
        list(pool.map(partial(_write_each, folder=folder), *zip(*blocks(stages(shape, ranks)), strict=True)))
    return folder


def _write_each(stage: Stage, own: Ints, folder: Path) -> None:
    table = moved(stage, own)
    for place, rank in enumerate(own.tolist()):
        write_table(table.slice(place, 1), folder / f"rank{rank}.parquet")
