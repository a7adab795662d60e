"""Why communication was exposed, and what overlap costs."""

from __future__ import annotations

from collections.abc import Iterator

from analyzer import causes
from analyzer.findings.base import NOISE, Facts, finding
from analyzer.model import Finding

_ADVICE = {
    causes.WAIT: ("waiting", "info", "It is not transfer: look at the rank that comes last."),
    causes.BUBBLE: ("bubble", "info", "Waiting inside receives (and sends) is the pipeline's bubble."),
    causes.STREAM: ("stream", "warning", "Give the process group a stream of its own."),
    causes.SERIAL: ("serialised", "warning", "A call of another group held it up in the same stream (head of line)."),
    causes.LATENCY: ("latency", "info", "Fewer, larger messages would take less."),
    causes.LATE: ("late_launch", "warning", "The GPU had run out of work: the host is the bottleneck."),
    causes.LINK: ("slow_link", "warning", "The same payload takes less on the other groups."),
    causes.PREFETCH: (
        "no_prefetch",
        "warning",
        "The gather was issued only after the previous layer's compute: ask for parameters one layer ahead.",
    ),
    causes.BUCKET: (
        "last_bucket",
        "info",
        "Nothing was left to compute when its gradients were ready; a smaller last bucket would be exposed for less.",
    ),
    causes.DESIGN: ("by_design", "info", "What comes next needs its result."),
    causes.OTHER: ("unknown", "info", "It belongs to no call that was recognised."),
}


def exposed_causes(facts: Facts) -> Iterator[Finding]:
    """Each cause of exposed time that is more than noise."""
    timing, exposure = facts.timing, facts.exposure
    if timing is None or exposure is None or not exposure.step_us:
        return
    for charge in timing.charges:
        if charge.exposed_us < NOISE * exposure.step_us:
            continue
        slug, severity, advice = _ADVICE[charge.cause]
        if charge.cause == causes.STREAM and charge.dim in causes.SERIAL_DIMS:
            severity, advice = "info", "What comes next needs its result: another stream alone would not hide it."
        share = charge.exposed_us / exposure.step_us
        yield finding(
            f"cause.{slug}",
            severity,
            f"{charge.dim}: {share * 100:.1f} % of the step is exposed, {charge.cause}",
            advice,
            dim=charge.dim,
            cost=charge.exposed_us,
        )


def overlap_tax(facts: Facts) -> Iterator[Finding]:
    """Kernels that are slower while communication runs."""
    timing, exposure = facts.timing, facts.exposure
    if timing is None or exposure is None or not timing.taxes or timing.tax_us < NOISE * exposure.step_us:
        return
    worst = max(timing.taxes, key=lambda tax: tax.extra_ns)
    yield finding(
        "overlap.tax",
        "info",
        f"overlap slows compute down by {timing.tax_us:,.0f} µs per step",
        f"{worst.name.split('(')[0]} takes {worst.alone_ns / 1000:,.1f} µs alone and {worst.beside_ns / 1000:,.1f} µs "
        f"({worst.beside_ns / worst.alone_ns:.3f} times) with communication beside it: the two share SMs and memory "
        "bandwidth.",
        cost=timing.tax_us,
    )


def bubble(facts: Facts) -> Iterator[Finding]:
    """The pipeline's bubble, stage by stage."""
    found = None if facts.timing is None else facts.timing.bubble
    if found is None or found.fraction is None:
        return
    table = "; ".join(
        f"stage {s.stage} (rank {s.rank}): {s.bubble_us:,.0f} µs, {s.waiting_us:,.0f} of them inside messages"
        + ("" if s.received_bytes is None else f", {s.received_bytes:,} B received")
        for s in sorted(found.stages, key=lambda s: (s.stage, s.rank))
    )
    mean = sum(s.bubble_us for s in found.stages) / len(found.stages)
    yield finding(
        "pipeline.bubble",
        "info",
        f"{found.fraction * 100:.1f} % of the pipeline's time is bubble",
        f"Waiting inside receives is part of it, not of communication. {table}.",
        dim="pp",
        ranks=[s.rank for s in found.stages],
        cost=mean,
    )
