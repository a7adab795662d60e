"""Communication nodes of MLCommons Chakra traces: the protobuf form (``.et``) and the JSON form.

Source: chakra schema/protobuf/et_def.proto. A collective appears twice, as the operator on the CPU and as the kernel;
only the kernel's node carries what was communicated, so only it counts.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from parsers.execution_trace import CommNode
from parsers.protobuf_wire import delimited, fields, real, signed

SEND, RECEIVE, COLLECTIVE = 5, 6, 7
"""NodeType: COMM_SEND_NODE, COMM_RECV_NODE, COMM_COLL_NODE."""

COLLECTIVES = (
    "all_reduce",
    "reduce",
    "all_gather",
    "gather",
    "scatter",
    "broadcast",
    "all_to_all",
    "reduce_scatter",
    "reduce_scatter",  # REDUCE_SCATTER_BLOCK
    "barrier",
)
"""CollectiveCommType by number."""

# One buffer whose size is the same on both sides; of the others the format does not say which side `comm_size` is.
_ONE_SIZE = frozenset({"all_reduce", "reduce", "broadcast", "send", "recv"})


def from_protobuf(data: bytes) -> list[CommNode]:
    """The communication nodes of an ``.et`` file.

    Raises:
        ValueError: it is damaged.
    """
    messages = delimited(data)
    next(messages, None)  # GlobalMetadata
    return [call for message in messages if (call := _node(message)) is not None]


def is_metadata(message: bytes) -> bool:
    """Whether a message can be GlobalMetadata: a version (field 1, text) or attributes (field 2) with names."""
    try:
        said = list(fields(message))
        names = [dict(fields(value)).get(1) for number, value in said if number == 2 and isinstance(value, bytes)]
    except ValueError:
        return False
    texts = [value for number, value in said if number == 1] + names
    return bool(texts) and all(isinstance(t, bytes) and t.isascii() and t.decode().isprintable() for t in texts)


def _node(message: bytes) -> CommNode | None:
    said: dict[int, int | bytes] = {}
    attributes: dict[str, Any] = {}
    for number, value in fields(message):
        if number == 10 and isinstance(value, bytes):
            attributes |= _attribute(value)
        else:
            said[number] = value
    kind, number_of = said.get(3), said.get(1, 0)
    if kind not in (SEND, RECEIVE, COLLECTIVE) or attributes.get("is_cpu_op") or not isinstance(number_of, int):
        return None
    name = said.get(2)
    start, duration = said.get(6), said.get(7)
    return _call(
        int(kind),
        number_of,
        name.decode("utf-8", "replace") if isinstance(name, bytes) else "",
        attributes,
        start if isinstance(start, int) else None,
        duration if isinstance(duration, int) else None,
    )


def _attribute(message: bytes) -> dict[str, Any]:
    """Name and value of an attribute; whatever width an integer was written in."""
    name: str | None = None
    value: Any = None
    for number, said in fields(message):
        if number == 1 and isinstance(said, bytes):
            name = said.decode("utf-8", "replace")
        elif number in (3, 5) and isinstance(said, bytes):
            value = real(said)
        elif number == 29 and isinstance(said, bytes):
            value = said.decode("utf-8", "replace")
        elif number == 27:
            value = bool(said)
        elif number % 2 and number > 5 and isinstance(said, int):
            value = signed(said)
    return {} if name is None else {name: value}


def _call(
    kind: int, node: int, name: str, said: Mapping[str, Any], start_us: int | None, duration_us: int | None
) -> CommNode | None:
    if kind == COLLECTIVE:
        number = said.get("comm_type")
        if not isinstance(number, int) or not 0 <= number < len(COLLECTIVES):
            return None
        word, peer = COLLECTIVES[number], None
    else:
        word = "send" if kind == SEND else "recv"
        peer = said.get("comm_dst" if kind == SEND else "comm_src")
    size, group = said.get("comm_size"), said.get("pg_name")
    return CommNode(
        node=node,
        name=name,
        collective=word,
        tid=said["tid"] if isinstance(said.get("tid"), int) else None,
        group_name=group if isinstance(group, str) and group else None,
        rank=peer if isinstance(peer, int) else None,
        message_bytes=size if isinstance(size, int) and size >= 0 and word in _ONE_SIZE else None,
        ts_ns=start_us * 1000 if start_us else None,
        dur_ns=duration_us * 1000 if duration_us else None,
    )


def from_json(document: Mapping[str, Any]) -> list[CommNode]:
    """The communication nodes of a JSON trace (``workload_graph``); the case of keys varies."""
    graph = document.get("workload_graph")
    nodes = [_lower(node) for node in (graph if isinstance(graph, list) else []) if isinstance(node, Mapping)]
    names = {number: str(node.get("name", "")) for node in nodes if isinstance(number := node.get("id"), int)}
    return [call for node in nodes if (call := _json_node(node, names)) is not None]


def _lower(node: Mapping[str, Any]) -> dict[str, Any]:
    return {str(key).lower().replace("_", ""): value for key, value in node.items()}


def _json_node(node: Mapping[str, Any], names: Mapping[Any, str]) -> CommNode | None:
    """A kernel's node; which operation it is says the operator on the CPU that it depends on."""
    kind, number = node.get("nodetype"), node.get("id")
    if kind not in (SEND, RECEIVE, COLLECTIVE) or node.get("iscpuop") or not isinstance(number, int):
        return None
    said = {"comm_type": node.get("commtype"), "comm_size": node.get("commsize"), "pg_name": node.get("pgname")}
    runtime = node.get("runtime")
    call = _call(
        int(kind), number, str(node.get("name", "")), said, None, runtime if isinstance(runtime, int) else None
    )
    if call is not None:
        return call
    word = next(_words(node, names), None)
    if word is None:
        return None
    duration = runtime * 1000 if isinstance(runtime, int) and runtime else None
    return CommNode(node=number, name=str(node.get("name", "")), collective=word, dur_ns=duration)


def _words(node: Mapping[str, Any], names: Mapping[Any, str]) -> Iterator[str]:
    parents = node.get("datadeps")
    for parent in parents if isinstance(parents, list) else []:
        name = names.get(parent, "") if isinstance(parent, int) else ""
        if name.startswith("c10d::"):
            yield name.removeprefix("c10d::").split("(", 1)[0].rstrip("_")
