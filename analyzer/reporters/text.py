"""The analysis for a terminal: trust, layout, collectives, exposure, ledger, findings, in this order."""

from __future__ import annotations

import io
import os
from collections.abc import Iterable, Sequence

from rich.console import Console, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from analyzer.fold import FoldedRow, fold
from analyzer.model import Analysis, Exposure, LayoutDoc, LedgerDoc
from analyzer.reporters import format as fmt
from analyzer.reporters.sentences import describe_layout, describe_steps

PLAIN_WIDTH = 120
"""Columns where the output is not a terminal."""

GOOD, DOUBT, BAD, QUIET, HEAD = "green", "yellow", "red", "dim", "bold"
SURE = 0.9
"""Confidence from which a layout is a promise (see the contract)."""

SHORT_DTYPE = {
    "float64": "f64",
    "float32": "f32",
    "bfloat16": "bf16",
    "float16": "f16",
    "float8_e4m3fn": "f8e4m3",
    "float8_e5m2": "f8e5m2",
    "int64": "i64",
    "int32": "i32",
    "uint8": "u8",
    "int8": "i8",
}
SHORT_LINK = {"intra_node": "intra", "inter_node": "inter", "mixed": "mixed"}
SHORT_PHASE = {"forward": "F", "backward": "B", "optimizer": "O", "unknown": "?"}
SEVERITY = {"error": (BAD, "error"), "warning": (DOUBT, "warn"), "info": ("cyan", "info")}
VERDICT = {"match": GOOD, "explained": GOOD, "missing": BAD, "extra": DOUBT, "differs": BAD}


def text(analysis: Analysis, *, terminal: bool = False, width: int | None = None) -> str:
    """The whole report.

    Args:
        analysis: what to show.
        terminal: whether it goes to a terminal: only then is it coloured (and not where ``NO_COLOR`` is set).
        width: columns; by default the terminal's, or 120.
    """
    if width is None and not terminal and "COLUMNS" not in os.environ:
        width = PLAIN_WIDTH
    out = io.StringIO()
    console = Console(
        file=out, force_terminal=terminal, width=width, no_color=None if terminal else True, highlight=False
    )
    for block in (_trust, _layout, _collectives, _exposure, _ledger, _findings):
        for part in block(analysis, console.width):
            console.print(part, soft_wrap=False, markup=False)
        console.print()
    return "\n".join(line.rstrip() for line in out.getvalue().rstrip().splitlines()) + "\n"


def _clean(words: str) -> str:
    """Names from a trace cannot move the cursor or colour the terminal."""
    return "".join(c if c.isprintable() else "�" for c in words)


def _title(name: str, rest: str = "") -> Text:
    return Text.assemble((name, HEAD), ("  " + rest if rest else ""))


def _facts(rows: Iterable[tuple[str, Text | str]]) -> RenderableType:
    """Names on the left, what is known on the right, wrapped under itself."""
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True, style=QUIET)
    table.add_column(overflow="fold")
    for name, said in rows:
        table.add_row(name, said if isinstance(said, Text) else Text(_clean(said)))
    return Padding(table, (0, 0, 0, 2))


def _table(columns: Sequence[tuple[str, str]], rows: Sequence[Sequence[str | Text]]) -> RenderableType:
    """A table without rules; a column is ``(header, "left" | "right")``."""
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style=QUIET, show_edge=False)
    for header, side in columns:
        table.add_column(Text(header), justify="right" if side == "right" else "left", no_wrap=True)
    for row in rows:
        table.add_row(*(cell if isinstance(cell, Text) else Text(_clean(cell)) for cell in row))
    return Padding(table, (0, 0, 0, 2))


def _trust(analysis: Analysis, _width: int) -> Iterable[RenderableType]:
    trust = analysis.trust
    formats = sorted({i.format for i in analysis.inputs})
    files = len(analysis.inputs)
    yield _title("Trust", f"{files} {'file' if files == 1 else 'files'}, {', '.join(formats)}")
    world = "of an unknown number" if analysis.world_size is None else f"of {analysis.world_size}"
    who = Text(f"{fmt.ranks(trust.ranks_present)} {world}" if trust.ranks_present else f"unknown, {world}")
    if trust.ranks_missing:
        who.append(f"; missing {fmt.ranks(trust.ranks_missing)}", DOUBT)
    if trust.ranks_duplicated:
        who.append(f"; twice {fmt.ranks(trust.ranks_duplicated)}", BAD)
    damage = Text(
        f"{trust.events_repaired} repaired, {trust.events_quarantined} set aside, {trust.events_clipped} clipped",
        DOUBT if trust.events_repaired or trust.events_quarantined or trust.events_clipped else "",
    )
    known = (
        f"{fmt.percent(trust.comm_time_classified)} of its time has a primitive, "
        f"{fmt.percent(trust.comm_time_with_group)} a group; "
        f"{fmt.percent(trust.comm_calls_with_bytes)} of calls have bytes"
    )
    clock = trust.clock
    clocks = (
        f"aligned on the ends of collectives, {fmt.time(clock.residual_us)} left over"
        if clock.aligned
        else "not aligned: waiting cannot be told from transfer"
    )
    yield _facts(
        [
            ("ranks", who),
            ("steps", describe_steps(trust.steps)),
            ("events", damage),
            ("communication", known),
            ("clocks", clocks),
            *(("note", Text(_clean(warning), DOUBT)) for warning in trust.warnings),
        ]
    )


def _layout(analysis: Analysis, _width: int) -> Iterable[RenderableType]:
    layout = analysis.layout
    line = Text()
    for name, dimension in layout.dimensions.items():
        degree = getattr(layout, name)
        line.append(f"{name}{'?' if degree is None else degree}  ", HEAD if degree and degree > 1 else QUIET)
        del dimension
    style = GOOD if layout.confidence >= SURE else DOUBT
    line.append(f"confidence {layout.confidence:.2f}", style)
    line.append(f", from {'metadata and behaviour' if layout.source == 'both' else layout.source}")
    yield Text.assemble(("Layout  ", HEAD), line)
    yield _facts([("", describe_layout(layout)), *_evidence(layout)])


def _evidence(layout: LayoutDoc) -> Iterable[tuple[str, Text | str]]:
    for name, dim in layout.dimensions.items():
        degree = dim.degree
        if degree == 1 and not dim.against:
            continue
        label = f"{name} {'?' if degree is None else degree}"
        for sentence in dim.evidence:
            yield label, sentence
            label = ""
        for sentence in dim.against:
            yield label, Text("but " + _clean(sentence), DOUBT)
            label = ""
    for other in layout.alternatives[:3]:
        degrees = " ".join(f"{n}{getattr(other, n) or '?'}" for n in ("tp", "cp", "pp", "dp", "ep"))
        yield "or", Text(f"{degrees} ({other.confidence:.2f}): {_clean(other.why_less)}", QUIET)


def _collectives(analysis: Analysis, width: int) -> Iterable[RenderableType]:
    yield _title("Collectives", "per step and rank; sizes are the median total array")
    rows = fold(analysis)
    if not rows:
        yield _facts([("", "none")])
        return
    yield _fitted(_columns(rows), rows, width)


_Cell = tuple[str, str, int, list[str | Text]]
"""Header, side, how soon it may be dropped (0: never), cells."""


def _columns(rows: Sequence[FoldedRow]) -> list[_Cell]:
    size, sent = fmt.byte_unit(r.size_bytes for r in rows), fmt.byte_unit(r.sent_bytes for r in rows)
    time = fmt.time_unit(r.time_us for r in rows)
    columns: list[_Cell] = [
        ("dim", "left", 0, [r.dim for r in rows]),
        ("primitive", "left", 0, [r.primitive for r in rows]),
        ("n", "right", 0, [fmt.DASH if r.group_size is None else str(r.group_size) for r in rows]),
        ("link", "left", 0, [r.link_type or SHORT_LINK.get(r.link or "", fmt.DASH) for r in rows]),
        ("dtype", "left", 3, [SHORT_DTYPE.get(r.dtype or "", r.dtype or fmt.DASH) for r in rows]),
        ("phase", "left", 1, ["".join(SHORT_PHASE[p] for p in r.phases) for r in rows]),
        ("calls", "right", 0, [fmt.count(r.calls) for r in rows]),
        (f"size {size.name}", "right", 0, [fmt.number(r.size_bytes, size) for r in rows]),
        (f"sent {sent.name}", "right", 0, [fmt.number(r.sent_bytes, sent) for r in rows]),
        (f"time {time.name}", "right", 0, [fmt.number(r.time_us, time) for r in rows]),
        (f"wait {time.name}", "right", 2, [fmt.number(r.wait_us, time) for r in rows]),
        (f"exposed {time.name}", "right", 0, [fmt.number(r.exposed_us, time) for r in rows]),
        ("busbw GB/s", "right", 0, [fmt.number(r.busbw_gbps) for r in rows]),
        ("ledger", "right", 0, [_ratio(r) for r in rows]),
    ]
    # What nobody knows needs no column; the trust block says why.
    return [c for c in columns if c[0] == "primitive" or any(str(cell) not in (fmt.DASH, "") for cell in c[3])]


def _ratio(row: FoldedRow) -> Text:
    if row.ledger is None:
        return Text("")
    ratio = row.ledger.ratio
    said = row.ledger.verdict if ratio is None else f"{ratio:.3f}"
    return Text(said, VERDICT.get(row.ledger.verdict, ""))


def _fitted(columns: Sequence[_Cell], rows: Sequence[FoldedRow], width: int) -> RenderableType:
    """The table with as many columns as fit; those that may go first go first."""
    kept = list(columns)

    def needed() -> int:
        return 2 + sum(2 + max(len(c[0]), *(len(str(cell)) for cell in c[3])) for c in kept)

    for soonness in range(1, 4):
        if needed() <= width:
            break
        kept = [c for c in kept if c[2] != soonness]
    return _table([(c[0], c[1]) for c in kept], [[c[3][i] for c in kept] for i in range(len(rows))])


def _exposure(analysis: Analysis, width: int) -> Iterable[RenderableType]:
    exposure = analysis.exposure
    if exposure is None:
        yield _title("Step", "no time to divide")
        return
    ranks = len(exposure.by_rank)
    mean = f"mean of {ranks} ranks" if ranks > 1 else "one rank"
    what = "step" if analysis.trust.steps.source != "none" else "span of the trace"
    yield _title("Step", f"{fmt.time(exposure.step_us)} a {what}, {mean}")
    yield _anatomy(exposure, width)
    if exposure.by_dimension:
        yield Text()
        yield _by_dimension(exposure)
    if ranks > 1 and exposure.exposed_us > 0:
        yield _facts([("exposed by rank", _spread(exposure))])


def _anatomy(exposure: Exposure, width: int) -> RenderableType:
    unit = fmt.time_unit([exposure.step_us])
    parts = (
        ("compute", exposure.compute_us, GOOD),
        ("exposed communication", exposure.exposed_us, BAD),
        ("memory copies", exposure.memcpy_us, "blue"),
        ("idle", exposure.idle_us, QUIET),
    )
    bar = max(10, min(50, width - 60))
    rows = [
        (
            name,
            fmt.number(us, unit),
            fmt.percent(us / exposure.step_us if exposure.step_us else None),
            Text("█" * round(bar * us / exposure.step_us) if exposure.step_us else "", style),
        )
        for name, us, style in parts
    ]
    return _table([("", "left"), (unit.name, "right"), ("of step", "right"), ("", "left")], rows)


def _by_dimension(exposure: Exposure) -> RenderableType:
    dims = exposure.by_dimension
    unit = fmt.time_unit(d.busy_us for d in dims.values())
    columns = [
        ("dim", "left"),
        (f"busy {unit.name}", "right"),
        (f"exposed {unit.name}", "right"),
        ("of step", "right"),
        (f"overlapped {unit.name}", "right"),
        (f"wait {unit.name}", "right"),
        (f"transfer {unit.name}", "right"),
    ]
    rows: list[list[str | Text]] = [
        [
            name,
            fmt.number(d.busy_us, unit),
            fmt.number(d.exposed_us, unit),
            fmt.percent(d.exposed_us / exposure.step_us if exposure.step_us else None),
            fmt.number(d.overlapped_us, unit),
            fmt.number(d.wait_us, unit),
            fmt.number(d.transfer_us, unit),
        ]
        for name, d in dims.items()
    ]
    if all(d.wait_us is None for d in dims.values()):
        columns, rows = columns[:5], [row[:5] for row in rows]
    return _table(columns, rows)


def _spread(exposure: Exposure) -> str:
    ordered = sorted(exposure.by_rank, key=lambda r: r.exposed_us)
    low, high = ordered[0], ordered[-1]

    def name(rank: int | None) -> str:
        return "an unknown rank" if rank is None else f"rank {rank}"

    return f"{fmt.time(low.exposed_us)} ({name(low.rank)}) to {fmt.time(high.exposed_us)} ({name(high.rank)})"


def _ledger(analysis: Analysis, width: int) -> Iterable[RenderableType]:
    ledger = analysis.ledger
    if ledger is None:
        yield _title("Ledger", "no comparison: the layout or the model's dimensions are not known")
        return
    model = ledger.model
    source = {"given": model.name or "given", "inferred": "dimensions read back from payloads"}.get(
        model.source, "none"
    )
    yield _title("Ledger", f"{ledger.profile} profile, model: {source}")
    facts = [(f"{n}", str(v)) for n, v in _model_facts(ledger)]
    if facts:
        yield _facts([("model", ", ".join(f"{n} {v}" for n, v in facts))])
    if ledger.rows:
        yield _ledger_rows(ledger)
    yield _facts(_ledger_notes(ledger, width))


def _model_facts(ledger: LedgerDoc) -> list[tuple[str, int]]:
    model = ledger.model
    named = (
        ("layers", model.layers),
        ("hidden", model.hidden),
        ("tokens per microbatch", model.tokens_per_microbatch),
        ("parameters per rank", model.parameters_per_rank),
    )
    return [(name, value) for name, value in named if value is not None]


def _ledger_rows(ledger: LedgerDoc) -> RenderableType:
    unit = fmt.byte_unit(v for r in ledger.rows for v in (r.predicted_bytes, r.observed_bytes))
    columns = [
        ("dim", "left"),
        ("primitive", "left"),
        ("link", "left"),
        (f"predicted {unit.name}", "right"),
        (f"observed {unit.name}", "right"),
        ("ratio", "right"),
        ("verdict", "left"),
    ]
    rows = [
        [
            r.dim,
            r.primitive,
            SHORT_LINK.get(r.link or "", fmt.DASH),
            fmt.number(r.predicted_bytes, unit),
            fmt.number(r.observed_bytes, unit),
            fmt.DASH if r.ratio is None else f"{r.ratio:.3f}",
            Text(r.verdict, VERDICT.get(r.verdict, "")),
        ]
        for r in ledger.rows
    ]
    return _table(columns, rows)


def _ledger_notes(ledger: LedgerDoc, _width: int) -> Iterable[tuple[str, Text | str]]:
    residual = ledger.residual_bytes
    yield "unexplained", Text(fmt.size(residual) + " per step and rank", DOUBT if residual else "")
    for row in ledger.rows:
        if row.explanation and row.verdict != "match":
            yield f"{row.dim} {row.primitive}", row.explanation
    for item in ledger.exposure:
        seen = fmt.percent(item.observed_exposed_fraction)
        yield f"{item.dim} overlap", f"predicted exposed: {item.predicted}; observed exposed: {seen}; {item.verdict}"
    for note in ledger.model.notes:
        yield "inferred", note


def _findings(analysis: Analysis, _width: int) -> Iterable[RenderableType]:
    found = analysis.findings
    yield _title("Findings", "" if found else "none")
    for item in found:
        style, word = SEVERITY.get(item.severity, ("", item.severity))
        cost = f"  {fmt.time(item.cost_us)} per step" if item.cost_us is not None else ""
        head = Text.assemble(
            (f"{word:<5}", style), " ", (_clean(item.title), HEAD), (cost, DOUBT), (f"  [{item.id}]", QUIET)
        )
        yield Padding(head, (0, 0, 0, 2))
        if item.detail:
            yield Padding(Text(_clean(item.detail)), (0, 0, 0, 8))
