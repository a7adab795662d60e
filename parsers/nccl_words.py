"""NCCL's names of operations as torch.distributed's, and its element types by number (nccl.h, src/enqueue.cc)."""

from __future__ import annotations

from types import MappingProxyType

WORDS = MappingProxyType(
    {
        "AllReduce": "all_reduce",
        "AllGather": "all_gather",
        "ReduceScatter": "reduce_scatter",
        "Broadcast": "broadcast",
        "Reduce": "reduce",
        "Send": "send",
        "Recv": "recv",
        "AlltoAll": "all_to_all",
        "AllToAll": "all_to_all",
        "AllToAllv": "all_to_allv",
        "Gather": "gather",
        "Scatter": "scatter",
    }
)

TYPES = (
    "ncclInt8",
    "ncclUint8",
    "ncclInt32",
    "ncclUint32",
    "ncclInt64",
    "ncclUint64",
    "ncclFloat16",
    "ncclFloat32",
    "ncclFloat64",
    "ncclBfloat16",
    "ncclFloat8e4m3",
    "ncclFloat8e5m2",
)

# The count is an argument of the call: what one rank hands in, what it receives, or one rank's share.
IN_TIMES_N = frozenset({"reduce_scatter", "all_to_all", "scatter"})
OUT_TIMES_N = frozenset({"all_gather", "all_to_all", "gather"})
MESSAGES = frozenset({"send", "recv"})
ROOTED = MESSAGES | {"broadcast", "reduce", "gather", "scatter"}


def elements(word: str, count: int, ranks: int | None) -> tuple[int | None, int | None]:
    """Elements that one rank hands in and gets, from the call's count.

    Args:
        word: the operation, as in `WORDS`.
        count: the argument.
        ranks: members of the communicator; null where not known.
    """
    whole = None if ranks is None else count * ranks
    return whole if word in IN_TIMES_N else count, whole if word in OUT_TIMES_N else count


def signed(comm_id: int | str | None) -> int | None:
    """A 64-bit id, a number or text (``0x...`` or decimal), as the signed number that `COMM_RECORDS.comms_id` holds."""
    if isinstance(comm_id, str):
        try:
            comm_id = int(comm_id, 0)
        except ValueError:
            return None
    if comm_id is None or not 0 <= comm_id < 1 << 64:
        return None
    return comm_id - (1 << 64) if comm_id >= 1 << 63 else comm_id


def group_name(comm_id: int | str | None) -> str | None:
    """The id as logs print it, ``0x9bfb051f56b202bd``: what joins logs, profilers and traces."""
    number = signed(comm_id)
    return None if number is None else f"0x{number % (1 << 64):x}"
