"""Counts collectives as the program issues them, independently of any trace.

The true traffic of a case must not come from the trace it is to be held against. This counter is a dispatch mode: it
sees every ``c10d`` and functional collective that reaches PyTorch's dispatcher, those of C++ callers (the DDP reducer,
the autograd engine) included, and reads group, elements, type and peer off the arguments. No profiler takes part.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import _resolve_process_group
from torch.distributed import ProcessGroup
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import TorchDispatchMode


@dataclass(frozen=True)
class Call:
    """One collective as one rank issued it; sizes in elements, ranks global."""

    collective: str  # the backend's method, as `record_param_comms` names it
    group_desc: str
    group_ranks: tuple[int, ...]
    group_size: int
    in_nelems: int
    out_nelems: int
    dtype: str  # as Kineto writes it: Float, BFloat16, Long
    peer_global_rank: int | None


def _elements(value: object) -> int:
    if isinstance(value, Tensor):
        return value.numel()
    if isinstance(value, Sequence):
        return sum(_elements(part) for part in value)
    return 0


def _first_tensor(value: Any) -> Tensor:
    return value if isinstance(value, Tensor) else _first_tensor(value[0])


_DTYPES = {torch.float32: "Float", torch.bfloat16: "BFloat16", torch.float16: "Half", torch.int64: "Long"}

# Operator -> (backend method, argument with the input, argument with the output, argument with the peer). The methods
# behind the functional operators are those that torch/csrc/distributed/c10d/Functional.cpp calls.
_C10D = {
    "allreduce_": ("allreduce", 0, 0, None),
    "allreduce_coalesced_": ("allreduce_coalesced", 0, 0, None),
    "_allgather_base_": ("_allgather_base", 1, 0, None),
    "allgather_": ("all_gather", 1, 0, None),
    "allgather_into_tensor_coalesced_": ("allgather_into_tensor_coalesced", 1, 0, None),
    "_reduce_scatter_base_": ("_reduce_scatter_base", 1, 0, None),
    "reduce_scatter_": ("reduce_scatter", 1, 0, None),
    "reduce_scatter_tensor_coalesced_": ("reduce_scatter_tensor_coalesced", 1, 0, None),
    "alltoall_base_": ("all_to_all", 1, 0, None),
    "alltoall_": ("all_to_all", 1, 0, None),
    "broadcast_": ("broadcast", 0, 0, None),
    "send": ("send", 0, 0, 2),
    "recv_": ("recv", 0, 0, 2),
    "barrier": ("barrier", None, None, None),
}
_FUNCTIONAL = {
    "all_reduce": "allreduce",
    "all_reduce_": "allreduce",
    "all_gather_into_tensor": "allgather_into_tensor_coalesced",
    "reduce_scatter_tensor": "reduce_scatter_tensor_coalesced",
    "all_to_all_single": "all_to_allv",
}
_NOT_COLLECTIVE = {"wait_tensor", "_wrap_tensor_autograd"}


def _describe(name: str, group: ProcessGroup, sent: object, received: object, peer: int | None) -> Call:
    ranks = dist.get_process_group_ranks(group)
    tensor = _first_tensor(sent) if sent is not None else None
    return Call(
        collective=name,
        group_desc=group.group_desc,
        group_ranks=tuple(ranks),
        group_size=len(ranks),
        in_nelems=_elements(sent),
        out_nelems=_elements(received),
        dtype="Byte" if tensor is None else _DTYPES[tensor.dtype],
        peer_global_rank=None if peer is None else ranks[peer],
    )


def _c10d_call(operator: str, args: Sequence[Any]) -> Call:
    name, sent, received, peer = _C10D[operator]
    if operator == "alltoall_base_" and args[3]:
        name = "all_to_allv"
    group = next(arg for arg in args if isinstance(arg, torch.ScriptObject))
    return _describe(
        name,
        ProcessGroup.unbox(group),
        None if sent is None else args[sent],
        None if received is None else args[received],
        None if peer is None else args[peer],
    )


def _functional_call(operator: str, args: Sequence[Any], result: object) -> Call:
    group = _resolve_process_group(args[-1])
    return _describe(_FUNCTIONAL[operator], group, args[0], result, None)


class CollectiveCounter(TorchDispatchMode):
    """While entered, keeps every collective of this thread in `calls`.

    Raises:
        KeyError: the program issued a collective that this module does not know.
    """

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[Call] = []

    def __torch_dispatch__(
        self,
        func: Callable[..., Any],
        types: Iterable[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Run the operator and note it where it is a collective on plain tensors."""
        if any(issubclass(kind, DTensor) for kind in types):
            return NotImplemented  # DTensor turns it into operators on its local tensors, which come back here
        result = func(*args, **(kwargs or {}))
        namespace, operator = func._schema.name.split("::")  # type: ignore[attr-defined]
        if namespace == "c10d":
            self.calls.append(_c10d_call(operator, args))
        elif namespace == "_c10d_functional" and operator not in _NOT_COLLECTIVE:
            self.calls.append(_functional_call(operator, args, result))
        return result


def tabulate(steps: Sequence[Sequence[Call]]) -> list[dict[str, Any]]:
    """Distinct calls with their number per step.

    Args:
        steps: the calls of each step.

    Returns:
        One row per distinct call, sorted: its fields and ``calls_per_step``, a number where all steps agree, else the
        list of numbers.
    """
    counts = [Counter(calls) for calls in steps]
    rows = []
    for call in sorted(set().union(*counts), key=repr):
        per_step = [count[call] for count in counts]
        rows.append(asdict(call) | {"calls_per_step": per_step[0] if len(set(per_step)) == 1 else per_step})
    return rows
