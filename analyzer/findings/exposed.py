"""Where the time of a step goes that no compute covers."""

from __future__ import annotations

from collections.abc import Iterator

from analyzer.findings.base import NOISE, Facts, finding
from analyzer.model import Finding
from analyzer.outlook import HIDDEN_BY_DESIGN

_ADVICE = {
    "yes": ("The framework can run it beside compute.", "Look for launches that come late, or a lack of prefetching."),
    "partial": (
        "A part of it can run beside compute; the rest is on the critical path.",
        "Switch the framework's overlap of this dimension on.",
    ),
    "no": (
        "It is on the critical path unless compute is split to run beside it.",
        "A smaller degree, faster links, or an implementation that splits the compute beside it.",
    ),
}
_OF_DIMENSION = {"control": "control (flags, losses, norms)", "unknown": "unassigned"}


def exposed(facts: Facts) -> Iterator[Finding]:
    """Dimensions whose exposed communication is more than noise, and GPUs that mostly idle."""
    exposure = facts.exposure
    if exposure is None or not exposure.step_us:
        return
    can_hide = {item.dim: item.predicted for item in facts.ledger.exposure} if facts.ledger else {}
    for dim, time in exposure.by_dimension.items():
        share = time.exposed_us / exposure.step_us
        if share < NOISE or not time.busy_us:
            continue
        possible = can_hide.get(dim, "yes" if dim in HIDDEN_BY_DESIGN else "no")
        means, action = _ADVICE[possible]
        yield finding(
            f"exposed.{dim}",
            "warning" if possible == "yes" else "info",
            f"{share * 100:.1f} % of the step is exposed {_OF_DIMENSION.get(dim, dim)} communication",
            f"{time.exposed_us / time.busy_us * 100:.0f} % of its time has no compute beside it. {means}",
            dim=dim,
            cost=time.exposed_us,
            action=action,
        )
    idle = exposure.idle_us / exposure.step_us
    on_gpu = all(r.source.line.on_gpu for r in facts.ranks)
    if on_gpu and idle >= NOISE and exposure.idle_us > exposure.exposed_us:
        yield finding(
            "step.idle",
            "info",
            f"the GPUs idle for {idle * 100:.1f} % of the step",
            "More than they spend in exposed communication.",
            cost=exposure.idle_us,
            action="Look at the host side first: data loading, synchronisation, launch overhead (CUDA graphs help).",
        )


def same_stream(facts: Facts) -> Iterator[Finding]:
    """NCCL kernels on a stream that also computes can never overlap that compute."""
    shared, total, window, who = 0, 0, 0, []
    for rank in facts.ranks:
        on_shared, all_nccl = rank.source.nccl_ns
        total += all_nccl
        shared += on_shared
        window += rank.source.line.last - rank.source.line.first
        if on_shared and rank.source.rank is not None:
            who.append(rank.source.rank)
    cost = None
    if facts.exposure is not None and facts.exposure.causes:
        cost = sum(cause.exposed_us for cause in facts.exposure.causes if cause.cause == "stream")
        if cost < NOISE * facts.exposure.step_us:
            return  # what comes next needs the result: another stream alone would hide nothing
    if window and shared / window >= NOISE:
        yield finding(
            "comm.on_compute_stream",
            "warning",
            "NCCL on the compute stream",
            f"{shared / total * 100:.0f} % of NCCL time is on streams that also compute: it cannot overlap with that.",
            ranks=who,
            cost=cost,
            action="Give the process group a stream of its own (async_op=True, or its own CUDA stream).",
        )
