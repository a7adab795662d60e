"""Forward and backward of the layers a pipeline stage holds, with whatever communicates inside them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from benchmarks.synthesis import schedules
from benchmarks.synthesis.compute import Compute
from benchmarks.synthesis.context import Context
from benchmarks.synthesis.experts import Experts
from benchmarks.synthesis.program import Program
from benchmarks.synthesis.spec import Spec
from benchmarks.synthesis.tensor import Tensor


@dataclass(frozen=True)
class Chunk:
    """The part of the model in one stage."""

    stage: int
    layers: tuple[int, ...]
    first: bool
    last: bool


def chunks(spec: Spec, rank: int) -> list[Chunk]:
    """The stages of a pipeline rank, layers divided evenly."""
    v = 2 if spec.schedule in ("zbv", "dualpipev") else spec.virtual
    count = spec.pp * v
    each, extra = divmod(spec.model.layers, count)
    starts = [0]
    for stage in range(count):
        starts.append(starts[-1] + each + (1 if stage < extra else 0))
    own = schedules.stages_of(spec.schedule or "1f1b", rank, spec.pp, v) if spec.pp > 1 else (0,)
    return [Chunk(s, tuple(range(starts[s], starts[s + 1])), s == 0, s == count - 1) for s in own]


class Layers:
    """Emits transformer layers; frameworks override the ends of the model and what surrounds a layer."""

    def __init__(
        self,
        program: Program,
        spec: Spec,
        compute: Compute,
        tensor: Tensor,
        context: Context,
        experts: Experts | None,
    ) -> None:
        self.p, self.spec, self.compute = program, spec, compute
        self.tensor, self.context, self.experts = tensor, context, experts

    @property
    def rows(self) -> int:
        """Token rows outside of the tensor-parallel layers."""
        return self.tensor.shard // self.spec.model.hidden

    def resize(self, length: int) -> None:
        """Microbatches of another length from here on."""
        self.tensor.resize(length)
        self.compute.tokens = length * self.spec.micro_batch
        if self.experts is not None:
            self.experts.tokens = self.rows

    @contextmanager
    def autograd(self, name: str) -> Iterator[None]:
        """The range of one backward node."""
        with self.p.mark(f"autograd::engine::evaluate_function: {name}Backward0", "cpu_op"):
            yield

    def attention(self) -> None:
        """The attention block."""
        self.compute.norm(self.rows)
        self.tensor.enter()
        self.compute.qkv()
        self.context.forward()
        self.compute.projection()
        self.tensor.leave()
        self.compute.elementwise(self.rows * self.spec.model.hidden)

    def feed_forward(self, layer: int, at: tuple[int, int, int]) -> None:
        """The dense block or the experts."""
        self.compute.norm(self.rows)
        moe = self.experts is not None and self.spec.model.is_moe(layer)
        if self.experts is not None and moe:
            self.experts.forward(at)
        if not moe or self.spec.option("shared_expert", False):
            self.tensor.enter()
            self.compute.fc1()
            self.compute.activation()
            self.compute.fc2()
            self.tensor.leave()
        self.compute.elementwise(self.rows * self.spec.model.hidden)

    def forward(self, layer: int, step: int, microbatch: int) -> None:
        """One layer."""
        self.attention()
        self.feed_forward(layer, (step, layer, microbatch))

    def backward(self, layer: int, step: int, microbatch: int, wgrad: bool = True) -> None:
        """One layer, the other way; with ``wgrad`` off only the gradient of the inputs."""
        at = (step, layer, microbatch)
        if self.spec.recompute == "full":
            with self.autograd("CheckpointFunction"):
                self.forward(layer, step, microbatch)
        with self.autograd("Linear"):
            moe = self.experts is not None and self.spec.model.is_moe(layer)
            if not moe or self.spec.option("shared_expert", False):
                self._dense_backward(wgrad)
            if self.experts is not None and moe:
                self.experts.backward(at)
            self.compute.norm(self.rows)
        with self.autograd("Linear"):
            self._attention_backward(wgrad)

    def weights(self, layer: int) -> None:
        """The postponed weight gradients of one layer."""
        with self.autograd("Linear"):
            if not (self.experts is not None and self.spec.model.is_moe(layer)):
                self.compute.fc2()
                self.compute.fc1()
            self.compute.projection()
            self.compute.qkv()

    def _dense_backward(self, wgrad: bool) -> None:
        c = self.compute
        self.tensor.leave_backward()
        c.fc2()
        if wgrad:
            c.fc2()
        c.activation()
        self.tensor.enter_backward(c.fc1, c.fc1 if wgrad else _nothing, 2 if self.spec.model.gated else 1)

    def _attention_backward(self, wgrad: bool) -> None:
        c = self.compute
        self.tensor.leave_backward()
        c.projection()
        if wgrad:
            c.projection()
        self.context.backward()
        self.tensor.enter_backward(c.qkv, c.qkv if wgrad else _nothing, 3)
        c.norm(self.rows)


def _nothing() -> None:
    """No weight gradient here."""


def stage_params(spec: Spec, chunk: Chunk) -> tuple[int, int]:
    """Dense and expert parameters of one (tp, pp) shard of a chunk; expert ones of one (ep, etp) rank."""
    return sum(dense_layer_params(spec, layer) for layer in chunk.layers) + end_params(spec, chunk), sum(
        expert_layer_params(spec, layer) for layer in chunk.layers
    )


def dense_layer_params(spec: Spec, layer: int) -> int:
    """Parameters of one layer outside of experts, on one tensor-parallel rank."""
    m = spec.model
    own = (m.attention_params + m.split_biases) // spec.tp + m.shared_params
    return own + (m.hidden * m.experts if m.is_moe(layer) else m.mlp_params // spec.tp)


def expert_layer_params(spec: Spec, layer: int) -> int:
    """Parameters of one layer's experts on one rank."""
    m = spec.model
    return m.experts // spec.ep * m.expert_params // spec.etp if m.is_moe(layer) else 0


def end_params(spec: Spec, chunk: Chunk) -> int:
    """Embedding and head."""
    table = spec.model.vocab * spec.model.hidden // spec.tp
    if chunk.first and chunk.last:
        return (1 if spec.model.tied else 2) * table + spec.model.norm_params
    return (table if chunk.first else 0) + (table + spec.model.norm_params if chunk.last else 0)


def small_params(spec: Spec, own: Sequence[Chunk]) -> int:
    """Norm weights (and routers) that every tensor-parallel rank holds whole."""
    m = spec.model
    layers = [layer for chunk in own for layer in chunk.layers]
    routers = sum(m.hidden * m.experts for layer in layers if m.is_moe(layer))
    return m.shared_params * len(layers) + routers + (m.norm_params if any(c.last for c in own) else 0)


def tensors(spec: Spec, chunk: Chunk) -> list[tuple[str, int]]:
    """The parameter tensors of a stage in the order of the modules: where each belongs, and its elements."""
    m, tp, found = spec.model, spec.tp, []
    table = m.vocab * m.hidden // tp
    if chunk.first:
        found.append(("embedding", table))
    for layer in chunk.layers:
        here = str(layer)
        sizes = [m.hidden, m.hidden * m.hidden // tp, m.hidden * m.kv_width // tp, m.hidden * m.kv_width // tp]
        sizes += [m.hidden * m.hidden // tp, m.hidden]
        if m.is_moe(layer):
            sizes += [m.hidden * m.experts]
        else:
            sizes += [m.hidden * m.ffn // tp] * (3 if m.gated else 2)
        found += [(here, n) for n in sizes]
    if chunk.last:
        found += [("head", m.hidden), ("head", table)]
    return found
