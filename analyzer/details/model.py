"""What pictures are drawn from; plain numbers in the units that their names say."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from analyzer.intervals import Floats


@dataclass(frozen=True)
class Missing:
    """Stands for what this input does not show, with the reason."""

    reason: str


@dataclass(frozen=True, eq=False)
class Anatomy:
    """The step of each rank, divided up.

    Attributes:
        ranks: global ranks, None where not known.
        parts: ``compute``, the dimensions (transfer in the open), ``wait``, ``bubble``, ``memcpy``, ``idle``.
        us: ``(ranks, parts)`` µs per step; a row sums to the rank's step.
        waits_known: whether waiting is told from transfer; else the dimensions hold both.
    """

    ranks: tuple[int | None, ...]
    parts: tuple[str, ...]
    us: Floats
    waits_known: bool


@dataclass(frozen=True, eq=False)
class RankTraffic:
    """Who sends how much to whom.

    Attributes:
        ranks: global ranks, ascending: rows and columns.
        sent_bytes: ``(ranks, ranks)`` bytes per step from the row to the column.
        read: which of the ranks have a trace; the rows of the others are zero.
        gpus_per_node: where nodes are known to be equal.
    """

    ranks: tuple[int, ...]
    sent_bytes: Floats
    read: tuple[bool, ...]
    gpus_per_node: int | None


@dataclass(frozen=True, eq=False)
class ComputeRatios:
    """Compute time over that of the middle rank.

    Attributes:
        ranks: global ranks.
        steps: step numbers that all of them have; empty where the whole trace is compared.
        ratio: ``(ranks, steps)``; 1 is the median over all.
        grid: ``(stages, replicas)``, the largest mean over the ranks of a cell; NaN where no rank was read. None
            where neither pipeline stages nor replicas are known.
    """

    ranks: tuple[int, ...]
    steps: tuple[int, ...]
    ratio: Floats
    grid: Floats | None


@dataclass(frozen=True)
class Turn:
    """One pass of one microbatch through one stage; µs from the begin of the step."""

    start_us: float
    end_us: float
    phase: str  # forward | backward | unknown
    microbatch: int | None
    chunk: int | None


@dataclass(frozen=True, eq=False)
class Lane:
    """What one rank did in one stretch of time; µs from its begin.

    Attributes:
        rank: global rank.
        label: what to call it.
        turns: passes of a pipeline stage, else empty.
        compute: ``(n, 2)`` when compute ran.
        communication: per dimension ``(n, 2)``.
        waiting: ``(n, 2)`` parts of the communication that waited.
        extent: first and last work of the pipeline.
    """

    rank: int | None
    label: str
    turns: tuple[Turn, ...]
    compute: Floats
    communication: Mapping[str, Floats]
    waiting: Floats
    extent: tuple[float, float] | None = None


@dataclass(frozen=True)
class PipelineView:
    """One step of one pipeline.

    Attributes:
        step: its number.
        lanes: one per stage, the first stage first.
        span_us: length of the step.
        microbatches: None where the passes could not be numbered.
        aligned: whether the clocks are; else every lane begins with its own step.
    """

    step: int
    lanes: tuple[Lane, ...]
    span_us: float
    microbatches: int | None
    aligned: bool


@dataclass(frozen=True, eq=False)
class ExpertLoads:
    """How the tokens of a mixture of experts spread.

    Attributes:
        layers: numbers of the layers of each rank, in the order of its forward pass (of the dispatches, where
            microbatches are not told apart).
        ranks: global ranks, or places in the group where only one rank was read.
        load: ``(layers, ranks)`` over the mean of the rank's group; NaN where not known.
        of_group: whether ``ranks`` are places in the group.
    """

    layers: tuple[int, ...]
    ranks: tuple[int, ...]
    load: Floats
    of_group: bool


@dataclass(frozen=True, eq=False)
class Bandwidth:
    """Calls of one kind, folded by size.

    Attributes:
        dim: dimension.
        primitive: as in the document.
        group_size: ranks.
        link: intra_node | inter_node | mixed | None.
        size_bytes: whole-array bytes.
        busbw_gbps: median over the calls of that size, decimal GB/s.
        calls: how many those were.
        waits_known: whether waiting is taken out; else the bandwidth is a lower bound.
        peak_gbps: what the link can do in one direction, None where not known.
    """

    dim: str
    primitive: str
    group_size: int | None
    link: str | None
    size_bytes: Floats
    busbw_gbps: Floats
    calls: tuple[int, ...]
    waits_known: bool
    peak_gbps: float | None


@dataclass(frozen=True)
class WorstCall:
    """A collective that cost its ranks much, as two of them saw it.

    Attributes:
        title: what it is.
        lanes: the first to arrive and the last; one where nothing is known of the others.
        span_us: length of the stretch that is shown.
        cost_us: waiting of all its ranks together; without it, the call's own length.
        waits_known: which of the two it is.
    """

    title: str
    lanes: tuple[Lane, ...]
    span_us: float
    cost_us: float
    waits_known: bool


@dataclass(frozen=True)
class Mesh:
    """The layout as a picture has it.

    Attributes:
        world: number of ranks.
        dims: dimensions of degree above one with their groups, in the order of the document.
        nodes: ranks of each node; empty where nodes are not known.
        place: per rank its place along each dimension.
    """

    world: int
    dims: Mapping[str, tuple[tuple[int, ...], ...]]
    nodes: tuple[tuple[int, ...], ...]
    place: Mapping[int, Mapping[str, int]]
