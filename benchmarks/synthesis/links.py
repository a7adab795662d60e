"""How long a transfer takes: latency and bandwidth of the slowest link of a group."""

from __future__ import annotations

from dataclasses import dataclass

from benchmarks.synthesis.program import Message

ITEM = {
    "BFloat16": 2,
    "Half": 2,
    "Float": 4,
    "Double": 8,
    "Long": 8,
    "Int": 4,
    "Byte": 1,
    "Bool": 1,
    "Float8_e4m3fn": 1,
}
"""Bytes of an element, by c10's name."""


@dataclass(frozen=True)
class Links:
    """Bus bandwidths in GB/s and latencies in µs, of the order of an H100 node with one 400 Gb/s NIC per GPU."""

    gpus_per_node: int = 8
    node_gbps: float = 300.0
    network_gbps: float = 42.0
    node_us: float = 12.0
    network_us: float = 28.0
    absent_wait_us: float = 120.0
    slow: tuple[tuple[int, float], ...] = ()  # rank, and what every call of a group with it takes longer

    def transfer_us(self, message: Message, rank: int) -> float:
        """The time of one call once everyone is there."""
        peers = (rank, message.peer) if message.peer is not None else message.group.ranks
        ends = (peers[0], peers[-1])
        inside = ends[0] // self.gpus_per_node == ends[1] // self.gpus_per_node
        gbps = self.node_gbps if inside else self.network_gbps
        latency = self.node_us if inside else self.network_us
        latency += max((us for rank, us in self.slow if rank in peers), default=0.0)
        return latency + _sent(message) * ITEM[message.dtype] / gbps * 1e-3


def _sent(message: Message) -> float:
    """Elements one rank sends, as a ring does it."""
    n = message.group.size
    if message.peer is not None:
        return message.in_n
    share = (n - 1) / n if n > 1 else 0.0
    if message.primitive == "AllReduce":
        return 2 * share * message.in_n
    if message.primitive == "SendRecv":
        return share * max(message.in_n, message.out_n)
    return share * max(message.in_n, message.out_n)
