"""Lines of a log of NCCL: a job written as its hosts, a letter per rank, such as ``aabb``."""

from __future__ import annotations


def job(hosts: str, *, nodes: bool = True) -> list[str]:
    """A communicator with one rank per letter; equal letters share a host."""
    n = len(hosts)
    lines = []
    for rank, host in enumerate(hosts):
        who = f"{host}:{100 + rank}:{200 + rank} [0] NCCL INFO"
        lines.append(
            f"{who} ncclCommInitRank comm 0x5{rank} rank {rank} nranks {n} cudaDev 0 nvmlDev 0 busId {rank}000 "
            "commId 0xbeef - Init START"
        )
        if nodes:
            local = hosts.count(host)
            lines.append(
                f"{who} comm 0x5{rank} rank {rank} nRanks {n} nNodes {len(set(hosts))} localRanks {local} "
                "localRank 0 MNNVL 0"
            )
    return lines


def link(hosts: str, src: int, dst: int, via: str, side: str = "") -> str:
    """How one rank is connected to another."""
    who = dst if side == "receive" else src
    return (
        f"{hosts[who]}:{100 + who}:{200 + who} [0] NCCL INFO Channel 00/0 : {src}[0] -> {dst}[0] "
        f"{f'[{side}] ' if side else ''}via {via}"
    )


def said(hosts: str, rank: int, text: str) -> str:
    """Anything else a rank prints."""
    return f"{hosts[rank]}:{100 + rank}:{200 + rank} [0] NCCL INFO {text}"
