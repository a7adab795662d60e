"""Operations of a pipeline job as Parquet, the format of ByteDance's StragglerAnalysis (Lin et al., OSDI 2025).

One row per operation of one rank of each tensor-parallel group: times in seconds from the begin of the step. The files
also carry the position of each rank in the layout; it is not read, for it is what an analysis should find out.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from parsers.errors import InputError

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
