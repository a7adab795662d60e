"""Who is in which communicator, as one report tells it: what readers of other formats are joined with. Light."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from parsers.nccl_log import NcclLog
    from parsers.tables import RankIdentity


@dataclass(frozen=True)
class Member:
    """One process's place in one communicator.

    Attributes:
        name: the communicator's hash (``0xdeadbeefcafe0123``), equal on all members and between NVTX payloads, logs and
            NCCL's Inspector; None before NCCL 2.25.
        rank: in the communicator; None for a child of a split, whose payload says only where it came from.
        size: number of members; None for a child.
        device: CUDA device; None where not recorded.
        parent: of a child, the hash of the communicator that was split.
        color: of a child; ranks of the parent with the same color are in the same child.
        key: of a child; its ranks are in order of key, then of the parent's rank.
        parent_rank: of a child, rank in the parent.
        parent_size: of a child, size of the parent.
    """

    name: str | None
    rank: int | None
    size: int | None
    device: int | None = None
    parent: str | None = None
    color: int | None = None
    key: int | None = None
    parent_rank: int | None = None
    parent_size: int | None = None


@dataclass(frozen=True)
class Place:
    """One rank, and the communicators it is in.

    Attributes:
        identity: who it is.
        members: its places, as far as its report shows communicators being made.
        names: communicators that its calls name.
    """

    identity: RankIdentity
    members: tuple[Member, ...]
    names: frozenset[str]


@dataclass(frozen=True, eq=False)
class NsysWitness:
    """What a report of Nsight Systems says of one rank beyond the tables.

    Attributes:
        members: its places in communicators, in the order in which they were made.
        from_start: whether the report shows NCCL from its first communicator on, so that ``members`` is complete.
        log: the NCCL log among the captured output, of all processes of the report.
    """

    members: tuple[Member, ...] = ()
    from_start: bool = False
    log: NcclLog | None = None
