"""Calls as a logger counted them: the section of a report."""

from __future__ import annotations

from collections.abc import Sequence

from analyzer.model_sources import Logged, LoggedRow
from analyzer.reporters import format as fmt
from analyzer.reporters.blocks import Cell, Column, Facts, Section, Table, without_empty


def logged_section(logged: Sequence[Logged]) -> Section | None:
    """Operations and sizes with their counts and times, file by file; None without any."""
    if not logged:
        return None
    parts: list[Facts | Table] = []
    for one in logged:
        rank = "not known" if one.rank is None else str(one.rank)
        parts += [Facts([("file", one.path), ("rank", rank)]), _table(one.rows)] if logged[1:] else [_table(one.rows)]
    alone = logged[0].rank if len(logged) == 1 else None
    whose = "each rank" if logged[1:] else "one rank" if alone is None else f"rank {alone}"
    lead = f"as DeepSpeed's logger counts on {whose}, in the whole run; sizes and bandwidths are its own"
    return Section("Logged", lead, parts)


def _table(rows: Sequence[LoggedRow]) -> Table:
    size = fmt.byte_unit(row.size_bytes for row in rows)
    total, mean = fmt.time_unit(row.total_us for row in rows), fmt.time_unit(row.mean_us for row in rows)
    columns = [
        Column("operation"),
        Column("called by", spare=1),
        Column(f"size {size.name}", right=True),
        Column("calls", right=True),
        Column(f"total {total.name}", right=True),
        Column(f"waiting {total.name}", right=True),
        Column(f"mean {mean.name}", right=True),
        Column("algbw GB/s", right=True, spare=2),
        Column("busbw GB/s", right=True),
    ]
    lines: list[list[str | Cell]] = [
        [
            row.op,
            row.caller or fmt.DASH,
            fmt.number(row.size_bytes, size),
            fmt.DASH if row.calls is None else f"{row.calls:,}",
            fmt.number(row.total_us, total),
            fmt.number(row.wait_us, total),
            fmt.number(row.mean_us, mean),
            fmt.number(row.algbw_gbps, fmt.GB_PER_S),
            fmt.number(row.busbw_gbps, fmt.GB_PER_S),
        ]
        for row in rows
    ]
    return without_empty(Table(columns, lines), ("operation",), fmt.DASH)
