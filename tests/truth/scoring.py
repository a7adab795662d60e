"""Right, null or wrong: inferred layouts against what a captured job was."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from heuristics.verdict import Layout

DEGREES = ("tp", "cp", "pp", "dp", "ep")
_SCHEDULES = (
    ("interleavedzero", "zero_bubble"),
    ("zerobubble", "zero_bubble"),
    ("interleaved", "interleaved_1f1b"),
    ("dualpipe", "dualpipe"),
    ("gpipe", "gpipe"),
    ("1f1b", "1f1b"),
)


def schedule_name(text: str | None) -> str | None:
    """One spelling for the names that frameworks and the result document give a schedule."""
    if not text:
        return None
    plain = re.sub(r"[^a-z0-9]", "", text.lower().replace("schedule", ""))
    if "zbv" in plain:
        return "zbv"
    return next((name for key, name in _SCHEDULES if key in plain), plain)


def truths(case: Path) -> dict[str, set[Any]]:
    """Per field, the answers that are right for a case."""
    told = json.loads((case / "truth.json").read_text())
    by_traffic = told.get("zero_by_traffic")
    stages = {told.get("zero_stage")} | set(by_traffic if isinstance(by_traffic, list) else [by_traffic])
    piped = (told.get("pp") or 1) > 1
    micro = {told.get("microbatches")}
    return {
        **{dim: {told.get(dim) or 1} for dim in DEGREES},
        "zero_stage": stages - {None},
        "sequence_parallel": {bool(told.get("sp"))} if (told.get("tp") or 1) > 1 else {False, None},
        "pp_schedule": {schedule_name(told.get("schedule"))} if piped else {None},
        "microbatches": micro if piped else micro | {None, 1},
        "virtual_stages": {told.get("vp") or 1} if piped else {1, None},
    }


def judge(layout: Layout, case: Path) -> tuple[list[str], list[str]]:
    """The fields that are wrong, with what they should be, and those that are null without being right."""
    wrong, null = [], []
    for name, allowed in truths(case).items():
        given = getattr(layout, name)
        given = schedule_name(given) if name == "pp_schedule" else given
        if given in allowed:
            continue
        if given is None:
            null.append(name)
        else:
            wrong.append(f"{name} is {given}, should be {sorted(map(str, allowed))}")
    return wrong, null
