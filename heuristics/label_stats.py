"""How the communication of one rank was recognised, in numbers."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import numpy as np

from heuristics.arrays import NULL, codes, ints
from heuristics.columns import Bools, Ints, at
from heuristics.kernels import PACK
from heuristics.labelled import CERTAIN, LabelStats, Steps
from heuristics.primitives import SOURCES, Decision

if TYPE_CHECKING:
    from heuristics.calls import Records
    from heuristics.evidence import Evidence
    from parsers.tables import RankTrace


def stats_of(
    trace: RankTrace,
    records: Records,
    seen: Evidence,
    decision: Decision,
    span: Ints,
    silent: Bools,
    steps: Steps,
) -> LabelStats:
    """Time per kind of evidence, what no evidence named, disagreements, and what the window cut."""
    busy, owner, name = _busy(trace, records, seen, span)
    source = at(decision.source, owner)
    by_source = {
        text: int(busy[source == number].sum()) for number, text in enumerate(SOURCES) if (source == number).any()
    }
    unknown = source == NULL
    names: Counter[str] = Counter()
    for text, ns in zip(np.array(name, dtype=object)[unknown], busy[unknown].tolist(), strict=True):
        names[text] += ns
    return LabelStats(
        comm_ns_by_source=by_source,
        unclassified_ns=int(busy[unknown].sum()),
        unclassified_names=tuple(names.most_common()),
        conflicts=decision.conflicts,
        notes=_notes(trace, records, seen, silent, steps),
    )


def _busy(trace: RankTrace, records: Records, seen: Evidence, span: Ints) -> tuple[Ints, Ints, list[str]]:
    """Duration, call and name of every piece of communication: GPU events, or calls where nothing ran on a GPU."""
    if trace.on_gpu:
        event = seen.work.event[seen.work.role != PACK]
        code, names = codes(trace.gpu_events, "name")
        text = [names[c] if c >= 0 else "" for c in code[event].tolist()]
        return ints(trace.gpu_events, "dur_ns", 0)[event], seen.event_call[event], text
    shown = np.where(span >= 0, span, seen.anchor)
    text = [records.names[c] if c >= 0 else "" for c in at(records.name, seen.anchor).tolist()]
    return at(records.dur, shown, 0), np.arange(len(seen.anchor)), text


def _notes(trace: RankTrace, records: Records, seen: Evidence, silent: Bools, steps: Steps) -> tuple[str, ...]:
    notes = []
    if not steps.certain:
        notes.append(
            f"steps are inferred, and around a boundary nothing was recorded for so long that it is not certain to "
            f"{CERTAIN:.1%} of a step"
        )
    if not trace.on_gpu:
        if len(seen.anchor) and at(records.spans, seen.anchor, False).all():
            notes.append(
                "calls are known from the backend's annotations only, which call a reduce-scatter an all-reduce"
            )
        return tuple(notes)
    if silent.any():
        notes.append(f"{int(silent.sum())} calls left no kernel in the window")
    early = int(((seen.work.launch < 0) & (seen.work.role != PACK)).sum())
    if early and trace.launches.num_rows:
        notes.append(f"{early} communication kernels have no launch in the window")
    return tuple(notes)
