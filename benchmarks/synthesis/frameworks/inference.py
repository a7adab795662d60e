"""Inference servers: vLLM (vllm/distributed/parallel_state.py, device_communicators) and SGLang.

One step is one forward pass over the running batch: two all-reduces per layer of [tokens, hidden], one after the
embedding, the logits gathered at the end; no backward, no optimizer. Decode steps run as CUDA graphs with all-reduce
kernels of the server's own; longer ones through NCCL called by ctypes (pynccl), which c10d never sees. Messages of a
pipeline carry hidden states and residual, a slice per tensor-parallel rank, gathered on arrival. With data-parallel
attention tokens go to experts through DeepEP.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

from benchmarks.synthesis import messages
from benchmarks.synthesis.compute import Compute
from benchmarks.synthesis.groups import Group, Mesh, Registry
from benchmarks.synthesis.layers import Chunk, chunks
from benchmarks.synthesis.program import Idle, Message, Program, Synchronize
from benchmarks.synthesis.spec import Spec

ALL_REDUCE = "void {owner}::cross_device_reduce_{stages}<__nv_bfloat16, {n}>({owner}::RankData*, {owner}::RankSignals)"
DISPATCH = "void deep_ep::internode_ll::dispatch<true, false, {hidden}>(void*, void*, int*, long*, int*, int*)"
COMBINE = "void deep_ep::internode_ll::combine<false, {hidden}, 9>(void*, void*, int*, void*, void const*, long const*)"


@dataclass(frozen=True)
class Groups:
    """The groups that calls go to."""

    tp: Group
    pp: Group
    dp: Group
    ep: Group


def groups(registry: Registry, spec: Spec) -> Groups:
    """World, tensor, pipeline, data, expert; each followed by its Gloo twin."""
    mesh = Mesh({"tp": spec.tp, "pp": spec.pp, "dp": spec.dp})
    for backend in (registry.backend, "cpu:gloo"):
        registry.next("undefined", range(spec.world), backend=backend)
    made = {}
    for name, dims in (("tp", ("tp",)), ("pp", ("pp",)), ("dp", ("dp",)), ("ep", ("tp", "dp"))):
        ranks, index, total = mesh.members(registry.rank, dims), mesh.index(registry.rank, dims), mesh.count(dims)
        base = registry.count + 2 * index
        made[name] = Group(str(base), "undefined", ranks, registry.backend)
        registry.own += [made[name], Group(str(base + 1), "undefined", ranks, "cpu:gloo")]
        registry.skip(2 * total)
    return Groups(**made)


class Server:
    """One rank of an inference job."""

    def __init__(self, spec: Spec, rank: int) -> None:
        registry = Registry(rank, spec.world)
        self.g = groups(registry, spec)
        self.p = Program(rank, groups=tuple(registry.own), group_count=registry.count, unmarked=True)
        self.spec = spec
        self.owner = spec.option("server", "vllm")
        self.way = spec.option("comm", "custom")  # custom | nccl | c10d
        self.place = list(self.g.pp.ranks).index(rank)
        self.chunk: Chunk = chunks(spec, self.place)[0]

    def step(self, step: int) -> None:
        """One pass over the running batch."""
        spec = self.spec
        chance = random.Random(f"{spec.seed}:{step}:{self.g.tp.ranks[0] if spec.dp > 1 else 0}")
        tokens = spec.option("prefill", 0) or chance.choice((16, 24, 32, 48, 64))
        self.compute = Compute(self.p, spec.model, tokens, spec.tp)
        self.p.add(Idle(900.0))
        graph = bool(spec.option("graph", False)) and spec.pp == 1
        if graph:
            with self.p.mark("cudaGraphLaunch", "graph"):
                self._pass(tokens)
        else:
            self._pass(tokens)
        self._logits(tokens)
        self.p.add(Synchronize())

    def _pass(self, tokens: int) -> None:
        spec, h = self.spec, self.spec.model.hidden
        if self.chunk.first:
            self.compute.embedding()
            self._sum(tokens * h, (tokens, h))
        else:
            self._arrive(tokens * h)
        for layer in self.chunk.layers:
            self.compute.norm(tokens)
            self.compute.qkv()
            self.compute.p.compute("void flash::flash_fwd_splitkv_kernel<Flash_fwd_kernel_traits>", 14.0, "vllm::attn")
            self.compute.projection()
            self._sum(tokens * h, (tokens, h))
            self.compute.norm(tokens)
            if spec.model.is_moe(layer) and spec.ep > 1:
                self._experts(tokens)
            else:
                self.compute.fc1()
                self.compute.activation()
                self.compute.fc2()
                self._sum(tokens * h, (tokens, h))
        if not self.chunk.last:
            self._leave(tokens * h)

    def _sum(self, n: int, shape: tuple[int, int]) -> None:
        """An all-reduce: the server's kernel where the message is small enough for it, else NCCL."""
        group = self.g.tp
        if group.size == 1:
            return
        message = messages.all_reduce(group, n, self.spec.dtype, shape=shape)
        if self.way == "c10d":
            self.p.collective(message)
            return
        kernel = None
        if self.way == "custom" and n * 2 <= 8 << 20:
            stages = "1stage" if n * 2 <= 512 << 10 else "2stage"
            kernel = ALL_REDUCE.format(owner=self.owner, stages=stages, n=group.size)
        self._hidden(message, kernel)

    def _hidden(self, message: Message, kernel: str | None) -> None:
        """A launch that c10d does not see, on the stream of the caller."""
        self.p.launch(message, stream="compute", recorded=False, sizes_known=False, kernel=kernel)

    def _experts(self, tokens: int) -> None:
        h = self.spec.model.hidden
        message = messages.all_to_all(self.g.ep, tokens * self.spec.model.topk * h, self.spec.dtype, new=True)
        self._hidden(message, DISPATCH.format(hidden=h))
        self.compute.experts(tokens * self.spec.model.topk, self.spec.model.experts // self.spec.ep)
        self._hidden(message, COMBINE.format(hidden=h))

    def _arrive(self, n: int) -> None:
        """Hidden states and residual from the stage before, slices put together."""
        before = self.g.pp.ranks[self.place - 1]
        for _ in range(2):
            share = n // self.spec.tp
            self.p.wait(self.p.launch(messages.receive(self.g.pp, before, share, self.spec.dtype), is_async=True))
            if self.spec.tp > 1:
                self.p.collective(messages.all_gather(self.g.tp, share, self.spec.dtype))

    def _leave(self, n: int) -> None:
        after = self.g.pp.ranks[self.place + 1]
        for _ in range(2):
            message = messages.send(self.g.pp, after, n // self.spec.tp, self.spec.dtype)
            self.p.launch(message, is_async=True)

    def _logits(self, tokens: int) -> None:
        if not self.chunk.last:
            return
        self.compute.head()
        if self.g.tp.size > 1:
            shard = min(tokens, 64) * self.spec.model.vocab // self.spec.tp
            message = messages.all_gather(self.g.tp, shard, self.spec.dtype)
            if self.way == "c10d":
                self.p.collective(message)
            else:
                self._hidden(message, None)


def program(spec: Spec, rank: int) -> Program:
    """All steps of one rank."""
    job = Server(spec, rank)
    for step in range(spec.steps):
        job.step(step)
    return job.p
