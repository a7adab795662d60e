"""The communicators of a report: who is in them, as far as one report tells."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from parsers import tables
from parsers.assemble import table
from parsers.columns import NULL
from parsers.errors import InputError
from parsers.nccl_log import read as read_log
from parsers.nsys.functions import CALL, INIT
from parsers.nsys.nvtx import NcclRanges
from parsers.nsys.places import Member
from parsers.source import Source

if TYPE_CHECKING:
    from parsers.nccl_log import NcclLog

_UNSIGNED = (1 << 64) - 1


def hash_name(value: int) -> str:
    """The name of a communicator from its hash as a signed number."""
    return f"{value & _UNSIGNED:#x}"


def members_of(ranges: NcclRanges) -> list[Member]:
    """The communicators that the given ranges made."""
    rows = np.flatnonzero(ranges.kind == INIT)
    rows = rows[np.argsort(ranges.start[rows], kind="stable")]
    found: list[Member] = []
    for row in rows.tolist():
        said = {name: int(values[row]) for name, values in ranges.said.items()}
        known = {name: None if value == NULL else value for name, value in said.items()}
        if known["nranks"] is None or known["rank"] is None:
            continue
        name = None if known["comm"] is None else hash_name(said["comm"])
        if ranges.names[ranges.name[row]].startswith("ncclCommInit"):
            found.append(Member(name, known["rank"], known["nranks"], known["device"]))
        elif known["color"] != -1 and name is not None:  # NCCL_SPLIT_NOCOLOR: not in any child
            parent = None if known["parent"] is None else hash_name(said["parent"])
            found.append(
                Member(
                    name,
                    None,
                    None,
                    known["device"],
                    parent=parent,
                    color=known["color"],
                    key=known["key"],
                    parent_rank=known["rank"],
                    parent_size=known["nranks"],
                )
            )
    return [member for place, member in enumerate(found) if member.name is None or member not in found[:place]]


def shows_beginning(ranges: NcclRanges) -> bool:
    """Whether the first communicator is made before the first call: the capture did not begin in the middle."""
    made = ranges.start[ranges.kind == INIT]
    calls = ranges.start[ranges.kind == CALL]
    return bool(len(made)) and (not len(calls) or int(made.min()) < int(calls.min()))


def groups_of(members: Sequence[Member], *, complete: bool) -> pa.Table:
    """`parsers.tables.GROUPS` of one rank.

    Communicators without a name are told apart by nothing but their size: they are listed only where the list is
    ``complete``, since a call is looked for among them.
    """
    named = list({member.name: member for member in members if member.name is not None}.values())
    listed = named if named or not complete else [member for member in members if member.name is None]
    return table(
        tables.GROUPS,
        {
            "name": [member.name for member in listed],
            "backend": ["nccl"] * len(listed),
            "size": [member.size for member in listed],
            "ranks_source": ["none"] * len(listed),
            "declared": [True] * len(listed),
        },
    )


def with_log(members: Sequence[Member], log: NcclLog | None, pid: int, device: int | None) -> list[Member]:
    """The same, with what the NCCL log says of a process: communicators, and sizes and ranks of children."""
    if log is None:
        return list(members)
    columns = ["group", "comms_id", "pid", "device", "rank", "size"]
    said = {
        row["group"]: row
        for row in log.communicators.select(columns).to_pylist()
        if row["pid"] == pid and (device is None or row["device"] in (None, device)) and row["comms_id"] is not None
    }
    out: list[Member] = []
    for member in members:
        row = said.pop(member.name, None)
        if row is not None and member.rank is None:
            member = Member(member.name, row["rank"], row["size"], row["device"])
        out.append(member)
    return out + [Member(name, row["rank"], row["size"], row["device"]) for name, row in said.items()]


def log_of(lines: Iterable[str], name: str) -> NcclLog | None:
    """The NCCL log in captured output; None where there is none."""
    text = "\n".join(lines).encode()
    if not text:
        return None
    try:
        with Source(name, (block for block in (text,)), len(text), []) as source:
            traces = read_log(source)
    except InputError:
        return None
    return traces[0].witness if traces else None  # type: ignore[return-value]  # of every trace of a log
