"""DeepSpeed: ZeRO 1 to 3, Ulysses, mixture of experts, pipeline (deepspeed/runtime/zero/stage_1_and_2.py, stage3.py,
sequence/layer.py, moe/sharded_moe.py, runtime/pipe/engine.py).

ZeRO-1 and 2 all-reduce gradient buckets, 1 at the accumulation boundary, 2 in every microbatch, and gather parameters
after the optimizer; ZeRO-3 gathers parameters where they are used and scatters gradients in every microbatch. Groups
have no descriptions; pipeline messages go through the default group.
"""

from __future__ import annotations

from benchmarks.synthesis import layers, messages, schedules
from benchmarks.synthesis.compute import Compute
from benchmarks.synthesis.context import context
from benchmarks.synthesis.ddp import buckets
from benchmarks.synthesis.experts import DeepSpeed as CapacityExperts
from benchmarks.synthesis.experts import Experts
from benchmarks.synthesis.groups import Group, Mesh, Registry
from benchmarks.synthesis.layers import Chunk, Layers, chunks, tensors
from benchmarks.synthesis.program import Idle, Program, Synchronize
from benchmarks.synthesis.schedules import Act
from benchmarks.synthesis.spec import Spec
from benchmarks.synthesis.tensor import MegatronTensor, Tensor

PERSISTENT = 100_000
"""`stage3_param_persistence_threshold`: smaller tensors stay whole."""


class DeepSpeed(Layers):
    """One rank of a DeepSpeed job."""

    def __init__(self, spec: Spec, rank: int) -> None:
        registry = Registry(rank, spec.world)
        self._groups(registry, spec)
        program = Program(rank, groups=tuple(registry.own), group_count=registry.count)
        compute = Compute(program, spec.model, spec.tokens, spec.tp)
        shape = (spec.model.seq // spec.cp, spec.micro_batch, spec.model.hidden)
        tensor = (MegatronTensor if spec.tp > 1 else Tensor)(program, self.tp, shape, spec.dtype)
        super().__init__(program, spec, compute, tensor, context(program, self.seq, compute, spec), None)
        if spec.model.experts:
            capacity = CapacityExperts(program, compute, spec, self.rows, self.ep) if spec.ep > 1 else None
            self.experts = capacity or Experts(program, compute, spec, self.rows)
        self.place = list(self.pp.ranks).index(rank)
        self.chunks = chunks(spec, self.place)
        self.whole: set[str] = set()
        self.flying: dict[str, int] = {}
        self.reducing: list[int] = []

    def _groups(self, registry: Registry, spec: Spec) -> None:
        """The world and its clone, the pipeline's axes, the sequence mesh, expert groups; all undefined."""
        registry.own[0] = registry.default
        self.world = registry.default
        clone = registry.next("undefined", range(spec.world))
        mesh = Mesh({"model": spec.tp, "seq": spec.cp, "data": spec.dp, "pipe": spec.pp})
        none = Group("", "none", (registry.rank,))
        self.seq = self.tp = self.ep = self.expert_data = none
        self.pp = none
        if spec.pp > 1:
            self.pp = registry.along(mesh, ("pipe",), "undefined")
        self.data = self.world if spec.zero == 3 else clone
        if spec.pp * spec.tp > 1:
            self.data = registry.along(mesh, ("seq", "data"), "undefined")
        if spec.tp > 1:
            self.tp = registry.along(mesh, ("model",), "undefined")
        if spec.cp > 1:
            registry.device_mesh(mesh, "data", "mesh_data_parallel")
            self.seq = registry.device_mesh(mesh, "seq", "mesh_sequence_parallel")
        if spec.ep > 1:
            experts = Mesh({"ep": spec.ep, "edp": spec.world // (spec.ep * spec.pp), "pipe": spec.pp})
            self.expert_data = registry.along(experts, ("edp",), "undefined")
            self.ep = registry.along(experts, ("ep",), "undefined")

    @property
    def comm_dtype(self) -> str:
        """Gradients travel in the model's type, under Ulysses in float32."""
        return "Float" if self.spec.cp > 1 else self.spec.dtype

    def step(self, step: int) -> None:
        """One training step."""
        with self.p.mark(f"ProfilerStep#{step + 5}"):
            self.p.add(Idle(500.0))
            for act in self._plan():
                self._do(act, step)
            self._optimizer()
            self.p.add(Synchronize())
        self.whole.clear()

    def _plan(self) -> list[Act]:
        spec = self.spec
        if spec.pp == 1:
            return [Act(kind, 0, i) for i in range(spec.microbatches) for kind in "FB"]
        return schedules.with_transfers(spec.schedule or "1f1b", spec.pp, 1, spec.microbatches)[self.place]

    def _do(self, act: Act, step: int) -> None:
        chunk = self.chunks[0]
        if act.kind == "F":
            self._forward(chunk, step, act.microbatch)
        elif act.kind == "B":
            with self.p.backward_thread():
                self._backward(chunk, step, act.microbatch)
        else:
            peer = self.pp.ranks[self.place + (1 if act.kind in ("SEND_F", "RECV_B") else -1)]
            make = messages.send if act.kind.startswith("SEND") else messages.receive
            shape = (self.spec.micro_batch, self.spec.model.seq // self.spec.cp, self.spec.model.hidden)
            message = make(self.world, peer, self.tensor.shard, self.spec.dtype, shape=shape)
            self.p.wait(self.p.launch(message))

    # parameters of ZeRO-3

    def _units(self, chunk: Chunk) -> dict[str, int]:
        """Large parameters that are gathered together."""
        sizes: dict[str, int] = {}
        for where, n in tensors(self.spec, chunk):
            if n > PERSISTENT:
                sizes[where] = sizes.get(where, 0) + n
        return sizes

    def _gather(self, chunk: Chunk, where: str, following: str | None) -> None:
        if self.spec.zero < 3:
            return
        self._fetch(chunk, where)
        if following is not None:
            self._fetch(chunk, following)
        if where in self.flying:
            self.p.wait(self.flying.pop(where))
            self.whole.add(where)

    def _fetch(self, chunk: Chunk, where: str) -> None:
        n = self._units(chunk).get(where, 0)
        if n and where not in self.flying and where not in self.whole:
            message = messages.all_gather(self.world, -(-n // self.world.size), self.spec.dtype)
            self.flying[where] = self.p.launch(message, is_async=True, waits_compute=False)

    def _release(self, where: str) -> None:
        if not self.spec.option("keep_live", False):
            self.whole.discard(where)

    def _order(self, chunk: Chunk) -> list[str]:
        return [*(["embedding"] if chunk.first else []), *map(str, chunk.layers), *(["head"] if chunk.last else [])]

    def _forward(self, chunk: Chunk, step: int, microbatch: int) -> None:
        order = self._order(chunk)
        for where, following in zip(order, [*order[1:], None], strict=True):
            self._gather(chunk, where, following)
            if where == "embedding":
                self.compute.embedding()
                self.tensor.leave()
            elif where == "head":
                self.compute.norm(self.rows)
                self.compute.head()
                self.compute.loss()
            else:
                self.forward(int(where), step, microbatch)
            self._release(where)

    def _backward(self, chunk: Chunk, step: int, microbatch: int) -> None:
        order = self._order(chunk)[::-1]
        due = dict.fromkeys(order, 0)
        if self._reduces(microbatch):
            cap = self.spec.option("bucket", 5e8) * 4 / (1 << 20)
            for where, n in buckets(tensors(self.spec, chunk), "Float", cap, first=int(cap) << 20):
                due[where] += n
        for where, following in zip(order, [*order[1:], None], strict=True):
            self._gather(chunk, where, following)
            if where == "head":
                with self.autograd("Linear"):
                    self.compute.head()
                    self.compute.head()
            elif where == "embedding":
                with self.autograd("Embedding"):
                    self.compute.embedding()
            else:
                self.backward(int(where), step, microbatch)
            self._release(where)
            if due[where]:
                with self.autograd("AccumulateGrad"):
                    self._reduce(due[where])

    def _reduces(self, microbatch: int) -> bool:
        return self.spec.zero >= 2 or microbatch == self.spec.microbatches - 1

    def _reduce(self, n: int) -> None:
        group = self.data
        if group.size == 1:
            return
        if self.spec.zero == 3:
            message = messages.reduce_scatter(group, -(-n // group.size), self.comm_dtype)
        else:
            message = messages.all_reduce(group, n, self.comm_dtype)
        self.reducing.append(self.p.collective(message, is_async=True))

    def _optimizer(self) -> None:
        for place in self.reducing:
            self.p.wait(place)
        self.reducing = []
        spec, total = self.spec, sum(layers.stage_params(self.spec, c)[0] for c in self.chunks)
        experts = sum(layers.stage_params(spec, c)[1] for c in self.chunks)
        if experts and self.expert_data.size > 1:
            self.p.collective(messages.all_reduce(self.expert_data, experts, self.comm_dtype))
        if spec.zero:
            self.p.collective(messages.all_reduce(self.data, 1, "Byte"))
            self.p.collective(messages.all_reduce(self.data, 1, "Double" if spec.zero == 3 else "Float"))
        if spec.tp > 1:
            self.p.collective(messages.all_reduce(self.tp, 1, "Float"))
        if spec.pp > 1:
            self.p.collective(messages.all_reduce(self.pp, 1, "Float"))
        with self.p.mark("Optimizer.step#FusedAdam.step"):
            self.compute.adam(total // (self.data.size if spec.zero else 1))
        if spec.zero in (1, 2) and self.data.size > 1:
            self.p.collective(messages.all_gather(self.data, -(-total // self.data.size), spec.dtype))
        if spec.pp > 1:
            self.p.collective(messages.broadcast(self.pp, 2, "Float", root=self.pp.size - 1))


def program(spec: Spec, rank: int) -> Program:
    """All steps of one rank."""
    job = DeepSpeed(spec, rank)
    for step in range(spec.steps):
        job.step(step)
    return job.p
