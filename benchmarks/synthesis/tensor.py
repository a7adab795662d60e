"""Tensor parallelism around linear layers, as Megatron-LM and as DTensor do it.

A column-parallel layer is entered and a row-parallel one left in forward; backward goes the other way. Megatron-LM
(megatron/core/tensor_parallel/layers.py, `LinearWithGradAccumulationAndAsyncCommunication`) gathers the input of a
column-parallel layer again for its weight gradient; DTensor (torch/distributed/tensor/parallel/style.py) keeps it, and
without sequence parallelism reduces the input gradient of every column-parallel weight by itself.
"""

from __future__ import annotations

from collections.abc import Callable

from benchmarks.synthesis import messages
from benchmarks.synthesis.groups import Group
from benchmarks.synthesis.program import Program

Work = Callable[[], None]


class Tensor:
    """No tensor parallelism: nothing is sent."""

    def __init__(self, program: Program, group: Group | None, shape: tuple[int, int, int], dtype: str) -> None:
        """``shape``: sequence, batch, hidden of one whole activation."""
        self.p, self.group, self.shape, self.dtype = program, group, shape, dtype
        self.whole = shape[0] * shape[1] * shape[2]

    @property
    def shard(self) -> int:
        """Elements of the activation outside of the parallel layers, on one rank."""
        return self.whole

    def enter(self) -> None:
        """Before a column-parallel layer."""

    def leave(self) -> None:
        """After a row-parallel layer."""

    def leave_backward(self) -> None:
        """Before the backward of a row-parallel layer."""

    def enter_backward(self, dgrad: Work, wgrad: Work, linears: int = 1) -> None:
        """The backward of a column-parallel layer (``linears`` of them side by side)."""
        del linears
        dgrad()
        wgrad()


class MegatronTensor(Tensor):
    """All-reduces in and out."""

    def _all_reduce(self, is_async: bool = False) -> int:
        message = messages.all_reduce(self.group_, self.whole, self.dtype, shape=self.shape)
        return self.p.collective(message, is_async=is_async)

    @property
    def group_(self) -> Group:
        """The group, which is there."""
        assert self.group is not None
        return self.group

    def leave(self) -> None:
        """Sum the partial outputs."""
        self._all_reduce()

    def enter_backward(self, dgrad: Work, wgrad: Work, linears: int = 1) -> None:
        """Sum the input gradient while the weight gradient is computed."""
        del linears
        dgrad()
        reduced = self._all_reduce(is_async=True)
        wgrad()
        self.p.wait(reduced)


class MegatronSequence(MegatronTensor):
    """Sequence parallelism: gather before, scatter after, gather the input again in backward."""

    @property
    def shard(self) -> int:
        """A part of the sequence."""
        return self.whole // self.group_.size

    def _part(self) -> tuple[int, int, int]:
        return self.shape[0] // self.group_.size, *self.shape[1:]

    def gather(self, is_async: bool = False) -> int:
        """The whole sequence on every rank."""
        return self.p.collective(
            messages.all_gather(self.group_, self.shard, self.dtype, shape=self._part()), is_async=is_async
        )

    def scatter(self, is_async: bool = False) -> int:
        """Sum, and keep a part of the sequence."""
        return self.p.collective(
            messages.reduce_scatter(self.group_, self.shard, self.dtype, shape=self.shape), is_async=is_async
        )

    def enter(self) -> None:
        """Gather."""
        self.gather()

    def leave(self) -> None:
        """Scatter."""
        self.scatter()

    def leave_backward(self) -> None:
        """Gather the gradient."""
        self.gather()

    def enter_backward(self, dgrad: Work, wgrad: Work, linears: int = 1) -> None:
        """Gather the input beside the input gradient, scatter that beside the weight gradient."""
        del linears
        again = self.gather(is_async=True)
        dgrad()
        self.p.wait(again)
        reduced = self.scatter(is_async=True)
        wgrad()
        self.p.wait(reduced)


class DTensor(MegatronTensor):
    """Functional collectives; one all-reduce per column-parallel weight in backward."""

    def _all_reduce(self, is_async: bool = False) -> int:
        del is_async
        message = messages.all_reduce(self.group_, self.whole, self.dtype, functional=True, shape=self.shape)
        place = self.p.collective(message, is_async=True)
        self.p.wait(place)
        return place

    def enter_backward(self, dgrad: Work, wgrad: Work, linears: int = 1) -> None:
        """Each weight's input gradient is summed before they are added."""
        dgrad()
        wgrad()
        for _ in range(linears):
            self._all_reduce()


class DTensorSequence(MegatronTensor):
    """Functional gathers and scatters; the gathered input is kept for backward."""

    @property
    def shard(self) -> int:
        """A part of the sequence."""
        return self.whole // self.group_.size

    def gather(self) -> None:
        """The whole sequence on every rank."""
        s, b, h = self.shape
        part = (b, s // self.group_.size, h)
        message = messages.all_gather(self.group_, self.shard, self.dtype, functional=True, shape=part)
        self.p.wait(self.p.collective(message, is_async=True))

    def scatter(self) -> None:
        """Sum, and keep a part of the sequence."""
        s, b, h = self.shape
        shape = (b * self.group_.size, s // self.group_.size, h)
        message = messages.reduce_scatter(self.group_, self.shard, self.dtype, functional=True, shape=shape)
        self.p.wait(self.p.collective(message, is_async=True))

    def enter(self) -> None:
        """Gather."""
        self.gather()

    def leave(self) -> None:
        """Scatter."""
        self.scatter()

    def leave_backward(self) -> None:
        """Gather the gradient."""
        self.gather()

    def enter_backward(self, dgrad: Work, wgrad: Work, linears: int = 1) -> None:
        """Scatter the input gradient."""
        del linears
        dgrad()
        wgrad()
        self.scatter()
