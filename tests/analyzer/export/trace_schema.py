"""What the Trace Event Format demands of a JSON trace, checked strictly: the document says what viewers rely on.

From "Trace Event Format" (Chromium project, public document): the phases and the fields that each of them must have.
"""

from __future__ import annotations

import gzip
import json
import math
from collections import defaultdict
from pathlib import Path
from typing import Any

INT, NUMBER = (int,), (int, float)
INSTANTS = {"i", "I", "R"}
FLOWS = {"s", "t", "f"}
PHASES = {"X", "C", "M", *INSTANTS, *FLOWS, "b", "n", "e", "B", "E"}
METADATA = {
    "process_name": ("name", str),
    "thread_name": ("name", str),
    "process_labels": ("labels", str),
    "process_sort_index": ("sort_index", int),
    "thread_sort_index": ("sort_index", int),
}


def load(path: Path) -> dict[str, Any]:
    """A trace as strict JSON: no NaN, no duplicate keys."""
    data = path.read_bytes()
    text = (gzip.decompress(data) if path.name.endswith(".gz") else data).decode("utf-8", "strict")

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        keys = [key for key, _ in pairs]
        assert len(keys) == len(set(keys)), f"a key occurs twice: {keys}"
        return dict(pairs)

    def refuse(word: str) -> None:
        raise AssertionError(f"{word} is no JSON")

    document: dict[str, Any] = json.loads(text, object_pairs_hook=unique, parse_constant=refuse)
    return document


def check(document: dict[str, Any], *, flows_of_others: bool = False) -> None:
    """Every demand at once.

    Args:
        document: from `load`.
        flows_of_others: whether flows that were in the originals may lack an end.
    """
    assert isinstance(document["traceEvents"], list)
    assert document["displayTimeUnit"] in ("ms", "ns")
    for event in document["traceEvents"]:
        _event(event)
    _flows(document["traceEvents"], flows_of_others)
    _nesting([e for e in document["traceEvents"] if e.get("cat") == "commlens"])


def _event(event: dict[str, Any]) -> None:
    phase = event["ph"]
    assert phase in PHASES, event
    assert isinstance(event["name"], str), event
    assert type(event["pid"]) is int, event
    assert 0 <= event["pid"] < 2**32, event
    assert "tid" not in event or (type(event["tid"]) is int and 0 <= event["tid"] < 2**32), event
    assert phase == "M" or (isinstance(event["ts"], NUMBER) and math.isfinite(event["ts"])), event
    assert "args" not in event or isinstance(event["args"], dict), event
    if phase == "X":
        assert isinstance(event["dur"], NUMBER), event
        assert event["dur"] >= 0, event
        assert "tid" in event, event
    if phase == "C":
        assert event["args"], event
        assert all(isinstance(value, NUMBER) and math.isfinite(value) for value in event["args"].values()), event
    if phase in FLOWS:
        assert isinstance(event["id"], (int, str)), event
        assert not isinstance(event["id"], int) or 0 <= event["id"] < 2**53, event
    if phase == "M" and event["name"] in METADATA:
        key, kind = METADATA[event["name"]]
        assert isinstance(event["args"][key], kind), event
    if phase in INSTANTS:
        assert event.get("s", "t") in ("g", "p", "t"), event


def _flows(events: list[dict[str, Any]], flows_of_others: bool) -> None:
    """Each flow begins once and ends once, in order of time, and both ends lie in a slice."""
    flows: dict[tuple[Any, ...], list[dict[str, Any]]] = defaultdict(list)
    slices: dict[tuple[int, int], list[tuple[float, float]]] = defaultdict(list)
    for event in events:
        ours = event.get("cat") == "commlens"
        if event["ph"] in FLOWS and (ours or not flows_of_others):
            flows[event.get("cat"), event["name"] if ours else "", event["id"]].append(event)
        if event["ph"] == "X" and ours:
            slices[event["pid"], event["tid"]].append((event["ts"], event["ts"] + event["dur"]))
    for steps in flows.values():
        phases = [step["ph"] for step in sorted(steps, key=lambda step: (step["ts"], "stf".index(step["ph"])))]
        assert phases.count("s") == 1, steps
        assert phases.count("f") >= 1, steps
        for step in steps:
            if step.get("cat") == "commlens":
                assert phases[0] == "s", steps
                assert phases[-1] == "f", steps
                spans = slices[step["pid"], step["tid"]]
                assert any(start - 1e-3 <= step["ts"] <= end + 1e-3 for start, end in spans), step


def _nesting(events: list[dict[str, Any]]) -> None:
    """Slices of one track lie inside each other or apart: viewers draw nothing else."""
    lanes: dict[tuple[int, int], list[tuple[int, int]]] = defaultdict(list)
    for event in events:
        if event["ph"] == "X":
            begin = round(event["ts"] * 1000)
            lanes[event["pid"], event["tid"]].append((begin, begin + round(event["dur"] * 1000)))
    for spans in lanes.values():
        end = -(2**63)
        for start, stop in sorted(spans):
            assert start >= end, (start, end)
            end = stop
