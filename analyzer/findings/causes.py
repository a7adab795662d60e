"""Why communication was exposed, and what overlap costs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from analyzer import causes
from analyzer.findings.base import NOISE, Facts, finding
from analyzer.model import ExposedCause, Finding
from analyzer.reporters.format import time


@dataclass(frozen=True)
class _Advice:
    """What a cause means, and what to do about it."""

    detail: str
    action: str


_ADVICE = {
    "waiting": _Advice(
        "It is not transfer: the others had not arrived yet.",
        "Even out what the ranks do before they meet; where one rank is to blame it is named.",
    ),
    "capture_start": _Advice(
        "It is the first collective of the capture: the profilers of the ranks did not start at the same moment.",
        "Nothing: a job that is not profiled does not wait there. Leave the first step out with --steps.",
    ),
    "bubble": _Advice(
        "Waiting inside receives (and sends) is the pipeline's bubble.",
        "More microbatches, virtual stages, or a zero-bubble schedule make it smaller.",
    ),
    "stream": _Advice(
        "These calls run on a stream that also computes, so nothing can run beside them.",
        "Give the process group a stream of its own (async_op=True, or its own CUDA stream).",
    ),
    "serialised": _Advice(
        "A call of another group held it up in the same stream (head of line).",
        "Put the two groups on communicators with streams of their own, or issue the one that is needed first, first.",
    ),
    "latency": _Advice(
        "Its payload is so small that only latency counts.",
        "Merge small messages, or take them off the critical path (asynchronous, or less often).",
    ),
    "late_launch": _Advice(
        "The GPU had run out of work before the call was launched: the host is the bottleneck.",
        "Launch from CUDA graphs or torch.compile, remove synchronisations, or issue the call earlier.",
    ),
    "slow_link": _Advice(
        "The same payload takes less on the other groups.",
        "Check the links of the ranks that the slow groups share (nvidia-smi nvlink -s, ibstat, cabling).",
    ),
    "last_bucket": _Advice(
        "Nothing was left to compute when its gradients were ready.",
        "Make the last bucket smaller (bucket_cap_mb, first parameters in a bucket of their own).",
    ),
    "by_design": _Advice(
        "What comes next needs its result.",
        "Only splitting the compute beside it (asynchronous tensor parallelism, chunked dispatch) hides it.",
    ),
    "undivided": _Advice(
        "CPU operators do not say when their ranks arrived: it may be waiting or moving data.",
        "Trace a GPU job to tell the two apart.",
    ),
    "unknown": _Advice("It belongs to no call that was recognised.", "Name its kernels with --kernel-table."),
}
_SHARDED = _Advice(
    "The gather was issued only after the previous layer's compute.",
    "Ask for parameters one layer ahead: set_modules_to_forward_prefetch, backward_prefetch=BACKWARD_PRE, "
    "stage3_prefetch_bucket_size.",
)
_UPDATED = _Advice(
    "Updated parameters were gathered with nothing beside them; the next forward pass needs them layer by layer.",
    "Gather them beside the forward pass (Megatron --overlap-param-gather, DeepSpeed overlap_comm).",
)
_WAITED = ("waiting", "capture_start")
_PREVENTABLE = ("stream", "serialised", "late_launch", "slow_link", "no_prefetch")
"""Causes that are a fault whatever the prediction says, where there is none."""


def exposed_causes(facts: Facts) -> Iterator[Finding]:
    """Each cause of exposed time that is more than noise; a warning where a notable part of it is avoidable."""
    exposure = facts.exposure
    if exposure is None or not exposure.step_us:
        return
    words = {slug: cause for cause, slug in causes.SLUGS.items()}
    for cause in exposure.causes:
        if cause.exposed_us < NOISE * exposure.step_us:
            continue
        advice = _advice(cause, facts)
        known = cause.avoidable_us
        fault = cause.cause in _PREVENTABLE if known is None else known >= NOISE * exposure.step_us
        less = "" if known is None or cause.cause in _WAITED else _avoidable(known, cause.exposed_us)
        yield finding(
            f"cause.{cause.cause}",
            "warning" if fault and cause.cause not in (*_WAITED, "bubble") else "info",
            f"{cause.dim}: {cause.exposed_us / exposure.step_us * 100:.1f} % of the step is exposed, "
            f"{words[cause.cause]}",
            advice.detail + less,
            dim=cause.dim,
            cost=cause.exposed_us,
            action=advice.action,
        )


def _advice(cause: ExposedCause, facts: Facts) -> _Advice:
    if cause.cause != "no_prefetch":
        return _ADVICE[cause.cause]
    return _UPDATED if cause.dim == "dp" and facts.layout.zero_stage in (1, 2) else _SHARDED


def _avoidable(known: float, whole: float) -> str:
    if known <= 0:
        return " None of it is avoidable in this schedule."
    return " All of it is avoidable." if known >= whole else f" {time(known)} of it is avoidable."


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
        action="Give communication fewer SMs (NCCL_MAX_CTAS, NCCL_MAX_NCHANNELS), or copy engines (symmetric memory).",
    )


def bubble(facts: Facts) -> Iterator[Finding]:
    """The pipeline's bubble; its stages are in the table of the report."""
    found = None if facts.timing is None else facts.timing.bubble
    if found is None or found.fraction is None:
        return
    mean = sum(s.bubble_us for s in found.stages) / len(found.stages)
    inside = sum(s.waiting_us for s in found.stages) / len(found.stages)
    worst = max(found.stages, key=lambda s: s.bubble_us)
    yield finding(
        "pipeline.bubble",
        "info",
        f"{found.fraction * 100:.1f} % of the pipeline's time is bubble",
        f"Of a rank's {time(mean)}, {time(inside)} are waiting inside receives (and sends): bubble, not communication. "
        f"The most is at stage {worst.stage} (rank {worst.rank}), {time(worst.bubble_us)}.",
        dim="pp",
        ranks=[s.rank for s in found.stages],
        cost=mean,
        action=_ADVICE["bubble"].action,
    )
