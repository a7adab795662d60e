"""A rank's trace with meaning attached: what the rest of the product works on."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from heuristics.arrays import numpy
from parsers import tables
from parsers.tables import RankTrace


class GpuRole(IntEnum):
    """What a GPU event counts as when time is divided up."""

    COMPUTE = 0
    COMM = 1  # moves payload between ranks
    COMM_SYNC = 2  # signal, barrier or count-exchange kernels of a communication library
    MEMCPY = 3  # copies and fills that stay on this GPU or go to the host
    IGNORE = 4  # annotations, waits, markers: not work


@dataclass(frozen=True)
class LabelStats:
    """How the communication of one rank was recognised."""

    comm_ns_by_source: dict[str, int] = field(default_factory=dict)  # metadata, operator, ... -> busy ns
    unclassified_ns: int = 0  # communication whose primitive is not known
    unclassified_names: tuple[tuple[str, int], ...] = ()  # (kernel name, ns), largest first
    conflicts: tuple[tuple[str, int], ...] = ()  # ("kernel says send_recv, operator says all_gather", count)
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, eq=False)
class Steps:
    """The steps of one rank.

    Attributes:
        source: ``profiler_step`` (marked in the file), ``inferred`` or ``none``.
        table: `parsers.tables.STEPS`; what `COLLECTIVES.step` refers to.
        complete: per step, whether everything that belongs to it lies in the window.
        unsure_ns: how far a boundary may lie from where it is given, as far as the record tells; 0 for marked steps.
    """

    source: str
    table: pa.Table
    complete: npt.NDArray[np.bool_]
    unsure_ns: int = 0

    @property
    def certain(self) -> bool:
        """Whether the boundaries are known to `CERTAIN` of the shortest step."""
        lengths = numpy(self.table.column("dur_ns"), 0)
        return not len(lengths) or self.unsure_ns <= CERTAIN * int(lengths.min())


CERTAIN = 0.003
"""Share of a step to which a boundary is known if it counts as certain."""

NO_STEPS = Steps("none", tables.empty(tables.STEPS), np.empty(0, dtype=np.bool_))
"""What a trace without steps has."""


@dataclass(frozen=True)
class LabelledRank:
    """One rank, labelled.

    Attributes:
        trace: the facts.
        collectives: `parsers.tables.COLLECTIVES`.
        groups: `parsers.tables.GROUPS`, declared groups first, then those only seen in calls.
        gpu_role: int8, one `GpuRole` per row of ``trace.gpu_events``.
        gpu_call: int32, row of ``collectives`` per row of ``trace.gpu_events``, -1 for none; of calls that ran as one
            launch, the first.
        steps: marked or inferred steps; `COLLECTIVES.step` is a row of its table.
    """

    trace: RankTrace
    collectives: pa.Table
    groups: pa.Table
    gpu_role: npt.NDArray[np.int8]
    gpu_call: npt.NDArray[np.int32]
    stats: LabelStats
    steps: Steps = NO_STEPS
