"""Expert parallelism: where tokens go, and the exchanges of each framework.

Megatron-LM (megatron/core/transformer/moe/token_dispatcher.py), torchtitan (torchtitan/distributed/expert_parallel.py),
DeepSpeed (deepspeed/moe/sharded_moe.py).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from benchmarks.synthesis import messages
from benchmarks.synthesis.compute import Compute
from benchmarks.synthesis.groups import Group
from benchmarks.synthesis.program import Program
from benchmarks.synthesis.spec import Spec


@lru_cache(maxsize=4096)
def _counts(seed: int, step: int, layer: int, microbatch: int, source: int, assignments: int, experts: int) -> bytes:
    """Tokens of one rank for every expert: skewed by layer, different in every step."""
    weights = np.random.default_rng((seed, 7, layer)).dirichlet(np.full(experts, 8.0))
    chance = np.random.default_rng((seed, step, layer, microbatch, source))
    return chance.multinomial(assignments, weights).astype(np.int64).tobytes()


@dataclass(frozen=True)
class Routing:
    """How many rows a rank sends to and gets from every member of its expert group."""

    out: tuple[int, ...]
    back: tuple[int, ...]


def route(spec: Spec, group: Group, rank: int, at: tuple[int, int, int], assignments: int) -> Routing:
    """The splits of one layer of one microbatch; ``at`` = step, layer, microbatch."""
    experts, n = spec.model.experts, group.size

    def rows(source: int) -> list[int]:
        flat = np.frombuffer(_counts(spec.seed, *at, source, assignments, experts), dtype=np.int64)
        return _hot([int(v) for v in flat.reshape(n, experts // n).sum(axis=1)], spec)

    ranks = list(group.ranks)
    me = ranks.index(rank)
    return Routing(tuple(rows(rank)), tuple(rows(source)[me] for source in ranks))


def _hot(rows: list[int], spec: Spec) -> list[int]:
    """With the option ``hot=<factor>``, the first rank of the group gets so many times the rows."""
    return [round(rows[0] * float(spec.option("hot", 1.0))), *rows[1:]]


class Experts:
    """All experts here: only compute."""

    def __init__(self, program: Program, compute: Compute, spec: Spec, tokens: int) -> None:
        """``tokens``: of one microbatch on this rank at the router."""
        self.p, self.compute, self.spec, self.tokens = program, compute, spec, tokens

    def forward(self, at: tuple[int, int, int]) -> None:
        """Route and compute."""
        del at
        self.compute.experts(self.tokens * self.spec.model.topk, self.spec.model.experts)

    def backward(self, at: tuple[int, int, int]) -> None:
        """Twice the products."""
        self.forward(at)
        self.forward(at)


class MegatronAllToAll(Experts):
    """Counts gathered over tp x ep, tokens and probabilities exchanged, results back."""

    def __init__(
        self,
        program: Program,
        compute: Compute,
        spec: Spec,
        tokens: int,
        ep: Group,
        tp_ep: Group,
        etp: Group | None,
        balanced: Group | None = None,
    ) -> None:
        """``balanced``: the ranks over which the load of experts is averaged for the auxiliary loss."""
        super().__init__(program, compute, spec, tokens)
        self.ep, self.tp_ep, self.etp, self.balanced = ep, tp_ep, etp, balanced

    def _exchange(self, out: tuple[int, ...], back: tuple[int, ...], width: int, dtype: str) -> None:
        self.p.collective(messages.all_to_all_v(self.ep, out, back, width, dtype))

    def _inside(self, rows: int, backward: bool) -> None:
        """Expert tensor parallelism: tokens of all its ranks gathered, results scattered."""
        if self.etp is not None and self.etp.size > 1:
            shard = rows * self.spec.model.hidden
            self.p.collective(messages.all_gather(self.etp, shard, self.spec.dtype))
        n = self.etp.size if self.etp is not None else 1
        for _ in range(2 if backward else 1):
            self.compute.experts(rows * n, self.spec.model.experts // self.ep.size, n)
        if self.etp is not None and self.etp.size > 1:
            self.p.collective(messages.reduce_scatter(self.etp, rows * self.spec.model.hidden, self.spec.dtype))

    def forward(self, at: tuple[int, int, int]) -> None:
        """Dispatch, compute, combine."""
        spec, h = self.spec, self.spec.model.hidden
        to = route(spec, self.ep, self.p.rank, at, self.tokens * spec.model.topk)
        if self.balanced is not None and self.balanced.size > 1:
            self.p.collective(messages.all_reduce(self.balanced, spec.model.experts, "Long"))
        self.p.collective(messages.all_gather(self.tp_ep, spec.model.experts, "Long"))
        self._exchange(to.out, to.back, h, spec.dtype)
        self._exchange(to.out, to.back, 1, spec.option("probs_dtype", spec.dtype))
        self._inside(sum(to.back), backward=False)
        self._exchange(to.back, to.out, h, spec.dtype)

    def backward(self, at: tuple[int, int, int]) -> None:
        """The reverse of both."""
        spec, h = self.spec, self.spec.model.hidden
        to = route(spec, self.ep, self.p.rank, at, self.tokens * spec.model.topk)
        self._exchange(to.out, to.back, h, spec.dtype)
        self._inside(sum(to.back), backward=True)
        self._exchange(to.back, to.out, 1, spec.option("probs_dtype", spec.dtype))
        self._exchange(to.back, to.out, h, spec.dtype)


class MegatronAllGather(Experts):
    """Everything gathered over tp x ep, results scattered: routing map, probabilities, hidden states."""

    def __init__(self, program: Program, compute: Compute, spec: Spec, tokens: int, tp_ep: Group) -> None:
        super().__init__(program, compute, spec, tokens)
        self.tp_ep = tp_ep

    def _products(self, times: int) -> None:
        rows = self.tokens * self.spec.model.topk
        for _ in range(times):
            self.compute.experts(rows, self.spec.model.experts // self.spec.ep)

    def forward(self, at: tuple[int, int, int]) -> None:
        """Three gathers, one scatter."""
        del at
        e, h, dtype = self.spec.model.experts, self.spec.model.hidden, self.spec.dtype
        self.p.collective(messages.all_gather(self.tp_ep, self.tokens * e, "Bool"))
        self.p.collective(messages.all_gather(self.tp_ep, self.tokens * e, dtype))
        self.p.collective(messages.all_gather(self.tp_ep, self.tokens * h, dtype))
        self._products(1)
        self.p.collective(messages.reduce_scatter(self.tp_ep, self.tokens * h, dtype))

    def backward(self, at: tuple[int, int, int]) -> None:
        """The reverse: one gather, scatters of hidden states and probabilities."""
        del at
        e, h, dtype = self.spec.model.experts, self.spec.model.hidden, self.spec.dtype
        self.p.collective(messages.all_gather(self.tp_ep, self.tokens * h, dtype))
        self._products(2)
        self.p.collective(messages.reduce_scatter(self.tp_ep, self.tokens * h, dtype))
        self.p.collective(messages.reduce_scatter(self.tp_ep, self.tokens * e, dtype))


class Torchtitan(Experts):
    """Counts exchanged, tokens out, tokens back; functional collectives."""

    def __init__(self, program: Program, compute: Compute, spec: Spec, tokens: int, ep: Group) -> None:
        super().__init__(program, compute, spec, tokens)
        self.ep = ep

    def _exchange(self, out: tuple[int, ...], back: tuple[int, ...]) -> None:
        h, dtype = self.spec.model.hidden, self.spec.dtype
        message = messages.all_to_all_v(self.ep, out, back, h, dtype, functional=True)
        self.p.wait(self.p.collective(message, is_async=True))

    def forward(self, at: tuple[int, int, int]) -> None:
        """Counts, dispatch, compute, combine."""
        spec = self.spec
        to = route(spec, self.ep, self.p.rank, at, self.tokens * spec.model.topk)
        counts = messages.all_to_all(self.ep, spec.model.experts, "Long", new=True, functional=True)
        self.p.wait(self.p.collective(counts, is_async=True))
        self._exchange(to.out, to.back)
        self.compute.experts(sum(to.back), spec.model.experts // self.ep.size)
        self._exchange(to.back, to.out)

    def backward(self, at: tuple[int, int, int]) -> None:
        """The gradients of both exchanges."""
        spec = self.spec
        to = route(spec, self.ep, self.p.rank, at, self.tokens * spec.model.topk)
        self._exchange(to.out, to.back)
        for _ in range(2):
            self.compute.experts(sum(to.back), spec.model.experts // self.ep.size)
        self._exchange(to.back, to.out)


class DeepSpeed(Experts):
    """Equal parts of a fixed capacity, whatever the router says."""

    def __init__(self, program: Program, compute: Compute, spec: Spec, tokens: int, ep: Group) -> None:
        super().__init__(program, compute, spec, tokens)
        self.ep = ep

    def _exchange(self) -> None:
        spec = self.spec
        factor = spec.option("capacity_factor", 1.0)
        capacity = -(-int(factor * spec.model.topk * self.tokens) // spec.model.experts)
        shape = (spec.model.experts, capacity, spec.model.hidden)
        n = shape[0] * shape[1] * shape[2]
        new = spec.writing.release >= (2, 8)
        self.p.collective(messages.all_to_all(self.ep, n, spec.dtype, new=new, shape=shape))

    def forward(self, at: tuple[int, int, int]) -> None:
        """There and back."""
        del at
        self._exchange()
        self.compute.experts(self.tokens * self.spec.model.topk, self.spec.model.experts // self.ep.size)
        self._exchange()

    def backward(self, at: tuple[int, int, int]) -> None:
        """The same for gradients."""
        del at
        self._exchange()
        for _ in range(2):
            self.compute.experts(self.tokens * self.spec.model.topk, self.spec.model.experts // self.ep.size)
        self._exchange()
