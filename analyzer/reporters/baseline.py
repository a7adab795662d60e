"""A baseline as sections."""

from __future__ import annotations

from collections.abc import Sequence

from analyzer.gate.record import Record, Series, layout_name
from analyzer.gate.statistics import estimates
from analyzer.reporters import format as fmt
from analyzer.reporters.blocks import Cell, Column, Facts, Section, Table
from analyzer.reporters.comparison import said


def baseline_sections(path: str, record: Record) -> list[Section]:
    """What a baseline holds: where it comes from, its metrics, its history."""
    facts = record.facts
    rows: list[tuple[str, str]] = [
        ("layout", layout_name(facts.layout)),
        ("ranks", f"{fmt.ranks(facts.ranks)} of {facts.world_size if facts.world_size is not None else '?'}"),
        ("steps", fmt.ranks(record.steps) if record.steps else "none: means only"),
        ("fingerprint", record.fingerprint),
        ("written by", f"{record.tool.name} {record.tool.version}"),
    ]
    if facts.gpus:
        rows.append(("gpu", ", ".join(facts.gpus)))
    if facts.libraries:
        rows.append(("libraries", ", ".join(f"{k} {v}" for k, v in facts.libraries.items())))
    columns = [Column("metric"), Column("value", right=True), Column("over the steps", right=True, spare=1)]
    table: list[Sequence[str | Cell]] = [
        [name, said(value, "B" if "bytes" in name else ""), ""]
        for name, value in record.exact.items()
        if value is not None
    ]
    table += [[name, *_steps(series)] for name, series in record.noisy.items()]
    return [
        Section("Baseline", path, [Facts(rows)]),
        Section("Metrics", "", [Table(columns, table)]),
        Section("Accepted", "" if record.accepted else "nothing", [_history(record)] if record.accepted else []),
    ]


def _steps(series: Series) -> tuple[str, str]:
    found = estimates(series.samples, len(series.samples), lower_is_better=series.lower_is_better)
    value = found[0] if found else sum(series.samples) / len(series.samples)
    low, high = min(series.samples), max(series.samples)
    return said(value, series.unit), f"{said(low, series.unit)} to {said(high, series.unit)}"


def _history(record: Record) -> Table:
    columns = [Column(name) for name in ("when", "who", "metric", "before", "after", "reason")]
    return Table(
        columns,
        [[e.when, e.who, e.metric, said(e.before, ""), said(e.after, ""), e.reason] for e in record.accepted],
    )
