"""What to generate: the layout of a job, the model it trains, how it is run, and how its traces are written."""

from __future__ import annotations

import random
import re
from dataclasses import dataclass, field, fields, replace
from typing import Any

FRAMEWORKS = ("megatron", "torchtitan", "torch", "hf", "deepspeed", "inference")
LEVELS = ("a", "b", "c", "d")
"""Metadata: a full; b without descriptions; c sizes only; d kernel names, streams and times only."""


@dataclass(frozen=True)
class Model:
    """A decoder-only transformer: widths in elements, lengths in tokens."""

    name: str = "small"
    layers: int = 8
    hidden: int = 2048
    heads: int = 16
    kv_heads: int = 8
    ffn: int = 5632
    gated: bool = True  # SwiGLU: gate and up projections
    vocab: int = 32_000
    seq: int = 4096
    experts: int = 0
    topk: int = 2
    expert_ffn: int = 1408
    dense_layers: int = 0  # first layers without experts
    tied: bool = False
    bias: bool = False  # linear layers and LayerNorm with biases, as in GPT-2

    @property
    def kv_width(self) -> int:
        """Width of the keys of one token."""
        return self.hidden // self.heads * self.kv_heads

    @property
    def attention_params(self) -> int:
        """Weights of the four attention projections of a layer."""
        return self.hidden * (2 * self.hidden + 2 * self.kv_width)

    @property
    def mlp_params(self) -> int:
        """Weights of one dense feed-forward block."""
        return (3 if self.gated else 2) * self.hidden * self.ffn

    @property
    def expert_params(self) -> int:
        """Weights of one expert."""
        return (3 if self.gated else 2) * self.hidden * self.expert_ffn

    @property
    def norm_params(self) -> int:
        """Weights of one normalisation."""
        return (2 if self.bias else 1) * self.hidden

    @property
    def shared_params(self) -> int:
        """Weights of a layer that every tensor-parallel rank holds whole: norms, biases after row-parallel layers."""
        return 2 * self.norm_params + (2 * self.hidden if self.bias else 0)

    @property
    def split_biases(self) -> int:
        """Biases of a layer that are divided among tensor-parallel ranks."""
        return self.hidden + 2 * self.kv_width + (2 if self.gated else 1) * self.ffn if self.bias else 0

    def is_moe(self, layer: int) -> bool:
        """Whether a layer has experts in place of the feed-forward block."""
        return self.experts > 0 and layer >= self.dense_layers


MODELS = {
    "small": Model(),
    "wide": Model("wide", layers=8, hidden=4096, heads=32, kv_heads=8, ffn=14_336, vocab=128_256, seq=4096),
    "mha": Model("mha", layers=8, hidden=2048, heads=16, kv_heads=16, ffn=8192, gated=False, vocab=50_304),
    "moe": Model("moe", layers=8, hidden=2048, heads=16, kv_heads=4, experts=8, topk=2, expert_ffn=1408),
}


@dataclass(frozen=True)
class Writing:
    """How the traces are written: what the file says, not what the job does.

    Attributes:
        level: one of `LEVELS`.
        torch: the release whose profiler and process groups are imitated, 2.4 to 2.13.
        library: ``nccl-2.17`` (old kernel names), ``nccl-2.27`` or ``rccl`` (one name for all).
        step_marks: whether ``ProfilerStep#`` is there.
        autograd_marks: whether ``autograd::engine`` operators are there.
        range_marks: whether the framework's own ranges (``FSDP::``, ``PP:``) are there.
        integer_us: whole microseconds, as before 2024.
        eager_init: communicators made with ``device_id``: point-to-point calls share the group's stream.
        shapes: ``Input Dims`` recorded.
        cut: share of the time before the window opens: work asked for before has no calls, only kernels.
    """

    level: str = "a"
    torch: str = "2.9"
    library: str = "nccl-2.27"
    step_marks: bool = True
    autograd_marks: bool = True
    range_marks: bool = True
    integer_us: bool = False
    eager_init: bool = False
    shapes: bool = True
    cut: float = 0.0

    @property
    def release(self) -> tuple[int, int]:
        """The torch release as numbers."""
        major, minor = self.torch.split(".")[:2]
        return int(major), int(minor)

    def differences(self) -> list[str]:
        """What is not as usual, in words."""
        marks = {"step marks": self.step_marks, "backward marks": self.autograd_marks, "ranges": self.range_marks}
        missing = [name for name, there in marks.items() if not there]
        return [
            *([f"torch {self.torch}"] if self.torch != Writing.torch else []),
            *([self.library] if self.library != Writing.library else []),
            *(["no " + ", ".join(missing)] if missing else []),
            *(["no shapes"] if not self.shapes else []),
            *([f"window from {self.cut:.0%}"] if self.cut else []),
        ]

    @property
    def sync_on_current_stream(self) -> bool:
        """From 2.8 on a synchronous collective runs on the caller's stream (pytorch/pytorch#148590)."""
        return self.release >= (2, 8)


@dataclass(frozen=True)
class Spec:
    """A job. ``world`` = tp · cp · pp · dp; expert parallelism divides the same ranks again.

    Attributes:
        dp: replicas of the dense parameters (context-parallel ranks not counted).
        dp_replicate: of these, how many hold whole copies (HSDP).
        etp: tensor parallelism inside experts.
        zero: sharding stage of the optimizer, gradients and parameters.
        options: what only one framework knows, by name.
    """

    framework: str = "megatron"
    tp: int = 1
    cp: int = 1
    pp: int = 1
    dp: int = 1
    ep: int = 1
    etp: int = 1
    dp_replicate: int = 1
    zero: int = 0
    sp: bool = False
    virtual: int = 1
    microbatches: int = 1
    micro_batch: int = 1
    schedule: str | None = None  # gpipe | 1f1b | interleaved_1f1b | zb_h1 | interleaved_zb | zbv | dualpipev
    cp_kind: str = "ring"  # ring | all_gather | ulysses | torch_ring_all_gather | torch_ring_all_to_all
    recompute: str = "none"  # none | full
    dtype: str = "BFloat16"
    grad_dtype: str = "Float"
    model: Model = field(default_factory=Model)
    steps: int = 3
    seed: int = 0
    gpus_per_node: int = 8
    ranks: tuple[int, ...] | None = None  # whose traces to write; None: all
    writing: Writing = field(default_factory=Writing)
    options: tuple[tuple[str, Any], ...] = ()

    def __post_init__(self) -> None:
        """Refuse what cannot be.

        Raises:
            ValueError: says which fields do not fit.
        """
        if self.framework not in FRAMEWORKS:
            raise ValueError(f"unknown framework {self.framework!r}; known: {', '.join(FRAMEWORKS)}")
        if self.writing.level not in LEVELS:
            raise ValueError(f"unknown level {self.writing.level!r}")
        if self.world % (self.ep * self.etp * self.pp):
            raise ValueError(f"a world of {self.world} cannot hold ep {self.ep} x etp {self.etp} x pp {self.pp}")
        if self.dp % self.dp_replicate:
            raise ValueError(f"dp {self.dp} is not a multiple of dp_replicate {self.dp_replicate}")
        if self.model.layers < self.pp * self.virtual:
            raise ValueError(f"{self.model.layers} layers cannot fill {self.pp * self.virtual} stages")

    @property
    def world(self) -> int:
        """How many ranks there are."""
        return self.tp * self.cp * self.pp * self.dp

    @property
    def dp_shard(self) -> int:
        """Ranks that share one copy of what is sharded."""
        return self.dp // self.dp_replicate

    @property
    def tokens(self) -> int:
        """Tokens of one microbatch on one context-parallel rank."""
        return self.model.seq * self.micro_batch // self.cp

    def length(self, step: int, microbatch: int) -> int:
        """Tokens of one sequence on one context-parallel rank; with the option ``varlen`` they vary."""
        whole = self.model.seq // self.cp
        if not self.option("varlen", False):
            return whole
        unit = 8 * self.tp
        return max(1, random.Random(f"{self.seed}:{step}:{microbatch}").randint(whole // 2, whole) // unit) * unit

    def option(self, name: str, default: Any) -> Any:
        """One framework's own setting."""
        return dict(self.options).get(name, default)

    def name(self) -> str:
        """A short name: framework and what is not 1."""
        parts = [f"{k}{getattr(self, k)}" for k in ("tp", "cp", "pp", "dp", "ep", "etp") if getattr(self, k) > 1]
        parts += [f"rep{self.dp_replicate}"] if self.dp_replicate > 1 else []
        extra = [self.schedule] if self.schedule and self.pp > 1 else []
        extra += [f"zero{self.zero}"] if self.zero else []
        extra += ["sp"] if self.sp and self.tp > 1 else []
        extra += [self.cp_kind] if self.cp > 1 else []
        extra += [f"m{self.microbatches}"] if self.microbatches > 1 else []
        extra += ["recompute"] if self.recompute != "none" else []
        extra += ["fp16"] if self.dtype == "Half" else []
        extra += ["one step"] if self.steps == 1 else []
        extra += [self.model.name] if self.model.name not in ("small", "moe") else []
        extra += [k if v is True else f"{k}={v}" for k, v in self.options]
        extra += self.writing.differences()
        return "-".join([self.framework, *(parts or ["world1"]), *extra])

    @classmethod
    def parse(cls, framework: str, layout: str, **changes: Any) -> Spec:
        """A spec from a layout like ``tp2-cp1-pp4-dp2-ep2-vp2-m8-sp-zero1`` with the framework's own defaults.

        Raises:
            ValueError: an unknown word, or degrees that do not fit.
        """
        degrees: dict[str, Any] = {}
        for word in filter(None, layout.lower().split("-")):
            if word == "sp":
                degrees["sp"] = True
                continue
            match = re.fullmatch(r"([a-z]+)(\d+)", word)
            name = _WORDS.get(match.group(1)) if match else None
            if match is None or name is None:
                raise ValueError(f"layout {layout!r}: {word!r} is not one of {', '.join(_WORDS)} with a number, or sp")
            degrees[name] = int(match.group(2))
        return with_defaults(cls(framework), {**degrees, **changes})


_WORDS = {
    **{word: word for word in ("tp", "cp", "pp", "dp", "ep", "etp", "zero")},
    "vp": "virtual",
    "m": "microbatches",
    "mbs": "micro_batch",
    "rep": "dp_replicate",
}


def with_defaults(spec: Spec, degrees: dict[str, Any]) -> Spec:
    """Fill what was not said with what the framework does by default."""
    said = dict(degrees)
    framework, pp = spec.framework, said.get("pp", 1)
    if pp > 1:
        said.setdefault("schedule", "interleaved_1f1b" if said.get("virtual", 1) > 1 else "1f1b")
        said.setdefault("microbatches", 2 * pp)
    if framework in ("megatron", "torchtitan") and said.get("tp", 1) > 1:
        said.setdefault("sp", True)
    zero = {"megatron": 1, "torchtitan": 3, "deepspeed": 1}.get(framework, 0)
    said.setdefault("zero", zero)
    if said.get("ep", 1) > 1 and "model" not in said:
        said["model"] = MODELS["moe"]
    if framework == "torchtitan" and said.get("cp", 1) > 1:
        said.setdefault("cp_kind", "torch_ring_all_gather")
    if framework in ("deepspeed", "hf") and said.get("cp", 1) > 1:
        said.setdefault("cp_kind", "ulysses")
    if framework == "inference":
        said.setdefault("steps", 8)
        said.update(schedule=None, microbatches=1)
    stages = pp * said.get("virtual", 1)
    model = said.get("model", spec.model)
    if model.layers % stages and "model" not in degrees:
        said["model"] = replace(model, layers=stages * max(1, round(model.layers / stages)))
    known = {f.name for f in fields(Spec)}
    unknown = set(said) - known
    if unknown:
        raise ValueError(f"unknown settings: {', '.join(sorted(unknown))}")
    return replace(spec, **said)
