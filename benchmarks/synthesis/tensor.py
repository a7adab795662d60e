"""Tensor parallelism around linear layers, as Megatron-LM and as DTensor do it.

A column-parallel layer is entered and a row-parallel one left in forward; backward goes the other way. Megatron-LM
(megatron/core/tensor_parallel/layers.py, `LinearWithGradAccumulationAndAsyncCommunication`) gathers the input of a
column-parallel layer again for its weight gradient; DTensor (torch/distributed/tensor/parallel/style.py) keeps it, and
without sequence parallelism reduces the input gradient of every column-parallel weight by itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from benchmarks.synthesis import messages
from benchmarks.synthesis.groups import Group
from benchmarks.synthesis.program import Message, Program

Work = Callable[[], None]


class Tensor:
    """No tensor parallelism: nothing is sent."""

    def __init__(self, program: Program, group: Group | None, shape: tuple[int, int, int], dtype: str) -> None:
        """``shape``: sequence, batch, hidden of one whole activation."""
        self.p, self.group, self.shape, self.dtype = program, group, shape, dtype
        self.whole = shape[0] * shape[1] * shape[2]

    @contextmanager
    def ends_of_the_model(self) -> Iterator[None]:
        """Around the embedding and the head."""
        yield

    def resize(self, length: int) -> None:
        """Another sequence length from here on."""
        self.shape = (length, *self.shape[1:])
        self.whole = self.shape[0] * self.shape[1] * self.shape[2]

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

    gathered: str | None = None  # another type for what is gathered: fp8 travels as bytes

    @property
    def shard(self) -> int:
        """A part of the sequence."""
        return self.whole // self.group_.size

    @contextmanager
    def ends_of_the_model(self) -> Iterator[None]:
        """Embedding and head are not in fp8."""
        was, self.gathered = self.gathered, None
        yield
        self.gathered = was

    def _part(self) -> tuple[int, int, int]:
        return self.shape[0] // self.group_.size, *self.shape[1:]

    def gather(self, is_async: bool = False) -> int:
        """The whole sequence on every rank."""
        return self.p.collective(
            messages.all_gather(self.group_, self.shard, self.gathered or self.dtype, shape=self._part()),
            is_async=is_async,
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


class UserBuffers(MegatronSequence):
    """TransformerEngine's kernels on registered buffers in place of NCCL's; c10d sees nothing of them.

    transformer_engine/common/comm_gemm_overlap/userbuffers/userbuffers.cu
    """

    KERNEL = "void userbuffers_fp16_sum_inplace_gpu_{word}<{n}>(int, int, int, int, int, int, void**, int)"

    def _buffers(self, word: str, like: Message) -> int:
        kernel = self.KERNEL.format(word=word, n=self.group_.size)
        place = self.p.launch(like, stream="userbuffers", recorded=False, sizes_known=False, kernel=kernel)
        self.p.wait(place)
        return place

    def gather(self, is_async: bool = False) -> int:
        """The whole sequence on every rank."""
        del is_async
        return self._buffers("rr_ag", messages.all_gather(self.group_, self.shard, self.gathered or self.dtype))

    def scatter(self, is_async: bool = False) -> int:
        """Sum, and keep a part of the sequence."""
        del is_async
        return self._buffers("rr_rs_oop", messages.reduce_scatter(self.group_, self.shard, self.dtype))


class AsyncTensor(MegatronTensor):
    """Asynchronous tensor parallelism: copies between peers and signals beside pieces of the product, no collective.

    torch/distributed/_symmetric_memory/__init__.py `_fused_all_gather_matmul`, `_fused_matmul_reduce_scatter`.
    """

    COPY = "Memcpy PtoP (Device -> Device)"
    SIGNAL = "c10d::symmetric_memory::(anonymous namespace)::barrier_kernel(unsigned int**, int, int, int, unsigned)"

    @property
    def shard(self) -> int:
        """A part of the sequence."""
        return self.whole // self.group_.size

    def _pieces(self, op: str) -> None:
        item = 2 * self.shard
        self.p.compute(self.SIGNAL, 3.0, f"symm_mem::{op}")
        for peer in range(self.group_.size - 1):
            self.p.copy(self.COPY, item, f"symm_mem::{op}", stream=f"symm_mem_{peer % 2}")
        self.p.compute(self.SIGNAL, 3.0, f"symm_mem::{op}")

    def enter(self) -> None:
        """Gather beside the product."""
        self._pieces("fused_all_gather_matmul")

    def leave(self) -> None:
        """Scatter beside the product."""
        self._pieces("fused_matmul_reduce_scatter")

    def leave_backward(self) -> None:
        """Gather the gradient."""
        self._pieces("fused_all_gather_matmul")

    def enter_backward(self, dgrad: Work, wgrad: Work, linears: int = 1) -> None:
        """Scatter the input gradient."""
        del linears
        dgrad()
        wgrad()
        self._pieces("fused_matmul_reduce_scatter")


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
