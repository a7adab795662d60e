"""What the document says of calls that a logger counted by operation and size, without groups, order or steps."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from analyzer.model_sources import Logged, LoggedRow

if TYPE_CHECKING:
    import pyarrow as pa

    from analyzer.summary.model import RankSummary


def logged_documents(given: Sequence[RankSummary]) -> list[Logged]:
    """One entry per file of a logger (DeepSpeed's), in the order in which they were given."""
    found = []
    for rank in given:
        counts = _counts(rank)
        if counts is not None and counts.num_rows:
            rows = list(_rows(counts.to_pylist()))
            found.append(Logged(source=rank.format, path=rank.path, rank=rank.identity.rank, rows=rows))
    return found


def _counts(rank: RankSummary) -> pa.Table | None:
    """What a logger counted; None of any other source."""
    if rank.witness is None:
        return None
    from parsers.deepspeed_log import CommsLogger

    return rank.witness.summary if isinstance(rank.witness, CommsLogger) else None


def _rows(counted: Sequence[Mapping[str, Any]]) -> Iterator[LoggedRow]:
    for row in counted:
        yield LoggedRow(
            op=row["op"],
            caller=row["caller"],
            size_bytes=row["size_bytes"],
            size_error_bytes=row["size_error_bytes"] or 0,
            calls=row["count"],
            total_us=_us(row["total_ms"]),
            mean_us=_us(row["average_ms"]),
            wait_us=_us(row["straggler_total_ms"]),
            algbw_gbps=_rounded(row["algbw_gbps"]),
            busbw_gbps=_rounded(row["busbw_gbps"]),
        )


def _us(milliseconds: float | None) -> float | None:
    return _rounded(None if milliseconds is None else milliseconds * 1000)


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 3)
