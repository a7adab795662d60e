"""The trust block: what must be known before any number is believed."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

import numpy as np

from analyzer.job import Roster
from analyzer.model import Clock, StepTrust, Trust
from analyzer.rows import counted_calls
from analyzer.summary.model import RankSummary
from analyzer.words import plural, short_names
from heuristics.arrays import NULL, ints

_SINCE_1970_NS = 10**18
"""Larger times are counted from 1970: this one is of 2001, and no clock of a machine runs for 30 years."""

_CPU_JOB = "no GPU ran: communication is the operator, exposure is measured against the threads' operators"
_CALLS_ALONE = "calls alone are recorded, nothing that computes: what hides communication is not known"


def trust(
    traces: Sequence[RankSummary], ranks: Sequence[RankSummary], roster: Roster, clock: Clock, notes: Sequence[str] = ()
) -> Trust:
    """Take stock.

    Args:
        traces: everything that was read.
        ranks: what of it is analysed.
        roster: who is there.
        clock: how far the ranks' clocks agree.
        notes: what else is to be said, a sentence each.
    """
    return Trust(
        ranks_present=list(roster.present),
        ranks_missing=list(roster.missing),
        ranks_duplicated=list(roster.duplicated),
        events_repaired=sum(t.health.repaired for t in traces),
        events_quarantined=sum(t.health.quarantined for t in traces),
        events_clipped=sum(r.line.clipped for r in ranks),
        steps=_steps(ranks),
        comm_time_classified=_classified(ranks),
        comm_time_with_group=_share_of_time(ranks, "group"),
        comm_calls_with_bytes=_calls_with_bytes(ranks),
        clock=clock,
        warnings=[*notes, *roster.warnings, *_notes(traces, ranks)],
    )


def _steps(ranks: Sequence[RankSummary]) -> StepTrust:
    """Steps that are whole on every rank that has them, and those that are not whole on some rank."""
    sources = {r.steps.source for r in ranks}
    source = next((s for s in ("profiler_step", "inferred") if s in sources), "none")
    whole: set[int] = set()
    cut: set[int] = set()
    for r in ranks:
        whole |= set(r.steps.number[r.steps.complete].tolist())
        cut |= set(r.steps.number[~r.steps.complete].tolist())
    return StepTrust(source=source, complete=sorted(whole - cut), incomplete=sorted(cut))


def _classified(ranks: Sequence[RankSummary]) -> float | None:
    stats = [r.stats for r in ranks]
    known = sum(sum(s.comm_ns_by_source.values()) for s in stats)
    total = known + sum(s.unclassified_ns for s in stats)
    return round(known / total, 6) if total else None


def _share_of_time(ranks: Sequence[RankSummary], column: str) -> float | None:
    """Share of the calls' time for which a column is known."""
    known = total = 0
    for r in ranks:
        length = r.line.call_end - r.line.call_start
        total += int(length.sum())
        known += int(length[ints(r.collectives, column) != NULL].sum())
    return round(known / total, 6) if total else None


def _calls_with_bytes(ranks: Sequence[RankSummary]) -> float | None:
    tables = [r.collectives for r in ranks]
    sent = [ints(table, "sent_bytes")[counted_calls(table, ())] for table in tables]
    calls = sum(len(s) for s in sent)
    return round(sum(int(np.count_nonzero(s != NULL)) for s in sent) / calls, 6) if calls else None


def _notes(traces: Sequence[RankSummary], ranks: Sequence[RankSummary]) -> list[str]:
    """What the readers and the labelling have to say, once per sentence, with the files it holds for."""
    seen: dict[str, list[str]] = {}
    for trace in traces:
        for note in trace.health.notes:
            seen.setdefault(note, []).append(trace.path)
        if not trace.health.complete and trace.health.last_good_ts_ns is not None:
            seen.setdefault(f"the last event read begins at {_moment(trace.health.last_good_ts_ns)}", []).append(
                trace.path
            )
        if trace.health.first_damage_byte is not None:
            seen.setdefault(f"first damage at byte {trace.health.first_damage_byte:,}", []).append(trace.path)
    for rank in ranks:
        for note in _about(rank):
            seen.setdefault(note, []).append(rank.path)
    names = short_names([trace.path for trace in traces])
    return [_of_files(note, [names[path] for path in paths], len(traces)) for note, paths in seen.items()]


def _moment(ns: int) -> str:
    """A time of a trace: of the day where it counts from 1970, else as the trace has it."""
    if ns < _SINCE_1970_NS:
        return f"{ns / 1000:,.3f} µs"
    whole, rest = divmod(ns, 10**9)
    return f"{datetime.fromtimestamp(whole, UTC):%Y-%m-%d %H:%M:%S}.{rest // 1000:06d} UTC"


def _about(r: RankSummary) -> list[str]:
    stats, identity = r.stats, r.identity
    notes = list(stats.notes)
    if not r.on_gpu and r.collectives.num_rows:
        notes.append(_CPU_JOB if r.line.divides or r.steps.complete.any() else _CALLS_ALONE)
    if identity.rank_source not in ("metadata", None):
        notes.append(
            f"the rank comes from the {str(identity.rank_source).replace('_', ' ')}, not from the trace's header"
        )
    if r.line.clipped:
        what = plural(r.line.clipped, "GPU event")
        notes.append(f"{what} outlasted later ones of the same stream: cut where the next began")
    if r.host.lost_launches:
        notes.append(f"{plural(r.host.lost_launches, 'launch', 'launches')} left nothing on the GPU")
    count, worst = r.host.early
    if count:
        what = plural(count, "GPU event")
        notes.append(f"{what} before the launch, by up to {worst / 1000:,.0f} µs: two clocks that differ")
    if r.line.left_out:
        what = plural(r.line.left_out, "event")
        notes.append(f"{what} on another GPU than the one that communicates left out")
    if stats.conflicts:
        calls = sum(count for _, count in stats.conflicts)
        said = ", ".join(f"{what} ({count})" for what, count in stats.conflicts)
        notes.append(f"sources disagree about {calls} calls: {said}")
    if stats.unclassified_names:
        shown = ", ".join(name for name, _ in stats.unclassified_names[:3])
        notes.append(f"communication of unknown kind: {shown}")
    return notes


def _of_files(note: str, names: Sequence[str], files: int) -> str:
    if len(names) == files:
        return note if files == 1 else f"{note} (all files)"
    return f"{names[0]}: {note}" if len(names) == 1 else f"{note} ({len(names)} of {files} files)"
