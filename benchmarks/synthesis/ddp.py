"""Replicated data parallelism: torch's `DistributedDataParallel` (torch/csrc/distributed/c10d/reducer.cpp).

Gradients are all-reduced in buckets of 1 MiB, then 25 MiB, filled in the reverse order of the parameters and sent as
soon as the last gradient of one is there.
"""

from __future__ import annotations

from typing import TypeAlias

from benchmarks.synthesis import messages
from benchmarks.synthesis.groups import Group
from benchmarks.synthesis.layers import Chunk, tensors
from benchmarks.synthesis.links import ITEM
from benchmarks.synthesis.program import Program
from benchmarks.synthesis.spec import Spec

FIRST_BYTES, BUCKET_MIB = 1 << 20, 25


Sizes: TypeAlias = list[tuple[str, int]]
"""Where in the model, and how many elements."""


def buckets(sizes: Sizes, dtype: str, cap_mib: float, first: int = FIRST_BYTES) -> Sizes:
    """Tensors in reverse, put together up to the cap: (the place whose gradient completes it, elements)."""
    out: Sizes = []
    n, cap = 0, float(first)
    for where, size in reversed(sizes):
        n += size
        if n * ITEM[dtype] >= cap:
            out.append((where, n))
            n, cap = 0, cap_mib * (1 << 20)
    if n:
        out.append((sizes[0][0], n))
    return out


class Replicated:
    """The buckets of one rank's stages."""

    def __init__(self, program: Program, spec: Spec, group: Group, own: list[Chunk]) -> None:
        self.p, self.spec, self.group = program, spec, group
        cap = spec.option("bucket_mib", BUCKET_MIB)
        self.buckets = {c.stage: buckets(tensors(spec, c), spec.grad_dtype, cap) for c in own}
        self.flying: list[int] = []

    def broadcast_buffers(self) -> None:
        """`broadcast_buffers=True`: those of the first rank, before forward."""
        if self.group.size > 1:
            self.p.collective(messages.broadcast(self.group, self.spec.model.hidden // self.spec.model.heads, "Float"))

    def reached(self, chunk: Chunk, where: str) -> None:
        """Backward has passed a layer (or ``head``, ``embedding``): send what is complete."""
        for place, n in self.buckets[chunk.stage]:
            if place == where and self.group.size > 1:
                with self.p.mark("torch.distributed.ddp.reducer::copy_bucket_to_grad", "cpu_op"):
                    message = messages.all_reduce(self.group, n, self.spec.grad_dtype)
                    self.flying.append(self.p.collective(message, is_async=True))

    def finish(self) -> None:
        """Wait for all."""
        for place in self.flying:
            self.p.wait(place)
        self.flying = []
