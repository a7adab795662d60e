"""Which findings speak of the same microseconds: each is counted by the one that says most about it."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from analyzer.findings.base import NOISE, Facts
from analyzer.model import Finding

_WHOLE = {
    "pipeline.bubble": ("cause.bubble",),
    "link.slow": ("cause.slow_link",),
    "comm.on_compute_stream": ("cause.stream",),
    "wait.bound": ("cause.waiting",),
}
"""Findings that say more of the same time than others, which they replace."""

_PART = {"tp.crosses_nodes": "cause.by_design", "tp.regather": "cause.by_design"}
"""Findings whose cost is a part of that of another."""


def without_doubles(found: Sequence[Finding], facts: Facts) -> list[Finding]:
    """The findings without those that others replace, and without what others count already.

    Causes divide the exposed time of their dimension, so the dimension's own finding goes where a cause remains.
    """
    step = facts.exposure.step_us if facts.exposure is not None else 0.0
    ids = {item.id for item in found}
    replaced = {other for kind, others in _WHOLE.items() if kind in ids for other in others}
    taken: dict[tuple[str, str | None], float] = {}
    for item in found:
        if item.id in _PART:
            key = _PART[item.id], item.dim
            taken[key] = max(taken.get(key, 0.0), item.cost_us or 0.0)
    late = sum(item.share_of_waits for item in facts.timing.late) if facts.timing is not None else 0.0
    divided = {item.dim for item in found if item.id.startswith("cause.")}
    out = []
    for item in found:
        if item.id in replaced or (item.id.startswith("exposed.") and item.dim in divided):
            continue
        cost = item.cost_us
        if cost is not None and item.id == "cause.waiting":
            cost *= max(1.0 - late, 0.0)
        if cost is not None:
            cost -= taken.get((item.id, item.dim), 0.0)
        if cost != item.cost_us:
            if cost is None or cost < NOISE * step:
                continue
            item = msgspec.structs.replace(item, cost_us=round(cost, 3))
        out.append(item)
    return out
