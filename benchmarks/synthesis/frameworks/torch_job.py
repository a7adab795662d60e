"""What PyTorch's own parallelisms make of a rank: DTensor, FSDP2 or DDP, context parallelism, pipelining.

torch/distributed/{tensor/parallel, fsdp/_fully_shard, tensor/experimental, pipelining} as torchtitan and accelerate put
them together; the meshes and the end of the step are the callers'.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

from benchmarks.synthesis import layers, messages, schedules
from benchmarks.synthesis.compute import Compute
from benchmarks.synthesis.context import context
from benchmarks.synthesis.ddp import Replicated
from benchmarks.synthesis.experts import Experts, Torchtitan
from benchmarks.synthesis.fsdp import FullyShard, Unit
from benchmarks.synthesis.groups import Group
from benchmarks.synthesis.layers import Chunk, Layers, chunks
from benchmarks.synthesis.program import Idle, Program, Synchronize
from benchmarks.synthesis.schedules import Act
from benchmarks.synthesis.spec import Spec
from benchmarks.synthesis.tensor import AsyncTensor, DTensor, DTensorSequence, Tensor


@dataclass(frozen=True)
class Groups:
    """The groups that calls go to."""

    pp: Group
    cp: Group
    tp: Group
    loss: Group  # dp x cp
    replicate: Group
    shard: Group  # dp_shard x cp
    expert_shard: Group
    ep: Group
    small: Group | None = None  # of reshard_after_forward=<int>


class TorchJob(Layers):
    """One rank of a job built from PyTorch's parallelisms."""

    optimizer = "AdamW"

    def __init__(self, spec: Spec, rank: int, g: Groups, own: Sequence[Group], count: int) -> None:
        self.g = g
        program = Program(rank, groups=tuple(own), group_count=count)
        compute = Compute(program, spec.model, spec.tokens, spec.tp)
        shape = (spec.model.seq // spec.cp, spec.micro_batch, spec.model.hidden)
        sequence = AsyncTensor if spec.option("async_tp", False) else DTensorSequence
        style = Tensor if spec.tp == 1 else sequence if spec.sp else DTensor
        tensor = style(program, g.tp, shape, spec.dtype)
        super().__init__(program, spec, compute, tensor, context(program, g.cp, compute, spec), None)
        if spec.model.experts:
            kind = Torchtitan if spec.ep > 1 else None
            rows = self.rows
            self.experts = kind(program, compute, spec, rows, g.ep) if kind else Experts(program, compute, spec, rows)
        self.place = list(g.pp.ranks).index(rank)
        self.chunks = chunks(spec, self.place)
        replicate = g.replicate if spec.dp_replicate > 1 else None
        self.fsdp = FullyShard(program, spec, g.shard, replicate, g.expert_shard, g.small) if self.sharded else None
        self.ddp = None if spec.zero else Replicated(program, spec, g.loss, self.chunks)
        self.units = [unit for chunk in self.chunks for unit in self._units(chunk)]

    @property
    def sharded(self) -> bool:
        """Whether parameters are sharded at all."""
        return self.spec.zero > 0 and self.spec.dp * self.spec.cp > 1

    @property
    def reshards(self) -> bool:
        """Not under a pipeline, unless asked for (``reshard_after_forward: default``)."""
        return bool(self.spec.option("reshard", self.spec.pp == 1 and self.spec.zero == 3))

    def _units(self, chunk: Chunk) -> list[Unit]:
        """Embedding, layers (experts apart), norm with head; the last is kept for backward."""
        spec, found = self.spec, []
        table = spec.model.vocab * spec.model.hidden // spec.tp
        if chunk.first:
            found.append(Unit("tok_embeddings", table, self.reshards))
        for layer in chunk.layers:
            found.append(Unit(f"layers.{layer}", layers.dense_layer_params(spec, layer), self.reshards))
            if spec.model.is_moe(layer):
                experts = layers.expert_layer_params(spec, layer)
                found.append(Unit(f"layers.{layer}.moe.experts", experts, self.reshards, expert=True))
        if chunk.last:
            found.append(Unit("norm, output", table + spec.model.hidden, reshard=False))
        return found

    def unit(self, name: str) -> Unit | None:
        """A unit by name, where this rank has it."""
        return next((u for u in self.units if u.name == name), None)

    def step(self, step: int) -> None:
        """One training step."""
        with self.p.mark(f"ProfilerStep#{step + 5}"):
            self.p.add(Idle(600.0))
            self.begin()
            if self.ddp is not None and self.spec.option("buffers", False):
                self.ddp.broadcast_buffers()
            for acts in self._plan():
                self._do(acts, step)
            if self.fsdp is not None:
                self.fsdp.finish()
            if self.ddp is not None:
                self.ddp.finish()
            self.clip()
            with self.p.mark(f"Optimizer.step#{self.optimizer}.step"):
                self.compute.adam(self._owned())
            self.log()
            self.p.add(Synchronize())
        if self.fsdp is not None:
            self.fsdp.whole.clear()

    def begin(self) -> None:
        """What is communicated before the first forward."""

    def clip(self) -> None:
        """The norm of the gradients."""

    def log(self) -> None:
        """What is communicated after the optimizer."""

    def _owned(self) -> int:
        return sum(u.parameters for u in self.units) // (self.g.shard.size if self.fsdp is not None else 1)

    def _plan(self) -> list[tuple[Act, ...]]:
        spec, m = self.spec, self.spec.microbatches
        if spec.pp == 1:
            return [(Act(kind, 0, i),) for i in range(m) for kind in "FB"]
        if spec.virtual == 1 and spec.schedule in ("1f1b", "gpipe"):
            return schedules.single_stage(spec.schedule, self.place, spec.pp, m)
        plan = schedules.with_transfers(spec.schedule or "1f1b", spec.pp, spec.virtual, m)
        return [(act,) for act in plan[self.place]]

    def _do(self, acts: tuple[Act, ...], step: int) -> None:
        with self._action(acts):
            for act in acts[0].parts or acts[:1]:
                if act.kind == "F":
                    self._forward(self._chunk(act), step, act.microbatch)
                elif act.kind in ("B", "I"):
                    with self.p.backward_thread():
                        self._backward(self._chunk(act), step, act.microbatch, act.kind == "B")
                elif act.kind == "W":
                    with self.p.backward_thread():
                        self._weights(self._chunk(act), act.microbatch)
                else:
                    self._transfer(acts)

    def _action(self, acts: tuple[Act, ...]) -> AbstractContextManager[None]:
        """The profiler's range: schedules of several stages mark every action, GPipe forwards and backwards."""
        if self.spec.pp > 1 and len(self.chunks) > 1:
            return self.p.mark(f"PP:{acts[0]}")
        if self.spec.schedule == "gpipe" and acts[0].kind in "FB":
            return self.p.mark(f"{'Forward' if acts[0].kind == 'F' else 'Backward'} {acts[0].microbatch}")
        return nullcontext()

    def _chunk(self, act: Act) -> Chunk:
        return next(c for c in self.chunks if c.stage == act.stage)

    def _transfer(self, acts: tuple[Act, ...]) -> None:
        """One by one, or where 1F1B alternates as one group; a receive is waited for, a send at the end."""
        n, pp, calls = self.tensor.shard, self.g.pp, []
        for act in acts:
            step = 1 if act.kind in ("SEND_F", "RECV_B") else -1
            there = schedules.home(self.spec.schedule or "1f1b", act.stage + step, self.spec.pp)
            make = messages.send if act.kind.startswith("SEND") else messages.receive
            calls.append(make(pp, pp.ranks[there], n, self.spec.dtype))
        place = self.p.launch(*calls, is_async=True, batched=len(calls) > 1)
        if any(act.kind.startswith("RECV") for act in acts):
            self.p.wait(place)

    def _forward(self, chunk: Chunk, step: int, microbatch: int) -> None:
        if chunk.first:
            self._before("tok_embeddings")
            self.compute.embedding()
            self.tensor.leave()
            self._after("tok_embeddings")
        for layer in chunk.layers:
            self._before(f"layers.{layer}")
            self._before(f"layers.{layer}.moe.experts")
            self.forward(layer, step, microbatch)
            self._after(f"layers.{layer}.moe.experts")
            self._after(f"layers.{layer}")
        if chunk.last:
            self._before("norm, output")
            self.compute.norm(self.rows)
            self.tensor.enter()
            self.compute.head()
            self._loss()
            self._after("norm, output")

    def _loss(self) -> None:
        """Loss parallel: three all-reduces of one value per token."""
        for _ in range(3):
            self.compute.loss()
            if self.spec.tp > 1 and self.spec.option("loss_parallel", True):
                self.p.wait(
                    self.p.collective(
                        messages.all_reduce(self.g.tp, self.spec.tokens, "Float", functional=True), is_async=True
                    )
                )

    def _before(self, name: str) -> None:
        unit = self.unit(name)
        if unit is not None and self.fsdp is not None:
            self.fsdp.before_forward(unit)

    def _after(self, name: str) -> None:
        unit = self.unit(name)
        if unit is not None and self.fsdp is not None:
            self.fsdp.after_forward(unit)

    def _backward(self, chunk: Chunk, step: int, microbatch: int, wgrad: bool) -> None:
        own = self._units(chunk)
        if chunk.last:
            self._unit_start(own, "norm, output")
            with self.autograd("Linear"):
                self.tensor.enter_backward(self.compute.head, self.compute.head if wgrad else _nothing)
                self.compute.norm(self.rows)
            self._norm_gradient(1)
            self._unit_end("norm, output", microbatch, wgrad)
            self._passed(chunk, "head", microbatch)
        for layer in reversed(chunk.layers):
            self._unit_start(own, f"layers.{layer}")
            self._unit_start(own, f"layers.{layer}.moe.experts")
            self.backward(layer, step, microbatch, wgrad)
            self._norm_gradient(2)
            self._unit_end(f"layers.{layer}.moe.experts", microbatch, wgrad)
            self._unit_end(f"layers.{layer}", microbatch, wgrad)
            self._passed(chunk, str(layer), microbatch)
        if chunk.first:
            self._unit_start(own, "tok_embeddings")
            with self.autograd("Embedding"):
                self.tensor.leave_backward()
                self.compute.embedding()
            self._unit_end("tok_embeddings", microbatch, wgrad)
            self._passed(chunk, "embedding", microbatch)

    def _passed(self, chunk: Chunk, where: str, microbatch: int) -> None:
        """DDP reduces in the last microbatch only (`no_sync` before), or in each where so asked."""
        last = microbatch == self.spec.microbatches - 1 or self.spec.option("sync_always", False)
        if self.ddp is not None and last:
            with self.autograd("AccumulateGrad"):
                self.ddp.reached(chunk, where)

    def _weights(self, chunk: Chunk, microbatch: int) -> None:
        for layer in reversed(chunk.layers):
            self.weights(layer)
        if microbatch == self.spec.microbatches - 1 and self.fsdp is not None:
            for unit in reversed(self._units(chunk)):
                self.fsdp.after_backward(unit)

    def _norm_gradient(self, count: int) -> None:
        """Gradients of replicated norm weights are summed over tensor-parallel ranks, one by one."""
        if self.spec.tp > 1 and self.spec.sp:
            for _ in range(count):
                message = messages.all_reduce(self.g.tp, self.spec.model.hidden, self.spec.dtype, functional=True)
                self.p.wait(self.p.collective(message, is_async=True))

    def _unit_start(self, own: list[Unit], name: str) -> None:
        place = next((i for i, u in enumerate(own) if u.name == name), None)
        if place is not None and self.fsdp is not None:
            following = own[place - 1] if place else None
            self.fsdp.before_backward(own[place], following)

    def _unit_end(self, name: str, microbatch: int, wgrad: bool) -> None:
        """Without a pipeline every microbatch reduces; with one only the last, and parameters stay."""
        unit = self.unit(name)
        if unit is None or self.fsdp is None:
            return
        last = microbatch == self.spec.microbatches - 1
        self.fsdp.after_backward(unit, reduce=wgrad and (self.spec.pp == 1 or last), reshard=self.reshards or last)


def _nothing() -> None:
    """No weight gradient here."""
