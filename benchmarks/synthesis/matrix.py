"""The jobs that accuracy is measured on: every dimension alone and with others, every framework, small and large."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from benchmarks.synthesis.spec import MODELS, Spec, Writing

_LAYOUTS = {
    "megatron": """
        dp4 dp8-m2 tp4 tp8 tp2-dp2 tp4-dp2 tp2-dp4-m4 tp4-dp4 pp2 pp4 pp2-dp2 pp4-dp2 pp8 tp2-pp2 tp4-pp2 tp2-pp4
        tp2-pp2-dp2 tp2-pp2-dp4 tp4-pp2-dp2 pp2-vp2 pp4-vp2 pp2-vp2-dp2 tp2-pp2-vp2 tp2-pp4-vp2 tp2-pp2-vp2-dp2
        cp2 cp4 cp2-dp2 cp4-dp2 tp2-cp2 tp2-cp4 tp2-cp2-dp2 cp2-pp2 tp2-cp2-pp2 tp2-cp2-pp2-dp2 tp2-cp2-pp2-vp2
        ep4-dp4 ep2-dp4 ep8-dp8 ep4-dp8 tp2-ep2-dp2 tp2-ep4-dp4 ep2-pp2-dp2 tp2-ep2-pp2-dp2 ep2-cp2-dp2
        tp4-ep4-dp2-etp1 tp2-ep2-etp2-dp4
    """,
    "torchtitan": """
        dp4 dp8 dp8-m2 tp4 tp2-dp2 tp2-dp4 tp4-dp2 tp8-dp2 dp4-rep2 dp8-rep2 dp8-rep4 tp2-dp4-rep2 pp2-dp2 pp4-dp2
        pp2-vp2-dp2 pp4-vp2 tp2-pp2-dp2 tp2-pp4 cp2 cp2-dp2 cp4-dp2 tp2-cp2-dp2 tp2-cp2-pp2 ep2-dp2 ep4-dp4 ep2-dp4
        ep4-dp8 tp2-ep2-dp2 tp2-ep4-dp4 pp2-ep2-dp4 dp4-zero0
    """,
    "torch": """
        dp4 dp8 dp4-m4 tp4 tp2-dp2 tp2-dp4 pp2 pp4 pp2-dp2 pp4-dp2 pp4-vp2 tp2-pp2 tp2-pp2-dp2 cp4 cp2-dp2 dp4-zero3
        dp8-rep2-zero3 tp2-dp2-zero3 ep4-dp4
    """,
    "hf": "tp4 tp2-dp2 tp4-dp2 dp4-zero3 tp2-dp4-zero3",
    "deepspeed": """
        dp4-zero0 dp4-zero1 dp4-zero1-m2 dp4-zero2 dp4-zero2-m2 dp4-zero3 dp8-zero3-m2 cp4-zero1 cp2-dp2-zero1 cp4-zero3
        cp2-dp2-zero3 ep4-dp4 ep2-dp4 pp2-dp2 pp4 tp2-dp2 tp2-pp2-dp2
    """,
    "inference": "tp4 tp8 tp2-pp2 dp4-ep4 tp2-dp2-ep4",
}
"""Framework -> layouts in the framework's own way of running them."""

_VARIANTS: tuple[tuple[str, str, dict[str, Any]], ...] = (
    ("megatron", "tp4", {"sp": False}),
    ("megatron", "tp2-dp2", {"sp": False}),
    ("megatron", "tp2-pp2-dp2", {"sp": False}),
    ("megatron", "tp2-dp2", {"zero": 0}),
    ("megatron", "dp4", {"zero": 0}),
    ("megatron", "tp2-pp2-dp2", {"zero": 0}),
    ("megatron", "tp2-dp2", {"recompute": "full"}),
    ("megatron", "tp2-pp2", {"recompute": "full"}),
    ("megatron", "tp4", {"sp": False, "recompute": "full"}),
    ("megatron", "dp4", {"options": (("overlap", False),)}),
    ("megatron", "tp2-dp2", {"options": (("overlap", False),)}),
    ("megatron", "cp4", {"cp_kind": "all_gather"}),
    ("megatron", "tp2-cp2-dp2", {"cp_kind": "all_gather"}),
    ("megatron", "cp4", {"cp_kind": "ulysses"}),
    ("megatron", "cp2-dp2", {"cp_kind": "ulysses"}),
    ("megatron", "tp2-cp2-dp2", {"cp_kind": "ulysses"}),
    ("megatron", "ep4-dp4", {"options": (("dispatcher", "allgather"),)}),
    ("megatron", "tp2-ep2-dp2", {"options": (("dispatcher", "allgather"),)}),
    ("megatron", "tp2-pp2-dp2", {"options": (("order", "tp-pp-dp"),)}),
    ("megatron", "pp4", {"schedule": "gpipe"}),
    ("megatron", "pp4", {"schedule": "zb_h1"}),
    ("megatron", "pp4-dp2", {"model": replace(MODELS["small"], name="tied", tied=True)}),
    ("megatron", "tp2-dp2", {"model": MODELS["mha"]}),
    ("megatron", "tp2-dp2", {"model": replace(MODELS["small"], name="square", seq=2048)}),
    ("megatron", "tp2-pp2-dp2", {"model": replace(MODELS["small"], name="uneven", layers=7)}),
    ("megatron", "tp2-dp4", {"options": (("fp8", True),)}),
    ("megatron", "tp2-pp2-dp2", {"options": (("fp8", True),)}),
    ("megatron", "tp4-dp2", {"options": (("userbuffers", True),)}),
    ("megatron", "cp4-dp2", {"cp_kind": "hierarchical"}),
    ("megatron", "tp2-cp4", {"cp_kind": "hierarchical"}),
    ("megatron", "tp2-ep2-dp2", {"options": (("shared_expert", True),)}),
    ("megatron", "dp8-rep2", {}),
    ("megatron", "tp2-dp4-rep2", {}),
    ("megatron", "tp2-dp2", {"dtype": "Half", "options": (("timers", True),)}),
    ("megatron", "dp4-m4", {"options": (("varlen", True),)}),
    ("megatron", "tp2-dp2-m4", {"options": (("varlen", True),)}),
    ("megatron", "tp2-pp2-dp2", {"options": (("varlen", True),)}),
    ("megatron", "tp2-pp2-dp2", {"steps": 1}),
    ("megatron", "tp4-dp2", {"steps": 1}),
    ("torchtitan", "dp4", {"steps": 1}),
    ("torchtitan", "tp2-dp2", {"model": replace(MODELS["small"], name="square", seq=2048)}),
    ("torchtitan", "tp4-dp2", {"options": (("async_tp", True),)}),
    ("megatron", "tp2-pp2-dp2", {"model": MODELS["wide"]}),
    ("torchtitan", "tp4", {"sp": False}),
    ("torchtitan", "tp2-dp2", {"sp": False}),
    ("torchtitan", "tp2-dp2", {"model": MODELS["wide"]}),
    ("torchtitan", "dp4", {"options": (("reshard", False),)}),
    ("torchtitan", "dp8", {"options": (("reshard", 4),)}),
    ("torchtitan", "dp4", {"recompute": "full"}),
    ("torchtitan", "tp2-dp2", {"recompute": "full"}),
    ("torchtitan", "cp4", {"cp_kind": "torch_ring_all_to_all"}),
    ("torchtitan", "cp2-dp2", {"cp_kind": "torch_ring_all_to_all"}),
    ("torchtitan", "pp2-dp2", {"schedule": "zbv"}),
    ("torchtitan", "pp2-dp2", {"schedule": "dualpipev"}),
    ("torchtitan", "pp4-vp2", {"schedule": "interleaved_zb"}),
    ("torch", "pp4", {"schedule": "gpipe"}),
    ("torch", "pp2-dp2", {"schedule": "gpipe"}),
    ("torch", "pp4-vp2", {"schedule": "looped_bfs"}),
    ("torch", "pp4-vp2", {"schedule": "interleaved_zb"}),
    ("torch", "pp4", {"schedule": "zbv"}),
    ("torch", "pp4", {"schedule": "dualpipev"}),
    ("torch", "cp4", {"cp_kind": "ulysses"}),
    ("torch", "tp4", {"sp": True}),
    ("torch", "dp4", {"options": (("buffers", True),)}),
    ("torch", "dp4", {"options": (("sync_always", True),), "microbatches": 2}),
    ("deepspeed", "dp4-zero3", {"options": (("keep_live", True),)}),
    ("inference", "tp4", {"options": (("comm", "nccl"),)}),
    ("inference", "tp4", {"options": (("comm", "c10d"),)}),
    ("inference", "tp8", {"options": (("graph", True), ("server", "sglang"))}),
    ("inference", "tp4", {"options": (("prefill", 4096), ("comm", "nccl"))}),
    ("inference", "tp2-pp2", {"options": (("comm", "c10d"),)}),
)

_WRITINGS: tuple[Writing, ...] = (
    Writing(torch="2.4"),
    Writing(torch="2.7"),
    Writing(torch="2.13"),
    Writing(library="nccl-2.17", torch="2.4", integer_us=True),
    Writing(library="rccl"),
    Writing(step_marks=False),
    Writing(step_marks=False, autograd_marks=False, range_marks=False),
    Writing(shapes=False),
    Writing(cut=0.2),
    Writing(cut=0.4, step_marks=False),
)

_WRITTEN = (
    *(("megatron", layout) for layout in ("dp4", "tp2-dp2", "tp2-pp2-dp2", "cp2-dp2", "ep2-dp4")),
    *(("torchtitan", layout) for layout in ("dp4", "tp2-dp2", "pp2-dp2", "dp4-rep2", "cp2-dp2")),
    ("torch", "dp4"),
    ("deepspeed", "dp4-zero2-m2"),
)

_LARGE: tuple[tuple[str, str, dict[str, Any]], ...] = (
    ("megatron", "tp8-pp8-dp16", {}),
    ("megatron", "tp8-pp16-dp128", {}),
    ("megatron", "tp8-cp2-pp8-dp8-vp2", {}),
    ("megatron", "ep64-dp128-pp8", {"model": replace(MODELS["moe"], experts=64)}),
    ("megatron", "tp4-pp4-dp64", {}),
    ("torchtitan", "dp512", {}),
    ("torchtitan", "tp8-dp64", {}),
    ("torchtitan", "tp8-dp64-rep8", {}),
    ("torchtitan", "tp8-pp4-dp32", {}),
    ("deepspeed", "dp256-zero3", {}),
)


_SHALLOW: tuple[tuple[str, str, dict[str, Any]], ...] = (
    *(("megatron", layout, {}) for layout in ("tp2-dp2", "cp2-dp2", "tp2-cp2-dp2", "ep2-dp4", "pp2-dp2")),
    *(("torchtitan", layout, {}) for layout in ("dp4", "tp2-dp2", "dp4-rep2", "cp2-dp2", "ep2-dp4")),
    *(("megatron", layout, {"cp_kind": "all_gather"}) for layout in ("cp4", "cp2-dp2", "tp2-cp2-dp2")),
    *(("torchtitan", layout, {"cp_kind": "all_gather"}) for layout in ("cp4", "cp2-dp2", "tp2-cp2-dp2")),
    *(("torchtitan", layout, {"cp_kind": "ulysses"}) for layout in ("cp4", "cp2-dp2")),
)
"""Jobs again with models of two layers, as tests of a framework run them: little repeats."""


@dataclass(frozen=True)
class Entry:
    """A job and the metadata levels to write it at."""

    spec: Spec
    levels: tuple[str, ...]
    family: str


def entries(scope: str = "full") -> Iterator[Entry]:
    """The jobs of a scope: ``quick`` (a few of each framework) or ``full``."""
    levels = ("a", "b", "c", "d")
    for framework, layouts in _LAYOUTS.items():
        for layout in layouts.split()[:: 6 if scope == "quick" else 1]:
            yield Entry(Spec.parse(framework, layout), levels, "layouts")
    if scope == "quick":
        return
    for framework, layout, changes in _VARIANTS:
        yield Entry(Spec.parse(framework, layout, **changes), levels, "variants")
    for writing in _WRITINGS:
        for framework, layout in _WRITTEN:
            yield Entry(Spec.parse(framework, layout, writing=writing), ("b", "c", "d"), "writers")
    for framework, layout, changes in _SHALLOW:
        spec = Spec.parse(framework, layout, **changes)
        for writing in (Writing(), Writing(shapes=False)):
            shallow = replace(spec.model, name="shallow", layers=max(2, spec.pp * spec.virtual))
            yield Entry(replace(spec, model=shallow, writing=writing), levels, "shallow")
    for framework, layout, changes in _LARGE:
        spec = Spec.parse(framework, layout, **changes)
        yield Entry(replace(spec, ranks=sampled(spec)), ("a", "b", "c"), "large")


def sampled(spec: Spec) -> tuple[int, ...]:
    """Some ranks of a large world: the first, its neighbours along each dimension, a middle one and the last."""
    inner = spec.tp * spec.cp
    steps = {0, 1, spec.tp, inner, spec.world // spec.pp, spec.world // 2, spec.world // 2 + 1, spec.world - 1}
    return tuple(sorted(rank for rank in steps if rank < spec.world))
