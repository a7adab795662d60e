"""The calls that an NCCL log lists (``... opCount ...``), as communication records."""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa

from parsers import tables
from parsers.assemble import table
from parsers.nccl_log_state import Process
from parsers.nccl_words import MESSAGES, ROOTED, TYPES, WORDS, elements, signed


def records(process: Process, global_rank: Callable[[str, int | None], int | None]) -> pa.Table:
    """`COMM_RECORDS` of one process, in order of its calls.

    Args:
        process: what was collected of it.
        global_rank: of a member of a group, by the group and the rank in it.
    """
    calls = process.calls
    count = len(calls.op)
    counts, kinds, roots, numbers = (calls.numbers[place::4] for place in range(4))
    words = [WORDS.get(op, op) for op in calls.op]
    sizes = [comm.size for comm in calls.comm]
    peers = [
        global_rank(comm.group, root) if word in MESSAGES else None
        for comm, word, root in zip(calls.comm, words, roots, strict=True)
    ]
    both = [elements(word, count, size) for word, count, size in zip(words, counts, sizes, strict=True)]
    return table(
        tables.COMM_RECORDS,
        {
            "layer": ["nccl_log"] * count,
            "name": calls.op,
            "device": [comm.device for comm in calls.comm],
            "stream": calls.stream,
            "collective": words,
            "dtype": [TYPES[kind] if kind < len(TYPES) else None for kind in kinds],
            "in_nelems": [given for given, _ in both],
            "out_nelems": [taken for _, taken in both],
            "group_name": [comm.group for comm in calls.comm],
            "group_size": sizes,
            "rank_arg": [
                root if word in ROOTED else comm.rank if comm.announced else None
                for comm, word, root in zip(calls.comm, words, roots, strict=True)
            ],
            "src_rank": [peer if word == "recv" else None for peer, word in zip(peers, words, strict=True)],
            "dst_rank": [peer if word == "send" else None for peer, word in zip(peers, words, strict=True)],
            "seq": numbers,
            "comms_id": [signed(comm.comm_id) for comm in calls.comm],
        },
    )
