"""Faults put into a captured job: in every step of every rank, at one call of one collective."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

Event = dict[str, Any]
Change = Callable[[list[Event], list[Event]], None]
"""Gets all events of a file and those of the call: the recorded call and the operators around it, innermost first."""

WRAPPERS = ("c10d::", "_c10d_functional::all_", "_c10d_functional::reduce_")


def injected(source: Path, target: Path, collective: str, which: int, change: Change, steps: int = 3) -> Path:
    """A copy of a captured job with one call changed per step.

    Args:
        source: the folder of the job.
        target: the folder to write.
        collective: as PyTorch records it: ``allreduce``, ``_allgather_base``, ...
        which: the how many-th call of it in each step.
        change: what to do with the call.
        steps: how many steps must have been changed on every rank.
    """
    target.mkdir()
    for path in sorted(source.glob("rank*.json.gz")):
        document = json.loads(gzip.decompress(path.read_bytes()))
        events: list[Event] = document["traceEvents"]
        calls = _calls(events, collective, which)
        assert len(calls) == steps
        for call in calls:
            change(events, call)
        (target / path.name.removesuffix(".gz")).write_text(json.dumps(document))
    return target


def _calls(events: list[Event], collective: str, which: int) -> list[list[Event]]:
    whole = [e for e in events if e.get("ph") == "X"]
    out = []
    for step in (e for e in whole if e["name"].startswith("ProfilerStep")):
        mine = [e for e in whole if e.get("args", {}).get("Collective name") == collective and _within(e, step)]
        mine.sort(key=lambda e: e["ts"])
        if which < len(mine):
            out.append(_around(whole, mine[which]))
    return out


def _around(whole: list[Event], call: Event) -> list[Event]:
    """The recorded call, the operators that contain it, and the backend's own mark of it."""
    around = [e for e in whole if e["tid"] == call["tid"] and e["name"].startswith(WRAPPERS) and _within(call, e)]
    return [call, *sorted(around, key=lambda e: e["dur"])]


def _within(inner: Event, outer: Event) -> bool:
    return bool(outer["ts"] <= inner["ts"] and inner["ts"] + inner["dur"] <= outer["ts"] + outer["dur"])


def remove(events: list[Event], call: list[Event]) -> None:
    """The call was never made."""
    for event in call:
        events.remove(event)


def repeat(events: list[Event], call: list[Event]) -> None:
    """The call was made once more, right after, in no time: the step is as long as before."""
    outer = call[-1]
    start = outer["ts"] + outer["dur"] + 0.1
    for depth, event in enumerate(reversed(call)):
        twin = json.loads(json.dumps(event))
        twin["ts"], twin["dur"] = start + depth * 0.01, 0.5 - depth * 0.1
        for key in ("External id", "Seq", "Comms Id"):
            if key in twin["args"]:
                twin["args"][key] += 100_003
        events.append(twin)


def as_bfloat16(events: list[Event], call: list[Event]) -> None:
    """The array has another type."""
    call[0]["args"]["dtype"] = "BFloat16"
