"""What was true, what was answered, and whether they agree, field by field."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from heuristics.verdict import Layout

DEGREES = ("tp", "cp", "pp", "dp", "ep")
FIELDS = (*DEGREES, "zero", "sp", "schedule", "microbatches", "vp")
RIGHT, NULL, WRONG = "right", "null", "wrong"

Truth = Mapping[str, frozenset[Any]]
"""Per field, the answers that are right; a field that is not known is not there."""

_SCHEDULES = (
    ("interleavedzero", "zero_bubble"),
    ("zerobubbleh1", "zero_bubble"),
    ("interleaved", "interleaved_1f1b"),
    ("zbv", "zbv"),
    ("dualpipe", "dualpipe"),
    ("gpipe", "gpipe"),
    ("loopedbfs", "gpipe"),
    ("1f1b", "1f1b"),
)


@dataclass(frozen=True)
class Answer:
    """One answer to one case: the ten fields, and how sure of the five degrees and of each."""

    fields: Mapping[str, Any]
    confidence: float
    per_degree: Mapping[str, float]


def schedule_name(text: str | None) -> str | None:
    """One spelling for what frameworks and the result document call a schedule."""
    plain = re.sub(r"[^a-z0-9]", "", (text or "").lower().replace("schedule", ""))
    return next((name for key, name in _SCHEDULES if key in plain), plain or None)


def truth_of(folder: Path) -> Truth:
    """The answers that are right for a captured or generated job (``truth.json`` beside its traces)."""
    told = json.loads((folder / "truth.json").read_text())
    by_traffic = told.get("zero_by_traffic")
    stages = {told.get("zero_stage"), *(by_traffic if isinstance(by_traffic, list) else [by_traffic])}
    piped, tensor = (told.get("pp") or 1) > 1, (told.get("tp") or 1) > 1
    micro = told.get("microbatches")
    found = {dim: {told.get(dim) or 1} for dim in DEGREES}
    found["zero"] = stages - {None} or {None}
    found["sp"] = {bool(told.get("sp"))} if tensor else {False, None}
    found["schedule"] = {schedule_name(told.get("schedule"))} if piped else {None}
    found["microbatches"] = {micro} if piped else {micro, None, 1}
    found["vp"] = {told.get("vp") or 1} if piped and told.get("schedule") else {1, None}
    return {field: frozenset(values) for field, values in found.items()}


def answer_of(layout: Layout) -> Answer:
    """The ten fields of an inferred layout."""
    fields = {dim: getattr(layout, dim) for dim in DEGREES}
    fields |= {
        "zero": layout.zero_stage,
        "sp": layout.sequence_parallel,
        "schedule": schedule_name(layout.pp_schedule),
        "microbatches": layout.microbatches,
        "vp": layout.virtual_stages,
    }
    sure = {dim: verdict.confidence for dim, verdict in layout.dimensions.items()}
    return Answer(fields, layout.confidence, sure)


def judge(truth: Truth, answer: Answer) -> dict[str, str]:
    """Per known field: right, null or wrong."""
    verdicts = {}
    for field, allowed in truth.items():
        given = answer.fields.get(field)
        verdicts[field] = RIGHT if given in allowed else NULL if given is None else WRONG
    return verdicts
