"""The calls of torch.distributed and what each leaves in a trace.

Words from torch/csrc/distributed/c10d/{Ops,ProcessGroupNCCL}.cpp; sizes as `RECORD_PARAM_COMMS_DATA` is given them.
"""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks.synthesis.groups import Group
from benchmarks.synthesis.program import Message

Shape = tuple[int, ...]


def all_reduce(
    group: Group, n: int, dtype: str, *, coalesced: bool = False, functional: bool = False, shape: Shape | None = None
) -> Message:
    """``n`` elements in, the same out."""
    if coalesced:
        words = ("allreduce_coalesced", "allreduce_coalesced_", "allreduce_coalesced", "AllReduce")
    else:
        words = ("allreduce", "allreduce_", "all_reduce", "AllReduce")
    return Message(group, words, n, n, dtype, "all_reduce" if functional else None, shape=shape or (n,))


def all_gather(
    group: Group,
    shard: int,
    dtype: str,
    *,
    coalesced: bool = False,
    functional: bool = False,
    shape: Shape | None = None,
) -> Message:
    """Each rank gives ``shard`` elements."""
    if coalesced or functional:
        word = "allgather_into_tensor_coalesced"
        words = (word, "allgather_into_tensor_coalesced_", "all_gather_into_tensor_coalesced", "AllGather")
    else:
        words = ("_allgather_base", "_allgather_base_", "_all_gather_base", "AllGather")
    name = "all_gather_into_tensor" if functional else None
    part = shape or (shard,)
    whole = (part[0] * group.size, *part[1:])
    return Message(group, words, shard, shard * group.size, dtype, name, shape=part, out_shape=whole)


def reduce_scatter(
    group: Group,
    shard: int,
    dtype: str,
    *,
    coalesced: bool = False,
    functional: bool = False,
    shape: Shape | None = None,
) -> Message:
    """Each rank keeps ``shard`` elements; ``shape`` is that of the input, of which the first dimension is divided."""
    if coalesced or functional:
        word = "reduce_scatter_tensor_coalesced"
        words = (word, word + "_", word, "ReduceScatter")
    else:
        words = ("_reduce_scatter_base", "_reduce_scatter_base_", "_reduce_scatter_base", "ReduceScatter")
    name = "reduce_scatter_tensor" if functional else None
    whole = shape or (shard * group.size,)
    part = (whole[0] // group.size, *whole[1:])
    return Message(group, words, shard * group.size, shard, dtype, name, shape=whole, out_shape=part)


def all_to_all(
    group: Group, n: int, dtype: str, *, new: bool, functional: bool = False, shape: Shape | None = None
) -> Message:
    """Equal parts; newer releases record them as ``all_to_allv`` without splits."""
    words = ("all_to_allv" if new else "all_to_all", "alltoall_base_", "all_to_all", "SendRecv")
    shape = shape or (n,)
    name = "all_to_all_single" if functional else None
    return Message(group, words, n, n, dtype, name, shape=shape, out_shape=shape)


def all_to_all_v(
    group: Group, in_split: Sequence[int], out_split: Sequence[int], width: int, dtype: str, *, functional: bool = False
) -> Message:
    """Rows of ``width`` elements, as many per peer as the splits say."""
    words = ("all_to_allv", "alltoall_base_", "all_to_all", "SendRecv")
    rows_in, rows_out = sum(in_split), sum(out_split)
    return Message(
        group,
        words,
        rows_in * width,
        rows_out * width,
        dtype,
        "all_to_all_single" if functional else None,
        tuple(in_split),
        tuple(out_split),
        shape=(rows_in, width) if width > 1 else (rows_in,),
        out_shape=(rows_out, width) if width > 1 else (rows_out,),
    )


def broadcast(group: Group, n: int, dtype: str, root: int = 0, shape: Shape | None = None) -> Message:
    """From the group rank ``root``."""
    words = ("broadcast", "broadcast_", "broadcast", "Broadcast")
    return Message(group, words, n, n, dtype, root=root, shape=shape or (n,))


def reduce(group: Group, n: int, dtype: str, root: int = 0) -> Message:
    """To the group rank ``root``."""
    return Message(group, ("reduce", "reduce_", "reduce", "Reduce"), n, n, dtype, root=root, shape=(n,))


def barrier(group: Group, *, new: bool) -> Message:
    """An all-reduce of one element under another name."""
    words = ("barrier", "barrier", "all_reduce_barrier" if new else "all_reduce", "AllReduce")
    return Message(group, words, 0, 0, "Byte")


def send(group: Group, peer: int, n: int, dtype: str, shape: Shape | None = None) -> Message:
    """To a global rank of the group."""
    return Message(group, ("send", "send", "send", "SendRecv"), n, n, dtype, peer=peer, shape=shape or (n,))


def receive(group: Group, peer: int, n: int, dtype: str, shape: Shape | None = None) -> Message:
    """From a global rank of the group."""
    return Message(group, ("recv", "recv_", "recv", "SendRecv"), n, n, dtype, peer=peer, shape=shape or (n,))
