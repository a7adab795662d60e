"""What a person should look at: rules over what was measured, each with its reason and its cost."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from analyzer.measured import Measured
from analyzer.model import CollectiveRow, Exposure, Finding, LayoutDoc, LedgerDoc, Trust
from analyzer.words import plural
from heuristics.arrays import NULL, code_of, codes, ints
from heuristics.labelled import GpuRole
from heuristics.verdict import DIMENSIONS

NOISE = 0.01
"""Share of a step below which time is not worth a finding: steps of a healthy job vary by 1 to 2 % (Llama 3, 3.3.4)."""

HIDDEN_BY_DESIGN = ("dp",)
"""Dimensions whose communication frameworks run beside compute, where no ledger says more."""


@dataclass(frozen=True, eq=False)
class Facts:
    """What rules may look at; times are µs per step."""

    ranks: Sequence[Measured]
    trust: Trust
    world_size: int | None
    layout: LayoutDoc
    declared: dict[str, int] | None
    rows: Sequence[CollectiveRow]
    exposure: Exposure | None
    ledger: LedgerDoc | None
    ledger_refused: str | None


def findings(facts: Facts) -> list[Finding]:
    """All findings: errors first, then by cost."""
    found = [item for rule in _RULES for item in rule(facts)]
    weight = {"error": 0, "warning": 1, "info": 2}
    return sorted(found, key=lambda f: (weight[f.severity], -(f.cost_us or 0)))


def _finding(
    kind: str,
    severity: str,
    title: str,
    detail: str,
    *,
    dim: str | None = None,
    ranks: Sequence[int] = (),
    cost: float | None = None,
) -> Finding:
    return Finding(
        id=kind,
        severity=severity,
        title=title,
        detail=detail,
        dim=dim,
        ranks=list(ranks),
        cost_us=None if cost is None else round(cost, 3),
    )


def _incomplete(facts: Facts) -> Iterator[Finding]:
    trust = facts.trust
    if trust.ranks_missing:
        alone = len(facts.ranks) == 1
        yield _finding(
            "ranks.missing",
            "info" if alone else "warning",
            f"{len(trust.ranks_missing):,} of {plural(facts.world_size or 0, 'rank')} have no trace",
            "What only they could show is left out: waiting in collectives with them, and their own figures.",
            ranks=trust.ranks_missing,
        )
    if trust.ranks_duplicated:
        yield _finding(
            "ranks.duplicated",
            "warning",
            "some ranks are in more than one file",
            "Only the first file of each is used; files of another run may have stayed in the directory.",
            ranks=trust.ranks_duplicated,
        )
    for rank in facts.ranks:
        trace = rank.source.labelled.trace
        if not trace.health.complete:
            lost = "" if trace.on_gpu else " No GPU event is left: only what the CPU side says is analysed."
            yield _finding(
                "trace.cut",
                "error" if not trace.on_gpu else "warning",
                "a trace is cut off",
                f"{trace.path} ends before its time.{lost}",
                ranks=[] if rank.source.rank is None else [rank.source.rank],
            )
    if trust.steps.source == "none" and facts.rows:
        yield _finding(
            "steps.none",
            "info",
            "the traces have no steps",
            "Every per-step figure is for the whole trace. Call profiler.step() after each iteration.",
        )


def _impossible(facts: Facts) -> Iterator[Finding]:
    trust = facts.trust
    if trust.events_quarantined:
        yield _finding(
            "events.impossible",
            "warning",
            f"{plural(trust.events_quarantined, 'event')} with impossible times",
            "They were set aside: negative or absurd durations, or times outside the capture.",
        )
    if trust.events_clipped:
        yield _finding(
            "events.clipped",
            "warning",
            f"{plural(trust.events_clipped, 'GPU event')} with an impossible duration",
            "A stream runs its work in order and these outlast what came after; they were cut where the next began.",
        )


def _communication(facts: Facts) -> Iterator[Finding]:
    if not facts.rows:
        if facts.world_size == 1:
            yield _finding("comm.world_of_one", "info", "one rank, no communication", "The job has a world size of 1.")
        else:
            world = "" if facts.world_size is None else f" in a job of {facts.world_size} ranks"
            yield _finding(
                "comm.none",
                "warning" if facts.world_size else "info",
                f"no communication{world}",
                "No kernel, operator or annotation of a communication library was found. Was the GPU profiled? "
                "Kernels of a library this tool does not know can be named with --kernel-table.",
            )
    share = facts.trust.comm_time_classified
    if share is not None and share < 1:
        names = sorted({n for r in facts.ranks for n, _ in r.source.labelled.stats.unclassified_names})
        yield _finding(
            "comm.unclassified",
            "warning",
            f"{(1 - share) * 100:.1f} % of communication time is of unknown kind",
            f"Kernels: {', '.join(names[:5])}. Name them with --kernel-table.",
        )
    clashes: dict[str, int] = defaultdict(int)
    for rank in facts.ranks:
        for what, count in rank.source.labelled.stats.conflicts:
            clashes[what] += count
    if clashes:
        said = "; ".join(
            f"{what} ({plural(count, 'call')})" for what, count in sorted(clashes.items(), key=lambda i: -i[1])
        )
        yield _finding(
            "comm.name_conflict",
            "info",
            f"kernel names contradict the operation in {plural(sum(clashes.values()), 'call')}",
            f"{said}. The operation is believed: NCCL names a kernel after the variant it was compiled for.",
        )


def _layout(facts: Facts) -> Iterator[Finding]:
    layout = facts.layout
    if facts.declared:
        wrong = [
            (dim, degree, getattr(layout, dim))
            for dim, degree in facts.declared.items()
            if getattr(layout, dim) not in (None, degree)
        ]
        open_ones = [dim for dim in facts.declared if getattr(layout, dim) is None]
        if wrong:
            yield _finding(
                "layout.declared_differs",
                "error",
                "the declared layout is not what the trace shows",
                "; ".join(f"{dim} declared {said}, observed {seen}" for dim, said, seen in wrong),
            )
        elif not open_ones:
            yield _finding("layout.declared_holds", "info", "the declared layout is what the trace shows", "")
        else:
            yield _finding(
                "layout.declared_unverified",
                "info",
                f"the declared layout could not be verified for {', '.join(open_ones)}",
                "These traces do not decide it.",
            )
    undecided = [dim for dim in DIMENSIONS if getattr(layout, dim) is None]
    if undecided and facts.rows:
        reasons = [s for dim in undecided if dim in layout.dimensions for s in layout.dimensions[dim].against]
        yield _finding(
            "layout.undecided",
            "info",
            f"{', '.join(undecided)} not determined",
            " ".join(dict.fromkeys(reasons)) or "The traffic fits more than one layout.",
        )


def _links(facts: Facts) -> Iterator[Finding]:
    crossing = [r for r in facts.rows if r.dim == "tp" and r.link in ("inter_node", "mixed")]
    if crossing:
        yield _finding(
            "tp.crosses_nodes",
            "warning",
            "tensor parallelism crosses hosts",
            "Its collectives are on the critical path of every layer and leave the fast links inside a host. "
            "Keep tp within the GPUs of one host.",
            dim="tp",
            cost=sum(r.exposed_us_per_step for r in crossing),
        )


def _regather(facts: Facts) -> Iterator[Finding]:
    """Column-parallel layers gather their input again in backward (Korthikanti et al. 2022, section 4.2.2)."""
    if not facts.layout.sequence_parallel:
        return
    calls: dict[str, float] = defaultdict(float)
    exposed = 0.0
    for row in facts.rows:
        if row.dim == "tp" and row.primitive in ("all_gather", "reduce_scatter"):
            calls[row.primitive] += row.calls_per_step
            exposed += row.exposed_us_per_step if row.primitive == "all_gather" else 0.0
    gathers, scatters = calls["all_gather"], calls["reduce_scatter"]
    if scatters and gathers == 1.5 * scatters:
        yield _finding(
            "tp.regather",
            "info",
            "sequence-parallel inputs are gathered again in backward",
            f"{gathers:g} all-gathers for {scatters:g} reduce-scatters: the weight gradient of column-parallel layers "
            "needs the whole input, which was not kept. It saves memory and costs a third of the all-gathers.",
            dim="tp",
            cost=exposed / 3,
        )


_ADVICE = {
    "yes": "The framework can run it beside compute: look for launches that come late, or a lack of prefetching.",
    "partial": "A part of it can run beside compute; the rest is on the critical path.",
    "no": "It is on the critical path unless compute is split to run beside it.",
}
_OF_DIMENSION = {"control": "control (flags, losses, norms)", "unknown": "unassigned"}


def _exposed(facts: Facts) -> Iterator[Finding]:
    exposure = facts.exposure
    if exposure is None or not exposure.step_us:
        return
    can_hide = {item.dim: item.predicted for item in facts.ledger.exposure} if facts.ledger else {}
    for dim, time in exposure.by_dimension.items():
        share = time.exposed_us / exposure.step_us
        if share < NOISE or not time.busy_us:
            continue
        possible = can_hide.get(dim, "yes" if dim in HIDDEN_BY_DESIGN else "no")
        yield _finding(
            f"exposed.{dim}",
            "warning" if possible == "yes" else "info",
            f"{share * 100:.1f} % of the step is exposed {_OF_DIMENSION.get(dim, dim)} communication",
            f"{time.exposed_us / time.busy_us * 100:.0f} % of its time has no compute beside it. {_ADVICE[possible]}",
            dim=dim,
            cost=time.exposed_us,
        )
    idle = exposure.idle_us / exposure.step_us
    on_gpu = all(r.source.line.on_gpu for r in facts.ranks)
    if on_gpu and idle >= NOISE and exposure.idle_us > exposure.exposed_us:
        yield _finding(
            "step.idle",
            "info",
            f"the GPUs idle for {idle * 100:.1f} % of the step",
            "More than they spend in exposed communication: look at the host side first.",
            cost=exposure.idle_us,
        )


def _same_stream(facts: Facts) -> Iterator[Finding]:
    """NCCL kernels on a stream that also computes can never overlap that compute."""
    shared, total, window, who = 0, 0, 0, []
    for rank in facts.ranks:
        on_shared, all_nccl = _nccl_on_compute_streams(rank)
        total += all_nccl
        shared += on_shared
        window += rank.source.line.last - rank.source.line.first
        if on_shared and rank.source.rank is not None:
            who.append(rank.source.rank)
    if window and shared / window >= NOISE:
        yield _finding(
            "comm.on_compute_stream",
            "warning",
            "NCCL on the compute stream",
            f"{shared / total * 100:.0f} % of NCCL time is on streams that also compute: it cannot overlap with that.",
            ranks=who,
        )


def _nccl_on_compute_streams(rank: Measured) -> tuple[int, int]:
    """NCCL time on streams that mostly compute, and NCCL time in all, in ns."""
    labelled = rank.source.labelled
    library, names = codes(labelled.collectives, "library")
    mine = library == code_of(names, "nccl")
    if not mine.any():
        return 0, 0
    events = labelled.trace.gpu_events
    stream, length = ints(events, "stream"), np.maximum(ints(events, "dur_ns", 0), 0)
    compute = (labelled.gpu_role == GpuRole.COMPUTE) & (stream != NULL)
    nccl = (labelled.gpu_role == GpuRole.COMM) & np.append(mine, False)[labelled.gpu_call]
    computing = np.unique(stream[compute])
    return int(length[nccl & np.isin(stream, computing)].sum()), int(length[nccl].sum())


def _dtypes(facts: Facts) -> Iterator[Finding]:
    """The same primitive of the same dimension in more than one floating-point type."""
    seen: dict[tuple[str, str], dict[str, int]] = defaultdict(lambda: defaultdict(int))
    for row in facts.rows:
        if row.dtype and "float" in row.dtype and row.sent_bytes_per_step and row.dim in DIMENSIONS:
            seen[row.dim, row.primitive][row.dtype] += row.sent_bytes_per_step
    for (dim, primitive), by_type in seen.items():
        if len(by_type) > 1:
            said = ", ".join(f"{sent:,} B in {name}" for name, sent in sorted(by_type.items(), key=lambda i: -i[1]))
            yield _finding(
                "dtype.mixed",
                "info",
                f"{dim} {primitive} travels in {len(by_type)} data types",
                f"Sent per step and rank: {said}.",
                dim=dim,
            )


def _bytes(facts: Facts) -> Iterator[Finding]:
    ledger = facts.ledger
    if facts.rows and facts.ledger_refused:
        yield _finding("ledger.no_comparison", "info", "bytes are not compared with the ledger", facts.ledger_refused)
    if ledger is None:
        return
    for row in ledger.rows:
        if row.verdict in ("missing", "differs", "extra"):
            yield _finding(
                f"ledger.{row.verdict}",
                "warning" if row.verdict != "extra" else "info",
                f"{row.dim} {row.primitive}: " + _BYTES_SAID[row.verdict],
                row.explanation
                or f"predicted {row.predicted_bytes or 0:,} B, observed {row.observed_bytes:,} B per step and rank",
                dim=row.dim if row.dim in DIMENSIONS else None,
            )
    if ledger.residual_bytes:
        yield _finding(
            "ledger.residual",
            "info",
            f"{ledger.residual_bytes:,} B per step and rank are not explained",
            f"What the {ledger.profile} profile does not predict and no named cause covers.",
        )


_BYTES_SAID = {
    "missing": "the ledger expects it, the trace has none",
    "differs": "bytes differ from the ledger",
    "extra": "the ledger does not expect it",
}

_RULES: tuple[Callable[[Facts], Iterator[Finding]], ...] = (
    _incomplete,
    _impossible,
    _communication,
    _layout,
    _links,
    _regather,
    _exposed,
    _same_stream,
    _dtypes,
    _bytes,
)
