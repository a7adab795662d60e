"""Context parallelism inside an attention layer.

TransformerEngine (transformer_engine/pytorch/attention/dot_product_attention/context_parallel.py): ring, all-gather and
all-to-all; PyTorch (torch/distributed/tensor/experimental/_attention.py): ring whose keys and values are gathered or
rotated with all-to-alls, gradients rotated in float32; DeepSpeed-Ulysses (deepspeed/sequence/layer.py).
"""

from __future__ import annotations

from benchmarks.synthesis import messages
from benchmarks.synthesis.compute import Compute
from benchmarks.synthesis.groups import Group
from benchmarks.synthesis.program import Message, Program
from benchmarks.synthesis.spec import Spec


class Context:
    """No context parallelism: attention over the local tokens."""

    def __init__(self, program: Program, group: Group | None, compute: Compute, spec: Spec) -> None:
        self.p, self.group, self.compute, self.spec = program, group, compute, spec
        self.n = group.size if group is not None else 1

    @property
    def q(self) -> int:
        """Elements of the queries."""
        return self.compute.tokens * self.spec.model.hidden // self.spec.tp

    @property
    def kv(self) -> int:
        """Elements of the keys (and of the values)."""
        return self.compute.tokens * self.spec.model.kv_width // self.spec.tp

    def forward(self) -> None:
        """Attention."""
        self.compute.attention()

    def backward(self) -> None:
        """Its gradient."""
        self.compute.attention(backward=True)

    def _message(self, exchange: Message) -> int:
        return self.p.collective(exchange)


class Ring(Context):
    """Point-to-point rounds: keys and values forward, with their gradients backward."""

    def _round(self, n: int) -> None:
        """Send to the next and receive from the previous, while attention runs on what is there."""
        assert self.group is not None
        ranks = self.group.ranks
        me = list(ranks).index(self.p.rank)
        following, before = ranks[(me + 1) % self.n], ranks[(me - 1) % self.n]
        out = messages.send(self.group, following, n, self.spec.dtype)
        back = messages.receive(self.group, before, n, self.spec.dtype)
        if self.n == 2:  # TransformerEngine batches where both are the same neighbour
            self._sent = [self.p.launch(out, back, is_async=True, batched=True)]
        else:
            pair = (out, back) if me % 2 == 0 else (back, out)
            self._sent = [self.p.launch(message, is_async=True) for message in pair]

    def forward(self) -> None:
        """A round less than there are ranks, each beside a part of the attention."""
        for step in range(self.n):
            if step < self.n - 1:
                self._round(2 * self.kv)
            self.compute.attention(share=1 / self.n)
            if step < self.n - 1:
                for place in self._sent:
                    self.p.wait(place)

    def backward(self) -> None:
        """Keys and values, then both with their gradients, at last the gradients home."""
        for step in range(self.n):
            if step == 0:
                size = 2 * self.kv
            elif step < self.n - 1:
                size = 4 * self.kv
            else:
                size = 2 * self.kv
            self._round(size)
            self.compute.attention(backward=True, share=1 / self.n)
            for place in self._sent:
                self.p.wait(place)


class AllGather(Context):
    """Keys and values gathered; their gradients scattered."""

    def _gather(self) -> None:
        assert self.group is not None
        for _ in range(2):
            self._message(messages.all_gather(self.group, self.kv, self.spec.dtype))

    def forward(self) -> None:
        """Gather, then attend."""
        self._gather()
        self.compute.attention()

    def backward(self) -> None:
        """Gather again, attend back, scatter."""
        assert self.group is not None
        self._gather()
        self.compute.attention(backward=True)
        for _ in range(2):
            self._message(messages.reduce_scatter(self.group, self.kv, self.spec.dtype))


class Ulysses(Context):
    """Heads for tokens and back."""

    def _exchange(self, n: int) -> None:
        assert self.group is not None
        new = self.spec.writing.release >= (2, 8)
        m, b = self.spec.model, self.spec.micro_batch
        width = m.hidden // m.heads
        tokens = self.compute.tokens
        shape = (self.n, b, tokens // b, n // (tokens * width * self.n), width)
        self._message(messages.all_to_all(self.group, n, self.spec.dtype, new=new, shape=shape))

    def inward(self) -> None:
        """Queries, keys, values (or their gradients)."""
        for n in (self.q, self.kv, self.kv):
            self._exchange(n)

    def outward(self) -> None:
        """The output (or its gradient)."""
        self._exchange(self.q)

    def forward(self) -> None:
        """Queries, keys, values; then the output."""
        self.inward()
        self.compute.attention()
        self.outward()

    def backward(self) -> None:
        """The gradient of the output; then of queries, keys, values."""
        self.outward()
        self.compute.attention(backward=True)
        self.inward()


class TorchRing(Context):
    """PyTorch's ring: gathered once or rotated by one-hot all-to-alls; gradients always rotated, in float32."""

    def _rotate(self, dtype: str) -> int:
        assert self.group is not None
        me = list(self.group.ranks).index(self.p.rank)
        n = 2 * self.kv
        out = [0] * self.n
        back = [0] * self.n
        out[(me + 1) % self.n] = n
        back[(me - 1) % self.n] = n
        return self.p.collective(messages.all_to_all_v(self.group, out, back, 1, dtype, functional=True), is_async=True)

    def _keys(self) -> None:
        assert self.group is not None
        message = messages.all_gather(self.group, 2 * self.kv, self.spec.dtype, functional=True)
        self.p.wait(self.p.collective(message, is_async=True))

    def forward(self) -> None:
        """Attention in as many parts as ranks."""
        gathered = self.spec.cp_kind == "torch_ring_all_gather"
        if gathered:
            self._keys()
        for step in range(self.n):
            moving = None if gathered or step == self.n - 1 else self._rotate(self.spec.dtype)
            self.compute.attention(share=1 / self.n)
            self.p.wait(moving)

    def backward(self) -> None:
        """As forward, with the gradients of keys and values going round beside."""
        gathered = self.spec.cp_kind == "torch_ring_all_gather"
        if gathered:
            self._keys()
        for step in range(self.n):
            moving = None if gathered or step == self.n - 1 else self._rotate(self.spec.dtype)
            self.compute.attention(backward=True, share=1 / self.n)
            self.p.wait(moving)
            self.p.wait(self._rotate("Float"))


class Hierarchical(Context):
    """All-to-alls inside a small group, a ring across such groups (TransformerEngine's ``a2a+p2p``)."""

    def __init__(self, program: Program, inner: Group, outer: Group, compute: Compute, spec: Spec) -> None:
        super().__init__(program, None, compute, spec)
        self.heads = Ulysses(program, inner, compute, spec)
        self.ring = Ring(program, outer, compute, spec)

    def forward(self) -> None:
        """Heads for tokens, around the ring, and back."""
        self.heads.inward()
        self.ring.forward()
        self.heads.outward()

    def backward(self) -> None:
        """The other way."""
        self.heads.outward()
        self.ring.backward()
        self.heads.inward()


KINDS: dict[str, type[Context]] = {
    "ring": Ring,
    "all_gather": AllGather,
    "ulysses": Ulysses,
    "torch_ring_all_gather": TorchRing,
    "torch_ring_all_to_all": TorchRing,
}


def context(program: Program, group: Group | None, compute: Compute, spec: Spec) -> Context:
    """The way of a spec."""
    if group is None or group.size == 1:
        return Context(program, None, compute, spec)
    return KINDS[spec.cp_kind](program, group, compute, spec)
