"""The ledger's prediction as sections of a report."""

from __future__ import annotations

from collections.abc import Sequence

from analyzer.reporters import format as fmt
from analyzer.reporters.blocks import Cell, Column, Facts, Section, Table, Tone, without_empty
from analyzer.reporters.sections import DTYPES, LINKS
from ledger.clusters import Cluster, Link
from ledger.report import Prediction, StageMemory
from ledger.rows import CommRow
from ledger.times import DimensionTime

OVERLAPS = {"yes": Tone.GOOD, "partial": Tone.DOUBT, "no": Tone.BAD}
PHASES = {"forward": "F", "backward": "B", "optimizer": "O"}


def prediction_sections(
    prediction: Prediction, cluster: Cluster | None = None, times: Sequence[DimensionTime] = ()
) -> list[Section]:
    """Everything the ledger says about one layout, and how long it takes on a cluster where one is given."""
    parts = [_model(prediction), _memory(prediction), _bubble(prediction), _communication(prediction)]
    if cluster is not None and times:
        parts.append(_times(cluster, times))
    return [part for part in parts if part is not None]


def _model(prediction: Prediction) -> Section:
    model, config = prediction.model, prediction.config
    size = f"{model.layers} layers, hidden {model.hidden:,}, {prediction.parameters:,} parameters"
    if prediction.active_parameters != prediction.parameters:
        size += f", {prediction.active_parameters:,} active"
    batch = f"{config.microbatches} microbatches of {config.micro_batch_size} x {config.seq_len:,} tokens"
    rows = [
        ("model", size),
        ("ranks", f"{config.world_size:,}, {config.gpus_per_node} to a host, rank order {config.rank_order}"),
        ("batch", f"{batch} for each of {config.dp} replicas"),
        ("types", f"parameters {config.param_dtype}, activations {config.act_dtype}, gradients {config.grad_dtype}"),
    ]
    sharing = f"ZeRO {config.zero_stage}" + (" with sequence parallelism" if config.sequence_parallel else "")
    lead = f"{model.name or 'model'} as {config}, {sharing}; {prediction.profile} profile"
    return Section("Prediction", lead, [Facts(rows)])


def _memory(prediction: Prediction) -> Section:
    held = prediction.memory
    columns = [
        Column("stage"),
        Column("layers", right=True),
        Column("parameters", right=True, spare=1),
        Column("params GB", right=True),
        Column("grads GB", right=True),
        Column("optimizer GB", right=True),
        Column("state GB", right=True),
        Column("in flight", right=True),
        Column("activations GB", right=True),
    ]
    return Section("Memory of a rank", "1 GB = 1e9 bytes", [Table(columns, [_stage(stage) for stage in held])])


def _stage(stage: StageMemory) -> list[str | Cell]:
    state = stage.state
    gb = fmt.GIGABYTES
    return [
        stage.stage,
        fmt.count(stage.layers),
        f"{stage.parameters:,}",
        fmt.number(state.params_bytes, gb),
        fmt.number(state.grads_bytes, gb),
        fmt.number(state.optim_bytes, gb),
        fmt.number(state.total_bytes, gb),
        fmt.count(stage.microbatches_in_flight),
        fmt.number(stage.activation_bytes, gb),
    ]


def _bubble(prediction: Prediction) -> Section | None:
    if prediction.config.pp == 1:
        return None
    bubble = prediction.bubble
    rows = [
        ("of the step", fmt.percent(bubble.share_of_total)),
        ("over ideal", f"{fmt.percent(bubble.relative_to_ideal)}, {bubble.formula}"),
        ("source", bubble.source),
    ]
    return Section("Bubble", f"{prediction.config.schedule}, idle time of a pipeline rank", [Facts(rows)])


def _communication(prediction: Prediction) -> Section:
    parts: list[Facts | Table] = []
    if prediction.rows:
        parts.append(_rows(prediction.rows))
        parts.append(_totals(prediction))
    if prediction.noise:
        small = sum(row.sent_bytes_per_step for row in prediction.noise)
        kinds = ", ".join(dict.fromkeys(row.part for row in prediction.noise))
        parts.append(Facts([("not listed", f"small calls, {fmt.size(small)} over all stages: {kinds}")]))
    lead = "what a rank sends per step; size is the whole array of one call" if parts else "none"
    return Section("Communication", lead, parts)


def _rows(rows: Sequence[CommRow]) -> Table:
    size, sent = fmt.byte_unit(r.payload_bytes for r in rows), fmt.byte_unit(r.sent_bytes_per_step for r in rows)
    several = len({row.stage for row in rows}) > 1
    columns = [
        Column("dim"),
        Column("what"),
        Column("primitive"),
        Column("phase", spare=2),
        Column("stage"),
        Column("n", right=True),
        Column("link"),
        Column("dtype", spare=1),
        Column("calls", right=True),
        Column(f"size {size.name}", right=True),
        Column(f"sent {sent.name}", right=True),
        Column("overlap"),
    ]
    table = Table(
        columns,
        [
            [
                row.dim,
                row.part,
                row.primitive,
                PHASES.get(row.phase, row.phase),
                row.stage if several else "",
                str(row.group_size),
                LINKS.get(row.link, row.link),
                DTYPES.get(row.dtype, row.dtype),
                ("≥" if row.bucketed else "") + fmt.count(row.calls_per_step),
                fmt.number(row.payload_bytes, size),
                fmt.number(row.sent_bytes_per_step, sent),
                Cell(row.overlap, OVERLAPS.get(row.overlap, Tone.PLAIN)),
            ]
            for row in rows
        ],
    )
    return without_empty(table, ("dim",), "")


def _totals(prediction: Prediction) -> Table:
    unit = fmt.byte_unit(total.sent_bytes for total in prediction.totals)
    several = len({total.stage for total in prediction.totals}) > 1
    rows = [
        [
            total.stage if several else "",
            total.dim,
            LINKS.get(total.link, total.link),
            fmt.number(total.sent_bytes, unit),
        ]
        for total in prediction.totals
    ]
    columns = [Column("stage"), Column("dim"), Column("link"), Column(f"in all {unit.name}", right=True)]
    return without_empty(Table(columns, rows), ("dim",), "")


def _times(cluster: Cluster, times: Sequence[DimensionTime]) -> Section:
    """Transfers on the links of a cluster."""
    unit, sent = fmt.time_unit(t.expected_us for t in times), fmt.byte_unit(t.sent_bytes for t in times)
    several = len({t.stage for t in times}) > 1
    rows: list[list[str | Cell]] = [
        [
            t.stage if several else "",
            t.dim,
            LINKS.get(t.link, t.link),
            fmt.number(t.sent_bytes, sent),
            fmt.number(t.least_us, unit),
            fmt.number(t.expected_us, unit),
            Cell(t.overlap, OVERLAPS.get(t.overlap, Tone.PLAIN)),
        ]
        for t in times
    ]
    columns = [
        Column("stage"),
        Column("dim"),
        Column("link"),
        Column(f"sent {sent.name}", right=True),
        Column(f"at least {unit.name}", right=True),
        Column(f"expected {unit.name}", right=True),
        Column("overlap"),
    ]
    facts: list[tuple[str, str]] = [
        (name, link_words(link))
        for name, link in (("inside", cluster.intra_node), ("between", cluster.inter_node))
        if any(t.link == "mixed" or LINKS.get(t.link) == ("intra" if name == "inside" else "inter") for t in times)
    ]
    lead = f"transfers of a step on {cluster.name}; what overlap says no to is exposed for at least that long"
    return Section("Time", lead, [without_empty(Table(columns, rows), ("dim",), ""), Facts(facts)])


def link_words(link: Link) -> str:
    """One kind of link in words."""
    reached = "" if link.busbw_gbps is None else f", collectives reach {link.busbw_gbps:,.1f}"
    latency = f"; {link.latency_us:g} µs and {link.hop_us:g} µs a hop" if link.latency_us or link.hop_us else ""
    return f"{link.kind} {link.gbps:,.1f} GB/s{reached}{latency}"
