"""PyTorch execution traces (``ExecutionTraceObserver``, JSON): operators with arguments and dependencies, without time.

What they cannot tell: when anything ran and how long (a Kineto trace of the same run has it, joined by ``rf_id`` =
``Record function id``), and over which wire. Before schema 1.1.1 the arguments of a collective are positional
(torch/csrc/distributed/c10d/ParamCommsUtils.hpp); later ones are attributes with Kineto's names.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from parsers.columns import whole_number
from parsers.flight_recorder_entry import MAX_RANKS

LAYER = "execution_trace"
COMM_NODE = "record_param_comms"
_GROUPS_NODE = "## process_group:init ##"
_NO_CALLS = frozenset({"wait", "init"})
_TENSOR = re.compile(r"Tensor\(([\w.:<>]{1,40})\)")


@dataclass(frozen=True)
class TraceGroup:
    """A process group as the trace declares it."""

    name: str
    desc: str | None
    size: int | None
    ranks: tuple[int, ...] | None
    address: int | None  # what positional arguments name the group by


@dataclass(frozen=True)
class CommNode:
    """One collective or message, with what its node says."""

    node: int
    name: str
    collective: str
    record_id: int | None = None
    tid: int | None = None
    group_name: str | None = None
    group_desc: str | None = None
    group_size: int | None = None
    rank: int | None = None  # in the group; of a message, the peer's
    seq: int | None = None
    dtype: str | None = None
    in_nelems: int | None = None
    out_nelems: int | None = None
    in_split: tuple[int, ...] | None = None
    out_split: tuple[int, ...] | None = None
    rank_start: int | None = None
    rank_stride: int | None = None
    message_bytes: int | None = None
    ts_ns: int | None = None
    dur_ns: int | None = None


def groups(nodes: Sequence[Any]) -> list[TraceGroup]:
    """The groups that the trace declares.

    An empty list of ranks stands for all of them (distributed_c10d `_get_all_pg_configs`).
    """
    found: list[TraceGroup] = []
    for node in nodes:
        if not isinstance(node, Mapping) or node.get("name") != _GROUPS_NODE:
            continue
        for said in _declared(_inputs(node)):
            size = whole_number(said.get("group_size"))
            listed = said.get("ranks")
            ranks: tuple[int, ...] | None = None
            if isinstance(listed, list):
                ranks = tuple(rank for rank in listed if isinstance(rank, int))
                if not ranks and size is not None and 0 < size <= MAX_RANKS:
                    ranks = tuple(range(size))
            desc = said.get("pg_desc")
            found.append(
                TraceGroup(
                    name=str(said.get("pg_name")),
                    desc=desc if isinstance(desc, str) and desc else None,
                    size=size,
                    ranks=ranks or None,
                    address=whole_number(said.get("backend_id")),
                )
            )
    return found


def _declared(values: Sequence[Any]) -> Iterator[Mapping[str, Any]]:
    text = values[0] if values else None
    if isinstance(text, str):
        try:
            text = json.loads(text)
        except (ValueError, RecursionError):
            text = None
    if isinstance(text, list):
        yield from (item for item in text if isinstance(item, Mapping))


def calls(nodes: Sequence[Any], known: Sequence[TraceGroup]) -> list[CommNode]:
    """The collectives and messages of a trace, in order of their nodes."""
    by_address = {group.address: group for group in known if group.address is not None}
    found = []
    for node in nodes:
        if isinstance(node, Mapping) and node.get("name") == COMM_NODE:
            attributes = _attributes(node)
            call = _named(node, attributes) if "collective_name" in attributes else _positional(node, by_address)
            if call is not None and call.collective not in _NO_CALLS:
                found.append(call)
    return sorted(found, key=lambda call: call.node)


def _attributes(node: Mapping[str, Any]) -> dict[str, Any]:
    said = node.get("attrs")
    return {
        str(item.get("name")): item.get("value")
        for item in (said if isinstance(said, list) else [])
        if isinstance(item, Mapping)
    }


def _named(node: Mapping[str, Any], said: Mapping[str, Any]) -> CommNode | None:
    """A node whose arguments are attributes."""
    collective, number = said.get("collective_name"), whole_number(node.get("id"))
    if not isinstance(collective, str) or not collective or number is None:
        return None
    name, desc = (str(said[key]) if said.get(key) not in (None, "") else None for key in ("pg_name", "pg_desc"))
    return CommNode(
        node=number,
        name=COMM_NODE,
        collective=collective,
        record_id=whole_number(said.get("rf_id")),
        tid=whole_number(said.get("tid")),
        group_name=name,
        group_desc=desc,
        group_size=whole_number(said.get("pg_size")),
        dtype=said["dtype"] if isinstance(said.get("dtype"), str) else None,
        in_nelems=whole_number(said.get("in_msg_nelems")),
        out_nelems=whole_number(said.get("out_msg_nelems")),
        in_split=_splits(said.get("in_split_size")),
        out_split=_splits(said.get("out_split_size")),
        rank_start=whole_number(said.get("global_rank_start")),
        rank_stride=whole_number(said.get("global_rank_stride")),
    )


def _positional(node: Mapping[str, Any], by_address: Mapping[int, TraceGroup]) -> CommNode | None:
    """A node of old: ``(tensors, sequence, group, rank, name, in splits, out splits, group size)``.

    The group is an address up to torch 2.3, then a tuple of name and description.
    """
    values, types = _inputs(node), _of(node, "inputs", "types")
    place = next((i for i, (v, t) in enumerate(zip(values, types, strict=False)) if t == "String" and v), None)
    number = whole_number(node.get("id"))
    if place is None or place < 2 or number is None or not isinstance(values[place], str):
        return None
    named = values[place - 2]
    address = whole_number(named)
    group = by_address.get(address) if address is not None else None
    name, desc = (group.name, group.desc) if group is not None else (None, None)
    if isinstance(named, list | tuple) and named and all(isinstance(part, str) for part in named):
        name, desc = named[0], (named[1] if len(named) > 1 and named[1] else None)
    size = whole_number(values[-1])
    attributes = _attributes(node)
    given, taken = _tensors(node, "inputs"), _tensors(node, "outputs")
    return CommNode(
        node=number,
        name=COMM_NODE,
        collective=values[place],
        record_id=whole_number(attributes.get("rf_id")),
        tid=whole_number(attributes.get("tid")),
        group_name=name,
        group_desc=desc,
        group_size=size if size is not None and size > 1 else (group.size if group is not None else size),
        rank=whole_number(values[place - 1]),
        seq=whole_number(values[place - 3]) if place >= 3 and isinstance(values[place - 3], int) else None,
        dtype=given[1] or taken[1],
        in_nelems=given[0],
        out_nelems=taken[0],
    )


def _tensors(node: Mapping[str, Any], side: str) -> tuple[int | None, str | None]:
    """Elements of all tensors on one side of a node (however nested their lists are), and their one type."""
    types = {found for text in _of(node, side, "types") for found in _TENSOR.findall(str(text))}
    stack: list[Any] = list(_of(node, side, "values"))
    total, tensors = 0, 0
    while stack:
        value = stack.pop()
        if not isinstance(value, list | tuple):
            continue
        if len(value) == 6 and isinstance(value[5], str) and all(isinstance(part, int) for part in value[:5]):
            total += value[3]  # id, storage, offset, elements, bytes of one, device
            tensors += 1
        else:
            stack.extend(value)
    return total if tensors else None, types.pop() if len(types) == 1 else None


def _inputs(node: Mapping[str, Any]) -> Sequence[Any]:
    return _of(node, "inputs", "values")


def _of(node: Mapping[str, Any], side: str, what: str) -> Sequence[Any]:
    """Values or types: of a dict, or (schema 1.0.1 and before) of a list with the types beside it."""
    said = node.get(side)
    if isinstance(said, Mapping):
        said = said.get(what)
    elif what != "values":
        said = node.get(f"{side[:-1]}_{what}")
    return said if isinstance(said, list) else []


def _splits(value: Any) -> tuple[int, ...] | None:
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError):
            return None
    return tuple(value) if isinstance(value, list) and value and all(isinstance(v, int) for v in value) else None
