"""Makes a Kineto trace small enough to keep: what an analysis of communication needs stays, event by event.

Kept are every event that has to do with communication with its arguments, every annotation and step mark, and the
outermost operators that neither enclose communication nor lie inside it: the time in which a thread computed. Of these
the shortest go, as long as they make up no more than `NEGLIGIBLE` of that time. Attention operators and the nodes of
the backward pass stay around what is kept. The arrows from forward to backward operators, the arguments of operators
that do not communicate, and the names of the machine go. No time is changed.
"""

from __future__ import annotations

import gzip
import itertools
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

Event = dict[str, Any]

NEGLIGIBLE = 0.02
"""The share of operator time that may be dropped with the shortest operators: most operators, hardly any time."""

_COMMUNICATION = ("record_param_comms", "c10d::", "_c10d_functional::", "gloo:", "nccl:")
_NOT_COMMUNICATION = "_c10d_functional::_wrap_tensor_autograd"
_BACKWARD_NODE = "autograd::engine::evaluate_function: "
_ATTENTION = "scaled_dot_product"
_IN_FLIGHT = ("gloo:send", "gloo:recv")
"""Annotations from the call to its wait, on the caller's thread: they neither nest nor enclose their own work."""

_USELESS_ARGS = ("Ev Idx", "Record function id", "Input Strides")


def _communicates(event: Event) -> bool:
    return event["name"].startswith(_COMMUNICATION) and event["name"] != _NOT_COMMUNICATION


def _is_operator(event: Event) -> bool:
    return event.get("cat") == "cpu_op" and not _communicates(event)


def _is_node(event: Event) -> bool:
    return event["name"].startswith(_BACKWARD_NODE)


def _nest(events: Iterable[Event]) -> list[tuple[Event, list[Event]]]:
    """The events of one thread in order, each with those around it, outermost first."""
    nested: list[tuple[Event, list[Event]]] = []
    stack: list[Event] = []
    for event in sorted(events, key=lambda e: (e["ts"], -e["dur"])):
        while stack and event["ts"] >= stack[-1]["ts"] + stack[-1]["dur"]:
            stack.pop()
        nested.append((event, list(stack)))
        stack.append(event)
    return nested


def _long_enough(events: list[Event]) -> list[Event]:
    """The events less the shortest ones that together make up `NEGLIGIBLE` of their time."""
    ordered = sorted(events, key=lambda e: e["dur"])
    budget = NEGLIGIBLE * sum(e["dur"] for e in ordered)
    spent = itertools.accumulate(e["dur"] for e in ordered)
    return [event for event, so_far in zip(ordered, spent, strict=True) if so_far > budget]


def _kept_operators(threads: Iterable[list[Event]]) -> set[int]:
    """Identities of the operators that stay."""
    nested = [pair for thread in threads for pair in _nest(thread)]
    around_calls = {id(outer) for event, outside in nested if _communicates(event) for outer in outside}
    outermost: dict[int, Event] = {}
    for event, outside in nested:
        computes = _is_operator(event) and not _is_node(event) and id(event) not in around_calls
        if computes and not any(id(outer) in outermost or _communicates(outer) for outer in outside):
            outermost[id(event)] = event
    kept = {id(event) for event in _long_enough(list(outermost.values()))}
    kept |= {id(event) for event, _ in nested if _ATTENTION in event["name"] and not _is_node(event)}
    needed = kept | {id(event) for event, _ in nested if _communicates(event)}
    nodes = {id(outer) for event, outside in nested if id(event) in needed for outer in outside if _is_node(outer)}
    return kept | nodes


def _slim(event: Event) -> Event:
    args = event.get("args")
    if not isinstance(args, dict) or event["ph"] != "X":
        return event
    if _is_operator(event):
        return {key: value for key, value in event.items() if key != "args"}
    return event | {"args": {key: value for key, value in args.items() if key not in _USELESS_ARGS}}


def trim(trace: dict[str, Any], rank: int, backend: str = "gloo") -> dict[str, Any]:
    """A smaller trace that says the same about communication.

    Args:
        trace: a Kineto trace, as read from JSON.
        rank: whose it is.
        backend: the name that replaces that of the recording backend.

    Returns:
        A new trace; the argument is left as it is.
    """
    events: list[Event] = trace["traceEvents"]
    by_thread: dict[Any, list[Event]] = {}
    for event in events:
        if event["ph"] == "X" and (_is_operator(event) or _communicates(event)) and event["name"] not in _IN_FLIGHT:
            by_thread.setdefault((event["pid"], event["tid"]), []).append(event)
    operators = _kept_operators(by_thread.values())
    kept = [
        _slim(event)
        for event in events
        if event.get("cat") != "fwdbwd" and (not _is_operator(event) or id(event) in operators)
    ]

    distributed = dict(trace["distributedInfo"], backend=backend)
    distributed["pg_config"] = [
        group | {"backend_config": f"cpu:{backend},cuda:{backend}"} for group in distributed["pg_config"]
    ]
    header = {key: value for key, value in trace.items() if key != "traceEvents"}
    neutral = {"distributedInfo": distributed, "host_name": "node0", "traceName": f"rank{rank}.json"}
    return header | neutral | {"traceEvents": kept}


def write(trace: dict[str, Any], path: Path) -> int:
    """Write a trace as gzip that depends on nothing but its contents; returns the size in bytes."""
    data = json.dumps(trace, separators=(",", ":")).encode()
    path.write_bytes(gzip.compress(data, compresslevel=9, mtime=0))
    return path.stat().st_size
