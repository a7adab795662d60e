"""Fully sharded data parallelism, second generation (torch/distributed/fsdp/_fully_shard/_fsdp_param_group.py).

Each unit is gathered before its forward, again before its backward where it was resharded, and its gradients are
scattered (and, with replicas, all-reduced) after it. Gathers run on a stream of their own, one unit ahead.
"""

from __future__ import annotations

from dataclasses import dataclass

from benchmarks.synthesis import messages
from benchmarks.synthesis.groups import Group
from benchmarks.synthesis.program import Program
from benchmarks.synthesis.spec import Spec

COPY_IN = "void at::native::(anonymous namespace)::multi_tensor_apply_kernel<TensorListMetadata<2>, CopyFunctor>"
COPY_OUT = "void fsdp::split_with_sizes_copy_out_contiguous_no_cast_kernel<unsigned int>(char**, char*)"
CHUNK_CAT = "void at::native::chunk_cat_cuda_kernel<c10::BFloat16, float>(c10::BFloat16**, char*)"


@dataclass(frozen=True)
class Unit:
    """A module wrapped by `fully_shard`."""

    name: str
    parameters: int  # held whole by one (tp, pp) shard
    reshard: bool = True
    expert: bool = False


class FullyShard:
    """The units of one rank and where their parameters are."""

    def __init__(
        self,
        program: Program,
        spec: Spec,
        shard: Group,
        replicate: Group | None,
        expert_shard: Group | None = None,
        backward_shard: Group | None = None,
    ) -> None:
        """``backward_shard``: the small group of ``reshard_after_forward=<int>``."""
        self.p, self.spec, self.shard, self.replicate = program, spec, shard, replicate
        self.expert_shard, self.backward_shard = expert_shard, backward_shard
        named = spec.writing.sync_on_current_stream
        self.gather_stream = "fsdp_all_gather" if named else None
        self.scatter_stream = "fsdp_reduce_scatter" if named else None
        self.reduce_stream = "fsdp_all_reduce" if named else None
        self.flying: dict[str, int] = {}
        self.whole: set[str] = set()
        self.last: int | None = None  # reduction

    def group(self, unit: Unit) -> Group:
        """The ranks that share a unit."""
        return self.expert_shard if unit.expert and self.expert_shard is not None else self.shard

    def prefetch(self, unit: Unit, backward: bool = False) -> None:
        """Ask for the parameters of a unit."""
        group = self.group(unit)
        if unit.name in self.whole or unit.name in self.flying or group.size == 1:
            return
        if backward and self.backward_shard is not None:
            group = self.backward_shard
        n = -(-unit.parameters // group.size)
        with self.p.mark(f"FSDP::all_gather ({unit.name})"):
            if self.gather_stream:
                self.p.compute(COPY_IN, 3.0, "fsdp::all_gather_copy_in", stream="fsdp_copy_in")
            message = messages.all_gather(group, n, self.spec.dtype)
            is_async = bool(self.gather_stream is None)
            self.flying[unit.name] = self.p.launch(
                message, stream=self.gather_stream, is_async=is_async, waits_compute=False
            )

    def unshard(self, unit: Unit, backward: bool = False) -> None:
        """Have the parameters of a unit."""
        self.prefetch(unit, backward)
        if unit.name not in self.flying:
            return
        with self.p.mark(f"FSDP::all_gather_copy_out ({unit.name})"):
            self.p.wait(self.flying.pop(unit.name))
            self.p.compute(COPY_OUT, max(2.0, unit.parameters / 1e6), "fsdp::split_with_sizes_copy")
        self.whole.add(unit.name)

    def before_forward(self, unit: Unit) -> None:
        """`pre_forward`."""
        with self.p.mark(f"FSDP::pre_forward ({unit.name})"):
            self.unshard(unit)

    def after_forward(self, unit: Unit) -> None:
        """`post_forward`: let go of the parameters, unless they are kept for backward."""
        with self.p.mark(f"FSDP::post_forward ({unit.name})"):
            if unit.reshard:
                self.whole.discard(unit.name)

    def before_backward(self, unit: Unit, following: Unit | None) -> None:
        """`pre_backward`: parameters of this unit, and ask for those of the next."""
        with self.p.mark(f"FSDP::pre_backward ({unit.name})"):
            self.unshard(unit, backward=True)
            if following is not None:
                with self.p.mark(f"FSDP::backward_prefetch for {following.name}"):
                    self.prefetch(following, backward=True)

    def after_backward(self, unit: Unit, reduce: bool = True, reshard: bool = True) -> None:
        """`post_backward`: scatter the gradients."""
        with self.p.mark(f"FSDP::post_backward_reshard ({unit.name})"):
            if reshard:
                self.whole.discard(unit.name)
        if reduce:
            with self.p.mark(f"FSDP::post_backward_reduce ({unit.name})"):
                self.reduce(unit)

    def reduce(self, unit: Unit) -> None:
        """Reduce-scatter over the shards; all-reduce over the replicas."""
        group = self.group(unit)
        n = -(-unit.parameters // group.size)
        is_async = bool(self.scatter_stream is None)
        if group.size > 1:
            if self.scatter_stream:
                self.p.compute(CHUNK_CAT, max(2.0, unit.parameters / 1e6), "fsdp::chunk_cat", self.scatter_stream)
            message = messages.reduce_scatter(group, n, self.spec.grad_dtype)
            self.last = self.p.launch(message, stream=self.scatter_stream, is_async=is_async)
        if self.replicate is not None and self.replicate.size > 1:
            if group.size > 1:
                assert self.last is not None
                self.p.add_wait(self.last, self.reduce_stream)
            message = messages.all_reduce(self.replicate, n, self.spec.grad_dtype)
            self.last = self.p.launch(message, stream=self.reduce_stream, is_async=is_async)

    def finish(self) -> None:
        """The end of backward: wait for the last reduction."""
        with self.p.mark("FSDP::root_post_backward_callback"):
            self.p.wait(self.last)
