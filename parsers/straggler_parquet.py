"""Operations of a pipeline job as Parquet, the format of ByteDance's StragglerAnalysis (Lin et al., OSDI 2025).

One row per operation of one rank of each tensor-parallel group: times in seconds from the begin of the step. The files
also carry the position of each rank in the layout; it is not read, for it is what an analysis should find out.

Each rank becomes a trace: computing on one stream, each kind of communication on one of its own. Who exchanges with
whom, how many bytes, and what runs inside a computing operation (tensor parallelism, attention over several ranks) is
not in the file.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from parsers import tables
from parsers.assemble import table
from parsers.errors import InputError
from parsers.parquet_footer import MAGIC, footer
from parsers.source import Source
from parsers.tables import Health, RankIdentity, RankTrace

FORMAT = "straggler_analysis"

MESSAGES = MappingProxyType({"forward-send": 1, "forward-recv": -1, "backward-send": -1, "backward-recv": 1})
"""How many stages away the other end of each message is."""

OF_STAGE, OF_ENDS, OF_ALL = "stage", "ends", "all"
COLLECTIVES = MappingProxyType(
    {
        "grads-reduce-scatter": OF_STAGE,
        "params-all-gather": OF_STAGE,
        "embedding-grads-all-reduce": OF_ENDS,
        "optimizer-clip-main-grad": OF_ALL,
    }
)
"""Who takes part: the ranks of one stage; first and last stage of a pipeline; everybody (the norm of all gradients)."""

_CALLED = MappingProxyType(
    {
        "forward-send": "send",
        "backward-send": "send",
        "forward-recv": "recv",
        "backward-recv": "recv",
        "grads-reduce-scatter": "_reduce_scatter_base",
        "params-all-gather": "_allgather_base",
        "embedding-grads-all-reduce": "allreduce",
        "optimizer-clip-main-grad": "allreduce",
    }
)
"""The operations that communicate, as torch.distributed calls them; the others compute, but for Python's collector."""

_NORM = "optimizer-clip-main-grad"
"""The norm of all gradients is one number; the payload of no other operation is known."""

_COLLECTOR = "gc"
_MARKS = MappingProxyType(
    {
        _COLLECTOR: ("annotation", "gc"),
        "backward-compute": ("autograd", "backward-compute"),
        "optimizer": ("optimizer", "optimizer"),
    }
)
"""Operations that say in which part of the step the others are: kind and name of `tables.CPU_MARKS`."""
_COMPUTE_STREAM = 7

COLUMNS = ("rank", "step", "optype", "start_ts", "duration", "seq_id")

_SECONDS = ("start_ts", "duration")
_LONGEST_S = 1e9


@dataclass(frozen=True, eq=False)
class Operations:
    """Operations, by step, rank and start.

    Attributes:
        rank: int64.
        step: int64.
        kind: int64, a position in ``kinds``.
        kinds: ``forward-compute``, ``backward-send``, ``grads-reduce-scatter``, ...
        start_ns: int64, from the begin of the step.
        dur_ns: int64.
        seq: int64, which of its kind in the step.
    """

    rank: npt.NDArray[np.int64]
    step: npt.NDArray[np.int64]
    kind: npt.NDArray[np.int64]
    kinds: tuple[str, ...]
    start_ns: npt.NDArray[np.int64]
    dur_ns: npt.NDArray[np.int64]
    seq: npt.NDArray[np.int64]


def _numbers(pa: Any) -> dict[str, Any]:
    """The columns that hold numbers, as they are read."""
    return {name: pa.float64() if name in _SECONDS else pa.int64() for name in COLUMNS if name != "optype"}


def read_operations(path: str) -> Operations:
    """Read one file.

    Raises:
        InputError: it is no Parquet file, or lacks a column.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        names = pq.read_schema(path).names
        missing = [name for name in COLUMNS if name not in names]
        if missing:
            raise InputError(f"lacks the columns {', '.join(missing)}", path=path)
        table = pq.read_table(path, columns=list(COLUMNS))
        table.validate(full=True)
        text = table.column("optype").cast(pa.string()).combine_chunks().dictionary_encode()
        columns = {name: table.column(name).cast(kind).to_numpy() for name, kind in _numbers(pa).items()}
    except (pa.ArrowException, OSError, ValueError) as error:
        what = " ".join(str(error).split())
        raise InputError(f"cannot be read as Parquet: {what}", path=path) from None
    if text.null_count or any(table.column(name).null_count for name in columns):
        raise InputError("has operations without a rank, a step, a name or a time", path=path)
    if not all(np.isfinite(columns[name]).all() and (abs(columns[name]) < _LONGEST_S).all() for name in _SECONDS):
        raise InputError("has times that are no times of a step", path=path)
    start = np.round(columns["start_ts"].astype(np.float64) * 1e9).astype(np.int64)
    order = np.lexsort((start, columns["rank"], columns["step"]))
    return Operations(
        rank=columns["rank"].astype(np.int64)[order],
        step=columns["step"].astype(np.int64)[order],
        kind=np.asarray(text.indices.to_numpy(zero_copy_only=False), dtype=np.int64)[order],
        kinds=tuple(text.dictionary.to_pylist()),
        start_ns=start[order],
        dur_ns=np.round(columns["duration"].astype(np.float64) * 1e9).astype(np.int64)[order],
        seq=columns["seq_id"].astype(np.int64)[order],
    )


def sniff(head: bytes) -> bool:
    """Whether this is a Parquet file; what it holds is said at its end (see `holds_operations`)."""
    return head.startswith(MAGIC)


def belongs(path: Path, head: bytes) -> bool:
    """Whether a Parquet file has the columns of this format."""
    return sniff(head) and holds_operations(path)


def holds_operations(path: Path) -> bool:
    """Whether a local file is Parquet with the columns of this format."""
    import pyarrow.parquet as pq

    try:
        said = footer(path)
        if not all(name.encode() in said for name in COLUMNS):
            return False
        return set(COLUMNS) <= set(pq.read_schema(path).names)
    except (OSError, pa.ArrowException):
        return False


def read(source: Source) -> list[RankTrace]:
    """Read one local file.

    Returns:
        One `RankTrace` per rank. Steps lie one after the other; ``witness`` is the `Operations` of all ranks.

    Raises:
        InputError: it cannot be read, or holds no operation.
    """
    operations = read_operations(source.name)
    if not len(operations.rank):
        raise InputError("holds no operations", path=source.name)
    begins = _begins(operations)
    job = Path(source.name).stem
    who = [RankIdentity(int(rank), "metadata", None, run_id=job) for rank in np.unique(operations.rank).tolist()]
    return [_trace(operations, begins, identity, source.name, source.file_bytes) for identity in who]


def _begins(operations: Operations) -> dict[int, tuple[int, int]]:
    """Begin and length of each step in ns: one after the other, as long as their last operation takes."""
    out, at = {}, 0
    ends = operations.start_ns + operations.dur_ns
    for step in np.unique(operations.step).tolist():
        length = int(ends[operations.step == step].max()) + 1
        out[int(step)] = (at, length)
        at += length
    return out


def _trace(
    operations: Operations, begins: dict[int, tuple[int, int]], identity: RankIdentity, name: str, file_bytes: int
) -> RankTrace:
    mine = operations.rank == identity.rank
    kind = [operations.kinds[k] for k in operations.kind[mine].tolist()]
    start = (operations.start_ns[mine] + np.array([begins[s][0] for s in operations.step[mine].tolist()])).tolist()
    length = operations.dur_ns[mine].tolist()
    gpu = [i for i, word in enumerate(kind) if word != _COLLECTOR]
    streams = {word: 20 + 4 * i for i, word in enumerate(sorted(_CALLED))}
    events: dict[str, Sequence[Any]] = {
        "ts_ns": [start[i] for i in gpu],
        "dur_ns": [length[i] for i in gpu],
        "device": [0] * len(gpu),
        "stream": [streams.get(kind[i], _COMPUTE_STREAM) for i in gpu],
        "kind": ["kernel"] * len(gpu),
        "name": [kind[i] for i in gpu],
    }
    calls = [place for place, i in enumerate(gpu) if kind[i] in _CALLED]
    records: dict[str, Sequence[Any]] = {
        "layer": ["kernel"] * len(calls),
        "name": [kind[gpu[c]] for c in calls],
        "ts_ns": [start[gpu[c]] for c in calls],
        "dur_ns": [length[gpu[c]] for c in calls],
        "device": [0] * len(calls),
        "stream": [streams[kind[gpu[c]]] for c in calls],
        "gpu_event": calls,
        "collective": [_CALLED[kind[gpu[c]]] for c in calls],
        "dtype": ["Float" if kind[gpu[c]] == _NORM else None for c in calls],
        "in_nelems": [1 if kind[gpu[c]] == _NORM else None for c in calls],
        "out_nelems": [1 if kind[gpu[c]] == _NORM else None for c in calls],
    }
    marked = [i for i, word in enumerate(kind) if word in _MARKS]
    marks: dict[str, Sequence[Any]] = {
        "ts_ns": [start[i] for i in marked],
        "dur_ns": [length[i] for i in marked],
        "tid": [1] * len(marked),
        "kind": [_MARKS[kind[i]][0] for i in marked],
        "name": [_MARKS[kind[i]][1] for i in marked],
    }
    steps: dict[str, Sequence[Any]] = {
        "number": list(begins),
        "ts_ns": [at for at, _ in begins.values()],
        "dur_ns": [length for _, length in begins.values()],
    }
    return RankTrace(
        path=name,
        format=FORMAT,
        identity=identity,
        gpu_events=table(tables.GPU_EVENTS, events),
        comm_records=table(tables.COMM_RECORDS, records),
        launches=tables.empty(tables.LAUNCHES),
        cpu_marks=table(tables.CPU_MARKS, marks),
        steps=table(tables.STEPS, steps),
        groups=tables.empty(tables.GROUPS),
        health=Health(file_bytes=file_bytes, events=len(kind)),
        witness=operations,
    )
