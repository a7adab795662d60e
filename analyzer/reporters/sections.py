"""The sections of a report, in the order in which they are read: can it be trusted, what is it, what did it cost."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from analyzer.fold import FoldedRow, fold
from analyzer.model import Analysis, Exposure, LayoutDoc, LedgerDoc, LedgerRow
from analyzer.reporters import format as fmt
from analyzer.reporters.balance import experts_section
from analyzer.reporters.blocks import Cell, Column, Facts, Item, Section, Table, Tone, Words, without_empty
from analyzer.reporters.exposed import exposed_section
from analyzer.reporters.logged import logged_section
from analyzer.reporters.sentences import describe_layout, describe_steps
from analyzer.reporters.stages import stages_section
from analyzer.reporters.wires import wires_section
from analyzer.words import plural

SURE = 0.9
"""Confidence from which a layout is a promise (see the contract)."""

DTYPES = {
    "float64": "f64",
    "float32": "f32",
    "bfloat16": "bf16",
    "float16": "f16",
    "float8_e4m3fn": "f8e4m3",
    "float8_e5m2": "f8e5m2",
    "int64": "i64",
    "int32": "i32",
    "int8": "i8",
    "uint8": "u8",
}
LINKS = {"intra_node": "intra", "inter_node": "inter", "mixed": "mixed"}
PHASES = {"forward": "F", "backward": "B", "optimizer": "O", "unknown": "?"}
SEVERITIES = {"error": ("error", Tone.BAD), "warning": ("warn", Tone.DOUBT), "info": ("info", Tone.INFO)}
VERDICTS = {
    "match": Tone.GOOD,
    "explained": Tone.GOOD,
    "missing": Tone.BAD,
    "extra": Tone.DOUBT,
    "differs": Tone.BAD,
}


def sections(analysis: Analysis) -> list[Section]:
    """Everything a report says."""
    refused = next((found.detail for found in analysis.findings if found.id == "ledger.no_comparison"), None)
    parts = [
        _trust(analysis),
        _layout(analysis.layout),
        _collectives(analysis),
        logged_section(analysis.logged),
        wires_section(analysis.wires),
        _step(analysis),
        stages_section(analysis.pipeline),
        experts_section(analysis.experts),
        exposed_section(analysis.exposure),
        _ledger(analysis.ledger, refused),
        _findings(analysis),
    ]
    return [part for part in parts if part is not None]


def _trust(analysis: Analysis) -> Section:
    trust, clock = analysis.trust, analysis.trust.clock
    files, ranks = len({i.path for i in analysis.inputs}), len(analysis.inputs)
    formats = ", ".join(sorted({i.format for i in analysis.inputs}))
    touched = trust.events_repaired or trust.events_quarantined or trust.events_clipped
    events = f"{trust.events_repaired} repaired, {trust.events_quarantined} set aside, {trust.events_clipped} clipped"
    if clock.aligned:
        clocks = f"aligned on the ends of collectives, {fmt.time(clock.residual_us)} left over"
    else:
        clocks = "not aligned: waiting cannot be told from transfer"
    rows: list[tuple[str, Words]] = [
        ("ranks", _ranks(analysis)),
        ("steps", describe_steps(trust.steps)),
        ("events", Cell(events, Tone.DOUBT if touched else Tone.PLAIN)),
    ]
    if analysis.collectives:
        rows.append(
            (
                "communication",
                f"{_shares_of_time(analysis)}{fmt.percent(trust.comm_calls_with_bytes)} of calls have bytes",
            )
        )
        rows.append(("recognised by", _recognised(analysis)))
        if any(row.time_us_per_step is not None for row in analysis.collectives):
            rows.append(("clocks", clocks))
    rows += [("note", Cell(warning, Tone.DOUBT)) for warning in trust.warnings]
    holding = "" if ranks == files else f" of {plural(ranks, 'rank')}"
    return Section("Trust", f"{plural(files, 'file')}{holding}, {formats}", [Facts(rows)])


def _shares_of_time(analysis: Analysis) -> str:
    """What of the communication time is known; nothing where no call was timed."""
    trust = analysis.trust
    if trust.comm_time_classified is None and trust.comm_time_with_group is None:
        return ""
    classified, grouped = fmt.percent(trust.comm_time_classified), fmt.percent(trust.comm_time_with_group)
    return f"{classified} of its time has a primitive, {grouped} a group; "


def _ranks(analysis: Analysis) -> Words:
    trust = analysis.trust
    world = "an unknown number" if analysis.world_size is None else str(analysis.world_size)
    present = fmt.ranks(trust.ranks_present) if trust.ranks_present else "unknown"
    words: list[str | Cell] = [f"{present} of {world}"]
    if trust.ranks_missing:
        words.append(Cell(f"; missing {fmt.ranks(trust.ranks_missing)}", Tone.DOUBT))
    if trust.ranks_duplicated:
        words.append(Cell(f"; more than once {fmt.ranks(trust.ranks_duplicated)}", Tone.BAD))
    return words


def _recognised(analysis: Analysis) -> str:
    """What told which collective it is, by calls."""
    calls: dict[str, int] = {}
    for row in analysis.collectives:
        for source, n in row.classified_by.items():
            calls[source] = calls.get(source, 0) + n
    total = sum(calls.values())
    ordered = sorted(calls.items(), key=lambda item: -item[1])
    return ", ".join(f"{source.replace('_', ' ')} {fmt.percent(n / total)}" for source, n in ordered) + " of calls"


def _layout(layout: LayoutDoc) -> Section:
    lead: list[str | Cell] = []
    for name in layout.dimensions:
        degree = getattr(layout, name)
        shown = f"{name}{'?' if degree is None else degree}  "
        lead.append(Cell(shown, Tone.DOUBT if degree is None else Tone.HEAD if degree > 1 else Tone.QUIET))
    sure = layout.confidence >= SURE
    lead.append(Cell(f"confidence {layout.confidence:.2f}", Tone.GOOD if sure else Tone.DOUBT))
    lead.append(f", from {'metadata and behaviour' if layout.source == 'both' else layout.source}")
    said = describe_layout(layout)
    return Section("Layout", lead, [Facts([*([("", said)] if said else []), *_evidence(layout)])])


def _evidence(layout: LayoutDoc) -> Iterator[tuple[str, Words]]:
    every = list(layout.dimensions.values())
    if all(dim.degree is None and dim == every[0] for dim in every):
        for sentence in (*every[0].evidence, *every[0].against):
            yield "all ?", sentence
        return
    for name, dim in layout.dimensions.items():
        if dim.degree == 1 and dim.confidence >= SURE:
            continue
        label = f"{name} {'?' if dim.degree is None else dim.degree}"
        for sentence in dim.evidence:
            yield label, sentence
            label = ""
        for sentence in dim.against:
            yield label, Cell(f"but {sentence}", Tone.DOUBT)
            label = ""
    for other in layout.alternatives[:3]:
        degrees = " ".join(f"{n}{_or_unknown(getattr(other, n))}" for n in ("tp", "cp", "pp", "dp", "ep"))
        yield "or", Cell(f"{degrees} ({other.confidence:.2f}): {other.why_less}", Tone.QUIET)


def _or_unknown(degree: int | None) -> str:
    return "?" if degree is None else str(degree)


def _collectives(analysis: Analysis) -> Section:
    rows = fold(analysis)
    if not rows:
        return Section("Collectives", "none")
    size, sent = fmt.byte_unit(r.size_bytes for r in rows), fmt.byte_unit(r.sent_bytes for r in rows)
    time = fmt.time_unit(r.time_us for r in rows)
    columns = [
        Column("dim"),
        Column("primitive"),
        Column("n", right=True),
        Column("link"),
        Column("dtype", spare=3),
        Column("phase", spare=1),
        Column("calls", right=True),
        Column(f"size {size.name}", right=True),
        Column(f"sent {sent.name}", right=True),
        Column(f"time {time.name}", right=True),
        Column(f"wait {time.name}", right=True, spare=2),
        Column(f"exposed {time.name}", right=True),
        Column("busbw GB/s", right=True),
        Column("ledger", right=True),
    ]
    table = Table(columns, [_collective(row, size, sent, time) for row in rows])
    lead = "per step and rank; size is the whole array, the median of the most frequent calls"
    return Section("Collectives", lead, [without_empty(table, ("dim", "primitive"), fmt.DASH)])


def _collective(row: FoldedRow, size: fmt.Unit, sent: fmt.Unit, time: fmt.Unit) -> list[str | Cell]:
    return [
        row.dim,
        row.primitive,
        fmt.DASH if row.group_size is None else str(row.group_size),
        row.link_type or LINKS.get(row.link or "", fmt.DASH),
        DTYPES.get(row.dtype or "", row.dtype or fmt.DASH),
        "".join(PHASES[phase] for phase in row.phases),
        fmt.count(row.calls),
        fmt.number(row.size_bytes, size),
        fmt.number(row.sent_bytes, sent),
        fmt.number(row.time_us, time),
        fmt.number(row.wait_us, time),
        fmt.number(row.exposed_us, time),
        fmt.number(row.busbw_gbps, fmt.GB_PER_S),
        "" if row.ledger is None else _ratio(row.ledger),
    ]


def _ratio(row: LedgerRow) -> Cell:
    return Cell(row.verdict if row.ratio is None else f"{row.ratio:.3f}", VERDICTS.get(row.verdict, Tone.PLAIN))


def _step(analysis: Analysis) -> Section:
    exposure = analysis.exposure
    if exposure is None:
        calls_alone = any(row.exposed_us_per_step is None for row in analysis.collectives)
        reason = "not divided: calls alone are recorded" if calls_alone else "no time to divide"
        return Section("Step", reason)
    ranks = len(exposure.by_rank)
    what = " a step" if analysis.trust.steps.complete else ", the whole trace"
    lead = f"{fmt.time(exposure.step_us)}{what}; {f'mean of {ranks} ranks' if ranks > 1 else 'one rank'}"
    parts: list[Facts | Table] = [_anatomy(exposure)]
    if exposure.by_dimension:
        parts.append(_by_dimension(exposure))
    if ranks > 1 and exposure.exposed_us > 0:
        parts.append(Facts([("exposed by rank", _spread(exposure))]))
    if analysis.pipeline is not None and analysis.pipeline.bubble_fraction.predicted is not None:
        bubble = analysis.pipeline.bubble_fraction
        seen = "" if bubble.observed is None else f", {fmt.percent(bubble.observed)} observed"
        parts.append(Facts([("bubble", f"{fmt.percent(bubble.predicted)} of the step by schedule{seen}")]))
    return Section("Step", lead, parts)


def _share(us: float, exposure: Exposure) -> float | None:
    return us / exposure.step_us if exposure.step_us else None


def _anatomy(exposure: Exposure) -> Table:
    unit = fmt.time_unit([exposure.step_us])
    parts = (
        ("compute", exposure.compute_us, Tone.GOOD),
        ("exposed communication", exposure.exposed_us, Tone.BAD),
        ("memory copies", exposure.memcpy_us, Tone.INFO),
        ("idle", exposure.idle_us, Tone.QUIET),
    )
    rows: list[list[str | Cell]] = [
        [
            name,
            fmt.number(us, unit),
            fmt.percent(_share(us, exposure)),
            Cell("", tone, _share(us, exposure) or 0.0),
        ]
        for name, us, tone in parts
    ]
    return Table([Column(""), Column(unit.name, right=True), Column("of step", right=True), Column("")], rows)


def _by_dimension(exposure: Exposure) -> Table:
    dims = exposure.by_dimension
    unit = fmt.time_unit(d.busy_us for d in dims.values())
    columns = [
        Column("dim"),
        Column(f"busy {unit.name}", right=True),
        Column(f"exposed {unit.name}", right=True),
        Column("of step", right=True),
        Column("of busy", right=True),
        Column(f"overlapped {unit.name}", right=True),
        Column(f"wait {unit.name}", right=True),
        Column(f"transfer {unit.name}", right=True),
    ]
    rows = [
        [
            name,
            fmt.number(d.busy_us, unit),
            fmt.number(d.exposed_us, unit),
            fmt.percent(_share(d.exposed_us, exposure)),
            fmt.percent(d.exposed_us / d.busy_us if d.busy_us else None),
            fmt.number(d.overlapped_us, unit),
            fmt.number(d.wait_us, unit),
            fmt.number(d.transfer_us, unit),
        ]
        for name, d in dims.items()
    ]
    return without_empty(Table(columns, rows), ("dim",), fmt.DASH)


def _spread(exposure: Exposure) -> str:
    ordered = sorted(exposure.by_rank, key=lambda r: r.exposed_us)

    def said(rank: int | None, us: float) -> str:
        return f"{fmt.time(us)} ({'unknown rank' if rank is None else f'rank {rank}'})"

    return f"{said(ordered[0].rank, ordered[0].exposed_us)} to {said(ordered[-1].rank, ordered[-1].exposed_us)}"


def _ledger(ledger: LedgerDoc | None, refused: str | None) -> Section:
    if ledger is None:
        return Section("Ledger", f"no comparison: {(refused or 'no calls are recorded').rstrip('.')}")
    model = ledger.model
    source = {"given": model.name or "given", "inferred": "read back from payloads"}.get(model.source, "not known")
    parts: list[Facts | Table] = []
    known = [(name, value) for name, value in _model_facts(ledger) if value is not None]
    if known:
        parts.append(Facts([("model", ", ".join(f"{name} {value:,}" for name, value in known))]))
    if ledger.rows:
        parts.append(_ledger_rows(ledger.rows))
    parts.append(Facts(list(_ledger_notes(ledger))))
    what = "bytes a rank sends per step" if ledger.rows else "nothing could be compared"
    return Section("Ledger", f"{what}; {ledger.profile} profile; model {source}", parts)


def _model_facts(ledger: LedgerDoc) -> Iterator[tuple[str, int | None]]:
    model = ledger.model
    yield "layers", model.layers
    yield "hidden", model.hidden
    yield "tokens per microbatch", model.tokens_per_microbatch
    yield "parameters per rank", model.parameters_per_rank


def _ledger_rows(rows: Sequence[LedgerRow]) -> Table:
    unit = fmt.byte_unit(v for r in rows for v in (r.predicted_bytes, r.observed_bytes))
    columns = [
        Column("dim"),
        Column("primitive"),
        Column("link"),
        Column(f"predicted {unit.name}", right=True),
        Column(f"observed {unit.name}", right=True),
        Column("ratio", right=True),
        Column("verdict"),
    ]
    table = Table(
        columns,
        [
            [
                r.dim,
                r.primitive,
                LINKS.get(r.link or "", fmt.DASH),
                fmt.number(r.predicted_bytes, unit),
                fmt.number(r.observed_bytes, unit),
                fmt.DASH if r.ratio is None else f"{r.ratio:.3f}",
                Cell(r.verdict, VERDICTS.get(r.verdict, Tone.PLAIN)),
            ]
            for r in rows
        ],
    )
    return without_empty(table, ("dim", "primitive"), fmt.DASH)


def _ledger_notes(ledger: LedgerDoc) -> Iterator[tuple[str, Words]]:
    tone = Tone.DOUBT if ledger.residual_bytes else Tone.PLAIN
    if ledger.rows:
        yield "unexplained", Cell(f"{fmt.size(ledger.residual_bytes)} per step and rank", tone)
    reasons: dict[str, list[str]] = {}
    for row in ledger.rows:
        if row.explanation and row.verdict != "match":
            reasons.setdefault(row.explanation, []).append(f"{row.dim} {row.primitive}")
    for reason, names in reasons.items():
        yield names[0] if len(names) == 1 else names[0].split()[0], reason
    for item in ledger.exposure:
        seen, said = fmt.percent(item.observed_exposed_fraction), item.verdict.replace("_", " ")
        yield f"{item.dim} overlap", f"possible: {item.predicted}; {seen} of its time is exposed: {said}"
    for note in ledger.model.notes:
        yield "read back", note


def _sentence(said: str) -> str:
    """With a capital, unless it begins with a name such as ``all_reduce``, and a full stop."""
    first = said.split(maxsplit=1)[0] if said else ""
    begun = said[:1].upper() + said[1:] if first.isalpha() else said
    return begun if not said or said.endswith((".", "?", "!")) else f"{begun}."


def _next(action: str) -> str:
    return f"Next: {action[0].lower()}{action[1:]}" if action and action != "Nothing." else ""


def _findings(analysis: Analysis) -> Section:
    items = []
    for found in analysis.findings:
        word, tone = SEVERITIES.get(found.severity, (found.severity, Tone.PLAIN))
        head: list[str | Cell] = [Cell(f"{word:<5} ", tone), Cell(found.title, Tone.HEAD)]
        if found.cost_us:
            head.append(Cell(f"  {fmt.time(found.cost_us)} per step", Tone.DOUBT))
        head.append(Cell(f"  [{found.id}]", Tone.QUIET))
        items.append(Item(head, " ".join(part for part in (_sentence(found.detail), _next(found.action)) if part)))
    return Section("Findings", "" if items else "none", items)
