"""The calls that an NCCL log lists (``... opCount ...``), as communication records."""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa

from parsers import tables
from parsers.assemble import table
from parsers.nccl_log_state import Process

_WORDS = {
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
"""NCCL's names (src/enqueue.cc, collectives.cc) as torch.distributed's."""

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
"""ncclDataType_t by number (nccl.h)."""

# The count is an argument of the call (nccl.h): what one rank hands in, what it receives, or one rank's share.
_IN_TIMES_N = frozenset({"reduce_scatter", "all_to_all", "scatter"})
_OUT_TIMES_N = frozenset({"all_gather", "all_to_all", "gather"})
_TO_ONE = frozenset({"send", "recv"})
_ROOTED = _TO_ONE | {"broadcast", "reduce", "gather", "scatter"}


def records(
    process: Process, global_rank: Callable[[str, int | None], int | None], signed: Callable[[str | None], int | None]
) -> pa.Table:
    """`COMM_RECORDS` of one process, in order of its calls.

    Args:
        process: what was collected of it.
        global_rank: of a member of a group, by the group and the rank in it.
        signed: a communicator's id as a number.
    """
    calls = process.calls
    count = len(calls.op)
    elements, kinds, roots, numbers = (calls.numbers[place::4] for place in range(4))
    words = [_WORDS.get(op, op) for op in calls.op]
    sizes = [comm.size for comm in calls.comm]
    peers = [
        global_rank(comm.group, root) if word in _TO_ONE else None
        for comm, word, root in zip(calls.comm, words, roots, strict=True)
    ]
    return table(
        tables.COMM_RECORDS,
        {
            "layer": ["nccl_log"] * count,
            "name": calls.op,
            "device": [comm.device for comm in calls.comm],
            "stream": calls.stream,
            "collective": words,
            "dtype": [TYPES[kind] if kind < len(TYPES) else None for kind in kinds],
            "in_nelems": [n * s if w in _IN_TIMES_N else n for n, s, w in zip(elements, sizes, words, strict=True)],
            "out_nelems": [n * s if w in _OUT_TIMES_N else n for n, s, w in zip(elements, sizes, words, strict=True)],
            "group_name": [comm.group for comm in calls.comm],
            "group_size": sizes,
            "rank_arg": [
                root if word in _ROOTED else comm.rank if comm.announced else None
                for comm, word, root in zip(calls.comm, words, roots, strict=True)
            ],
            "src_rank": [peer if word == "recv" else None for peer, word in zip(peers, words, strict=True)],
            "dst_rank": [peer if word == "send" else None for peer, word in zip(peers, words, strict=True)],
            "seq": numbers,
            "comms_id": [signed(comm.comm_id) for comm in calls.comm],
        },
    )
