"""Megatron-LM: megatron/core/parallel_state.py for the groups, training.py and schedules.py for the step.

Groups in order of creation with their Gloo twins; tensor parallelism with synchronous calls on the group, gradients in
float32 buckets with coalesced calls; a distributed optimizer that gathers parameters where the next forward needs them.
"""

from __future__ import annotations

from benchmarks.synthesis import layers, messages, schedules
from benchmarks.synthesis.compute import Compute
from benchmarks.synthesis.context import Context, Hierarchical, context
from benchmarks.synthesis.experts import Experts, MegatronAllGather, MegatronAllToAll
from benchmarks.synthesis.frameworks.megatron_groups import groups
from benchmarks.synthesis.groups import Registry
from benchmarks.synthesis.layers import Chunk, Layers, chunks, small_params
from benchmarks.synthesis.program import Idle, Program, Synchronize
from benchmarks.synthesis.schedules import Act
from benchmarks.synthesis.spec import Spec
from benchmarks.synthesis.tensor import MegatronSequence, MegatronTensor, Tensor, UserBuffers


def _style(spec: Spec) -> type[Tensor]:
    """How tensor-parallel layers communicate."""
    if spec.tp == 1:
        return Tensor
    if not spec.sp:
        return MegatronTensor
    return UserBuffers if spec.option("userbuffers", False) else MegatronSequence


class Megatron(Layers):
    """One rank of a Megatron-LM job."""

    def __init__(self, spec: Spec, rank: int) -> None:
        registry = Registry(rank, spec.world, "cpu:gloo,cuda:nccl")
        self.g = g = groups(registry, spec)
        program = Program(rank, groups=tuple(registry.own), group_count=registry.count)
        compute = Compute(program, spec.model, spec.tokens, spec.tp)
        shape = (spec.model.seq // spec.cp, spec.micro_batch, spec.model.hidden)
        tensor = _style(spec)(program, g.tp, shape, spec.dtype)
        if isinstance(tensor, MegatronSequence) and spec.option("fp8", False):
            tensor.gathered = "Byte"
        if g.levels is not None:
            attention: Context = Hierarchical(program, *g.levels, compute, spec)
        else:
            attention = context(program, g.cp, compute, spec)
        super().__init__(program, spec, compute, tensor, attention, None)
        self.experts = self._experts() if spec.model.experts else None
        self.place = list(g.pp.ranks).index(rank)
        self.chunks = chunks(spec, self.place)
        self.reducing: list[int] = []
        self.gathered: set[int] = set()

    def _experts(self) -> Experts:
        spec, g, rows = self.spec, self.g, self.rows
        if spec.option("dispatcher", "alltoall") == "allgather":
            return MegatronAllGather(self.p, self.compute, spec, rows, g.tp_ep)
        if spec.ep * spec.etp == 1:
            return Experts(self.p, self.compute, spec, rows)
        return MegatronAllToAll(self.p, self.compute, spec, rows, g.ep, g.tp_ep, g.etp, g.tp_cp)

    @property
    def overlapped(self) -> bool:
        """Whether gradients and parameters travel beside compute."""
        return bool(self.spec.option("overlap", True))

    def buckets(self, chunk: Chunk, expert: bool) -> list[int]:
        """Elements per bucket: several only where they overlap, on the first stage's first chunk.

        megatron/core/distributed/distributed_data_parallel.py: bucketing is off for later stages and chunks.
        """
        total = layers.stage_params(self.spec, chunk)[expert]
        if not total:
            return []
        n = (self.g.expert_data if expert else self.g.data_cp).size
        size = self.spec.option("bucket", 40_000_000)
        divided = self.overlapped and self.place == 0 and chunk is self.chunks[0]
        count = max(1, round(total / size)) if divided else 1
        each = -(-total // (count * 64 * n)) * 64 * n
        return [each] * (count - 1) + [max(n, -(-(total - each * (count - 1)) // n) * n)]

    def step(self, step: int) -> None:
        """One training step."""
        with self.p.mark(f"ProfilerStep#{step + 5}"):
            self.p.add(Idle(400.0))
            self.gathered = set()
            if self.overlapped:
                self._prefetch(self.chunks[0])
            for acts in self._plan():
                self._do(acts, step)
            self._finish(step)

    def _plan(self) -> list[tuple[Act, ...]]:
        spec = self.spec
        m = spec.microbatches
        if spec.pp == 1:
            return schedules.single_stage("1f1b", 0, 1, m)
        if spec.virtual == 1 and spec.schedule in ("1f1b", "gpipe"):
            return schedules.single_stage(spec.schedule, self.place, spec.pp, m)
        plan = schedules.with_transfers(spec.schedule or "interleaved_1f1b", spec.pp, spec.virtual, m)
        return [(act,) for act in plan[self.place]]

    def _do(self, acts: tuple[Act, ...], step: int) -> None:
        if self.spec.option("varlen", False):
            self.resize(self.spec.length(step, acts[0].microbatch))
        if acts[0].kind == "F":
            self._forward(self._chunk(acts[0]), step, acts[0].microbatch)
        elif acts[0].kind in "BI":
            with self.p.backward_thread():
                self._backward(self._chunk(acts[0]), step, acts[0].microbatch)
        elif acts[0].kind != "W":
            self._transfer(acts, step)

    def _chunk(self, act: Act) -> Chunk:
        return next(c for c in self.chunks if c.stage == act.stage)

    def _transfer(self, acts: tuple[Act, ...], step_of_job: int) -> None:
        """Batched and waited for at once, or interleaved: each on its own, waited for where it is needed."""
        dtype, pp = self.spec.dtype, self.g.pp
        calls, shapes = [], []
        for act in acts:
            n = self._message(step_of_job, act)
            step = 1 if act.kind in ("SEND_F", "RECV_B") else -1
            peer = pp.ranks[(self.place + step) % pp.size]
            make = messages.send if act.kind.startswith("SEND") else messages.receive
            if self.spec.option("varlen", False):
                shapes.append(make(pp, peer, 3, "Long"))
            calls.append(make(pp, peer, n, dtype))
        if shapes:
            self.p.wait(self.p.launch(*shapes, is_async=True, batched=True))
        batched = self.spec.virtual == 1
        place = self.p.launch(*calls, is_async=True, batched=batched)
        if batched or acts[0].kind.startswith("RECV"):
            self.p.wait(place)
        if batched and self.spec.option("p2p_sync", False):
            self.p.add(Synchronize())

    def _message(self, step: int, act: Act) -> int:
        """Elements of an activation between stages: as many tokens as the microbatch has."""
        whole = self.spec.length(step, act.microbatch) * self.spec.micro_batch * self.spec.model.hidden
        return whole // self.spec.tp if self.spec.sp else whole

    def _batch(self, chunk: Chunk) -> None:
        """Tokens and labels broadcast inside the tensor-parallel group, as far as the stage needs them."""
        if self.spec.tp == 1:
            return
        n, shape = self.compute.tokens, (self.spec.micro_batch, self.compute.tokens // self.spec.micro_batch)
        words = ["Long", "Long", "Float", "Long"] if self.spec.pp == 1 else []
        if self.spec.pp > 1 and (chunk.first or chunk.last):
            words = ["Long", "Long"] if chunk.first else ["Long", "Float"]
        for dtype in words:
            self.p.collective(messages.broadcast(self.g.tp, n, dtype, shape=shape))

    def _prefetch(self, chunk: Chunk) -> None:
        """Gather the parameters of a chunk before its first forward (`overlap_param_gather`)."""
        if self.spec.zero != 1 or chunk.stage in self.gathered:
            return
        self.gathered.add(chunk.stage)
        places = [
            self.p.collective(
                messages.all_gather(group, n // group.size, self.spec.dtype, coalesced=True), is_async=True
            )
            for expert, group in ((False, self.g.intra), (True, self.g.expert_data))
            for n in self.buckets(chunk, expert)
        ]
        for place in places:
            self.p.wait(place)

    def _forward(self, chunk: Chunk, step: int, microbatch: int) -> None:
        if self.overlapped:
            self._prefetch(chunk)
        self._batch(chunk)
        if chunk.first:
            self.compute.embedding()
            self.tensor.leave()
        for layer in chunk.layers:
            self.forward(layer, step, microbatch)
        if chunk.last:
            self._loss()
        self._amax(len(chunk.layers))

    def _amax(self, count: int) -> None:
        """Delayed scaling: the largest values of all fp8 tensors (transformer_engine/pytorch/fp8.py)."""
        if self.spec.option("fp8", False):
            self.p.collective(messages.all_reduce(self.g.amax, 12 * count, "Float"))

    def _loss(self) -> None:
        """Head, vocabulary-parallel cross-entropy, the loss averaged over replicas."""
        self.compute.norm(self.rows)
        with self.tensor.ends_of_the_model():
            self.tensor.enter()
        self.compute.head()
        n = self.compute.tokens
        shape = (n // self.spec.micro_batch, self.spec.micro_batch)
        for _ in range(3):
            self.compute.loss()
            self.p.collective(messages.all_reduce(self.g.tp, n, "Float", shape=shape))
        self.p.collective(messages.all_reduce(self.g.data_cp, 2, "Float"))

    def _backward(self, chunk: Chunk, step: int, microbatch: int) -> None:
        last = microbatch == self.spec.microbatches - 1
        if chunk.last:
            with self.autograd("LinearWithGradAccumulationAndAsyncCommunication"):
                with self.tensor.ends_of_the_model():
                    self.tensor.enter_backward(self.compute.head, self.compute.head)
                self.compute.norm(self.rows)
        buckets = [(False, n) for n in self.buckets(chunk, False)] + [(True, n) for n in self.buckets(chunk, True)]
        per_layer = -(-len(buckets) // max(1, len(chunk.layers)))
        for layer in reversed(chunk.layers):
            self.backward(layer, step, microbatch)
            if last and self.overlapped:
                ready, buckets = buckets[:per_layer], buckets[per_layer:]
                with self.autograd("AccumulateGrad"):
                    self._reduce(ready)
        if chunk.first:
            with self.autograd("Embedding"), self.tensor.ends_of_the_model():
                self.tensor.leave_backward()
                self.compute.embedding()
        self._amax(len(chunk.layers))
        if last:
            self._reduce(buckets)

    def _reduce(self, buckets: list[tuple[bool, int]]) -> None:
        """Gradients of some buckets: scattered to their owners, or all-reduced without the distributed optimizer."""
        for expert, n in buckets:
            group = self.g.expert_data if expert else self.g.intra if self.spec.zero else self.g.data_cp
            dtype = self.spec.grad_dtype
            if not self.spec.zero:
                message = messages.all_reduce(group, n, dtype, coalesced=True)
            else:
                message = messages.reduce_scatter(group, n // group.size, dtype, coalesced=True)
            self.reducing.append(self.p.collective(message, is_async=True))
            if self.spec.zero and self.g.inter is not None and not expert:
                between = messages.all_reduce(self.g.inter, n // group.size, dtype, coalesced=True)
                self.reducing.append(self.p.collective(between, is_async=True))

    def _finish(self, step: int) -> None:
        """`finalize_model_grads`, the optimizer, what is logged."""
        for place in self.reducing:
            self.p.wait(place)
        self.reducing = []
        g, spec = self.g, self.spec
        if spec.sp and spec.tp > 1:
            self.p.collective(messages.all_reduce(g.tp, small_params(spec, self.chunks), spec.grad_dtype))
        if spec.model.tied and spec.pp > 1 and g.embedding is not None:
            table = spec.model.vocab * spec.model.hidden // spec.tp
            self.p.collective(messages.all_reduce(g.embedding, table, spec.grad_dtype))
        norm = g.optimizer if spec.zero else g.model
        if spec.dtype == "Half":  # a loss scaler looks for infinities
            self.p.collective(messages.all_reduce(norm, 1, "Float"))
        self.p.collective(messages.all_reduce(norm, 1, "Float"))
        own = sum(sum(layers.stage_params(spec, c)) for c in self.chunks) // (g.data_cp.size if spec.zero else 1)
        with self.p.mark("Optimizer.step#FusedAdam.step"):
            self.compute.adam(own)
        if not self.overlapped:
            for chunk in self.chunks:
                self._prefetch(chunk)
        for _ in range(2):
            self.p.collective(messages.all_reduce(g.model, 1, "Float"))
        self.p.add(Synchronize())
        if spec.option("timers", False) and step % 2:
            self.p.collective(messages.barrier(g.world, new=spec.writing.release >= (2, 8)))


def program(spec: Spec, rank: int) -> Program:
    """All steps of one rank."""
    job = Megatron(spec, rank)
    for step in range(spec.steps):
        job.step(step)
    return job.p
