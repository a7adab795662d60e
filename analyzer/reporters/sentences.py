"""What several reporters say in the same words."""

from __future__ import annotations

from analyzer.model import LayoutDoc, StepTrust
from analyzer.reporters import format as fmt

_DATA_PARALLEL = {
    "none": "no data parallelism",
    "ddp": "DDP (gradients all-reduced, ZeRO 0)",
    "zero1": "ZeRO 1 (optimizer state sharded)",
    "zero2": "ZeRO 2 (gradients sharded)",
    "zero3": "ZeRO 3 / FSDP (parameters sharded)",
    "hsdp": "HSDP",
}
_SCHEDULE = {
    "gpipe": "GPipe",
    "1f1b": "1F1B",
    "interleaved_1f1b": "interleaved 1F1B",
    "zero_bubble": "zero bubble",
    "zbv": "ZB-V",
    "dualpipe": "DualPipe",
}
_SOURCE = {"profiler_step": "marked by the profiler", "inferred": "inferred", "none": "none"}


def describe_steps(steps: StepTrust) -> str:
    """Where steps came from and which are whole."""
    if steps.source == "none":
        return "no steps: figures are for the whole span of the trace"
    whole = f"{len(steps.complete)} complete ({fmt.ranks(steps.complete)})" if steps.complete else "none complete"
    cut = f", {len(steps.incomplete)} cut and left out ({fmt.ranks(steps.incomplete)})" if steps.incomplete else ""
    return f"{whole}{cut}, {_SOURCE.get(steps.source, steps.source)}"


def describe_layout(layout: LayoutDoc) -> str:
    """Everything but the degrees, as far as it is known, in one sentence; empty where these are not known either."""
    parts = []
    if layout.sequence_parallel is not None and (layout.tp or 1) > 1:
        parts.append("sequence parallel" if layout.sequence_parallel else "no sequence parallelism")
    if layout.cp_kind:
        parts.append(f"context parallel by {layout.cp_kind.replace('_', '-')}")
    if layout.data_parallel:
        parts.append(_data_parallel(layout))
    if layout.pp_schedule or ((layout.pp or 1) > 1 and layout.microbatches):
        parts.append(_pipeline(layout))
    elif layout.microbatches and layout.microbatches > 1:
        parts.append(f"{layout.microbatches} microbatches")
    if layout.recompute and layout.recompute != "none":
        parts.append(f"{layout.recompute} recomputation")
    if layout.grad_reduce_dtype:
        parts.append(f"gradients reduced in {layout.grad_reduce_dtype}")
    if layout.rank_order:
        parts.append(f"rank order {layout.rank_order}")
    undecided = all(degree is None for degree in (layout.tp, layout.cp, layout.pp, layout.dp, layout.ep))
    return "; ".join(parts) if parts else "" if undecided else "nothing else is known"


def _data_parallel(layout: LayoutDoc) -> str:
    said = _DATA_PARALLEL.get(layout.data_parallel or "", str(layout.data_parallel))
    if layout.data_parallel == "hsdp" and layout.dp_shard and layout.dp_replicate:
        stage = "" if layout.zero_stage is None else f", ZeRO {layout.zero_stage}"
        said += f" ({layout.dp_shard} shards x {layout.dp_replicate} replicas{stage})"
    return said


def _pipeline(layout: LayoutDoc) -> str:
    name = _SCHEDULE.get(layout.pp_schedule or "", layout.pp_schedule) or "schedule not known"
    stages = f" with {layout.virtual_stages} virtual stages" if (layout.virtual_stages or 1) > 1 else ""
    batches = f", {layout.microbatches} microbatches" if layout.microbatches else ""
    return f"{name}{stages}{batches}"
