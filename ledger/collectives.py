"""Bytes one rank sends in one call of each primitive."""

from ledger.errors import LedgerError

PRIMITIVES = (
    "all_reduce",
    "all_gather",
    "reduce_scatter",
    "all_to_all",
    "send_recv",
    "broadcast",
    "reduce",
    "gather",
    "scatter",
    "barrier",
)
"""Every primitive the product knows, by the name it is printed with."""

_SHARE_SENT = frozenset({"all_gather", "reduce_scatter", "all_to_all", "gather", "scatter"})


def collective_bytes(primitive: str, n: int, payload_bytes: int) -> int:
    """Bytes one of ``n`` ranks sends in one call that moves ``payload_bytes``.

    The payload S is the array as nccl-tests counts it: the buffer of an all-reduce, broadcast or reduce, the
    concatenated array of an all-gather, reduce-scatter, all-to-all, gather or scatter, the message of a send.
    A rank sends 2(n-1)/n·S for an all-reduce, (n-1)/n·S for the next five, S for a send, and at most S for a broadcast
    or reduce (every link of the ring carries the array once). Rooted primitives are charged as the busiest rank.
    A group of one moves nothing, except that a message to oneself is still a message. Fractions of a byte (payloads
    that n does not divide) are cut off.

    Source: NVIDIA/nccl-tests doc/PERFORMANCE.md, with time x busbw = bytes sent.

    Raises:
        LedgerError: unknown primitive, or a negative size or group.
    """
    if n < 1 or payload_bytes < 0:
        raise LedgerError(f"a group of {n} ranks cannot move {payload_bytes} bytes", key="n")
    if primitive == "send_recv":
        return payload_bytes
    if primitive not in PRIMITIVES:
        raise LedgerError(f"unknown primitive {primitive!r}; known: {', '.join(PRIMITIVES)}", key="primitive")
    if n == 1 or primitive == "barrier":
        return 0
    if primitive == "all_reduce":
        return 2 * (n - 1) * payload_bytes // n
    if primitive in _SHARE_SENT:
        return (n - 1) * payload_bytes // n
    return payload_bytes
