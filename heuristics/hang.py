"""Why a job hangs, from the Flight Recorder dumps of its ranks.

A hung job shows the same picture on most ranks: they wait. What matters is for whom. Every rank waits in its oldest
unfinished call for the ranks that have not issued it, or that are stuck in an older call of their own; following these
leads to ranks that wait for nobody. They stopped for a reason of their own: the host thread never came to the call
(a data loader, a lock, a crash), or the call was issued and their GPU never finished what it finished for all others.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING

import numpy as np

from heuristics.hang_dumps import FINISHED, NOT_ISSUED, UNKNOWN, WAITING, Dumps, GroupOfJob, OfDump, RankDump
from heuristics.hang_match import DTYPE, MATCHED, SIZE, STATE, TYPE, UNDECIDED, CallOfRank, Match, by_stack, match
from parsers.errors import InputError

if TYPE_CHECKING:
    import numpy.typing as npt


CONTRADICTIONS = frozenset({TYPE, SIZE, DTYPE})
"""Ways to match that are a fault of the program by themselves."""


@dataclass(frozen=True)
class Divergence:
    """The first collective of a group on which its ranks do not stand alike.

    Attributes:
        group: name of the process group.
        desc: its description.
        ranks: its members, in group order; null where no dump lists them.
        seq: the sequence number (`collective_seq_id`).
        op: what the majority calls.
        state: how the calls match, as Flight Recorder says it: ``FULLY_MATCHED``, ``COLLECTIVE_TYPE_MISMATCH``,
            ``SIZE_OR_SYNTAX_MISMATCH``, ``COLLECTIVE_DTYPE_MISMATCH``, ``COLLECTIVE_STATE_MISMATCH``, ``UNDECIDED``.
        waiting: members that issued it and had not finished.
        finished: members for which it was over.
        missing: members that have not issued it.
        unknown: members whose dump does not reach back to it, or that left none.
        outliers: members whose call differs from the majority's, or that alone had not finished it.
        details: sentences on the differences.
        issued: the last collective that each member asked for, where known.
        expected: collectives that every member should have issued by now: as many as the furthest one has.
        stacks: where in the code the waiting members are, the largest party first.
        missing_stacks: where the latest call of each missing member was made.
        calls_per_step: collectives that are expected on the group in a step, where that is known.
        step, call_in_step: where in the run this is by that number, both counted from 0 with the group's first call.
    """

    group: str
    desc: str | None
    ranks: tuple[int, ...] | None
    seq: int
    op: str
    state: str
    waiting: tuple[int, ...]
    finished: tuple[int, ...]
    missing: tuple[int, ...]
    unknown: tuple[int, ...]
    outliers: tuple[int, ...]
    details: tuple[str, ...]
    issued: Mapping[int, int]
    expected: int
    stacks: tuple[tuple[tuple[int, ...], str], ...]
    missing_stacks: tuple[tuple[tuple[int, ...], str], ...]
    calls_per_step: int | None = None
    step: int | None = None
    call_in_step: int | None = None

    @property
    def held(self) -> bool:
        """Whether all members are in the same call and agree: this group is held up by another."""
        alike = self.state in (MATCHED, UNDECIDED)
        return alike and not (self.finished or self.missing or self.unknown)


@dataclass(frozen=True)
class Message:
    """The oldest unfinished call of a rank, where it is a send or receive.

    ``matched`` says whether the peer has an unfinished counterpart; null where the peer left no dump.
    """

    rank: int
    op: str
    peer: int | None
    group: str
    seq: int
    matched: bool | None


@dataclass(frozen=True)
class Suspect:
    """A rank that others wait for and that waits for nobody, and why it stopped."""

    rank: int
    reason: str
    waited_for_by: tuple[int, ...]


@dataclass(frozen=True)
class HangReport:
    """What the dumps of a hung job show.

    Attributes:
        verdict: one sentence.
        suspects: the ranks to look at first.
        deadlock: ranks that wait for each other in a circle; empty without one.
        divergences: per group that is not done, its first divergent collective; those of the suspects first.
        messages: ranks held up by a send or receive.
        waits_for: per rank, the ranks that its oldest unfinished call waits for.
        ranks: that left a dump.
        absent: ranks that groups name and that left none.
    """

    verdict: str
    suspects: tuple[Suspect, ...] = ()
    deadlock: tuple[int, ...] = ()
    divergences: tuple[Divergence, ...] = ()
    messages: tuple[Message, ...] = ()
    waits_for: Mapping[int, tuple[int, ...]] = field(default_factory=lambda: MappingProxyType({}))
    ranks: tuple[int, ...] = ()
    absent: tuple[int, ...] = ()


def hang_report(traces: Iterable[OfDump], calls_per_step: Mapping[str, int] | None = None) -> HangReport:
    """Read the dumps of a job that hangs.

    Args:
        traces: what `parsers.flight_recorder` made of the dumps; other traces are passed over.
        calls_per_step: collectives that are expected per step, by group name (of the ledger, or seen in traces); says
            in which step the job hangs, counted from the first call of the group.

    Raises:
        InputError: no trace is a dump of a known rank.
    """
    dumps = Dumps.of(traces)
    if not dumps.ranks:
        raise InputError(
            "none of the files is a Flight Recorder dump of a known rank", hint="give the dumps of all ranks"
        )
    found = [d for group in dumps.groups if (d := _divergence(dumps, group, calls_per_step or {})) is not None]
    waits = {rank: _blockers(dumps, dump) for rank, dump in dumps.ranks.items()}
    suspects = _suspects(dumps, waits, found)
    deadlock = () if suspects else _circle(waits)
    named = {s.rank for s in suspects} | set(deadlock)
    found.sort(key=lambda d: (not named & {*d.missing, *d.outliers, *d.unknown}, -len(d.ranks or ()), d.group))
    return HangReport(
        verdict=_verdict(dumps, suspects, deadlock, found),
        suspects=suspects,
        deadlock=deadlock,
        divergences=tuple(found),
        messages=tuple(m for dump in dumps.ranks.values() if (m := _message(dumps, dump)) is not None),
        waits_for=MappingProxyType({rank: who for rank, who in waits.items() if who}),
        ranks=tuple(sorted(dumps.ranks)),
        absent=dumps.absent,
    )


# -- the first divergent collective of a group


def _divergence(dumps: Dumps, group: GroupOfJob, per_step: Mapping[str, int]) -> Divergence | None:
    members = dumps.members(group)
    if len(group.ranks or members) < 2:
        return None
    issued = {rank: last for rank in members if (last := dumps.issued(rank, group.name)) is not None and last >= 0}
    for seq in _candidates(dumps, group.name, members, issued):
        standing = {rank: dumps.standing(rank, group.name, seq) for rank in members}
        calls = [dumps.ranks[rank].call(row) for rank, (_, row) in standing.items() if row is not None]
        matched = match(calls, len(group.ranks or members))
        by_state = {state: [r for r, (said, _) in standing.items() if said == state] for state in _STANDINGS}
        if matched.state in (MATCHED, UNDECIDED) and not by_state[WAITING]:
            continue
        return _describe(dumps, group, seq, calls, matched, by_state, issued, per_step.get(group.name))
    return None


_STANDINGS = (WAITING, FINISHED, NOT_ISSUED, UNKNOWN)


def _candidates(dumps: Dumps, group: str, members: Sequence[int], issued: Mapping[int, int]) -> list[int]:
    """Sequence numbers, ascending, on which the members may stand differently: all but those finished alike."""
    parts = [(dumps.ranks[rank], dumps.ranks[rank].rows(group)) for rank in members]
    seqs = np.concatenate([dump.seq[rows] for dump, rows in parts]) if parts else np.empty(0, np.int64)
    if not len(seqs):
        return []
    done = np.concatenate([dump.done[rows] for dump, rows in parts])
    kind = _signatures(parts)
    number, place = np.unique(seqs, return_inverse=True)
    alike = np.ones(len(number), dtype=np.bool_)
    alike[place[~done]] = False
    first = np.zeros(len(number), dtype=np.int64)
    first[place[::-1]] = kind[::-1]
    alike[place[kind != first[place]]] = False
    behind = np.array([sum(last < n for last in set(issued.values())) for n in number.tolist()])
    return [int(n) for n in number[~alike | (behind > 0)]]


def _signatures(parts: Sequence[tuple[RankDump, npt.NDArray[np.int64]]]) -> npt.NDArray[np.int64]:
    """A number per entry that is equal for calls that agree."""
    known: dict[object, int] = {}
    out: list[int] = []
    columns = ["op", "input_sizes", "output_sizes", "input_dtypes", "output_dtypes"]
    for dump, rows in parts:
        table = dump.dump.entries.select(columns).take(rows)
        for said in table.to_pylist():
            shapes = (said["input_sizes"] or [], said["output_sizes"] or [])
            types = (said["input_dtypes"] or [], said["output_dtypes"] or [])
            call = CallOfRank(dump.rank, said["op"] or "", None, *shapes, *types)
            out.append(known.setdefault(call.signature, len(known)))
    return np.array(out, dtype=np.int64)


def _describe(
    dumps: Dumps,
    group: GroupOfJob,
    seq: int,
    calls: Sequence[CallOfRank],
    matched: Match,
    by_state: Mapping[str, Sequence[int]],
    issued: Mapping[int, int],
    per_step: int | None,
) -> Divergence:
    absent = [rank for rank in group.ranks or () if rank not in dumps.ranks]
    waiting, finished = by_state[WAITING], by_state[FINISHED]
    state, outliers = matched.state, matched.outliers
    if state in (MATCHED, UNDECIDED) and waiting and finished:
        state, outliers = STATE, tuple(waiting)
    ops = [call.op for call in calls]
    return Divergence(
        group=group.name,
        desc=group.desc,
        ranks=group.ranks,
        seq=seq,
        op=max(sorted(set(ops)), key=ops.count),
        state=state,
        waiting=tuple(waiting),
        finished=tuple(finished),
        missing=tuple(by_state[NOT_ISSUED]),
        unknown=(*by_state[UNKNOWN], *absent),
        outliers=outliers,
        details=matched.details,
        issued=MappingProxyType(dict(issued)),
        expected=max(issued.values()),
        stacks=by_stack({call.rank: call.stack for call in calls}),
        missing_stacks=by_stack({rank: dumps.ranks[rank].last_stack for rank in by_state[NOT_ISSUED]}),
        calls_per_step=per_step or None,
        step=None if not per_step else (seq - 1) // per_step,
        call_in_step=None if not per_step else (seq - 1) % per_step,
    )


# -- who waits for whom


def _blockers(dumps: Dumps, dump: RankDump) -> tuple[int, ...]:
    """The ranks that a rank's oldest unfinished call waits for."""
    row = dump.oldest
    if row is None:
        return ()
    if dump.p2p[row]:
        peer = dump.peer(row)
        if peer is None or peer == dump.rank:
            return ()
        return () if peer in dumps.ranks and _together(dumps.ranks[peer], dump.rank) else (peer,)
    group = dumps.group_of.get((dump.rank, dump.name_of(row)))
    if group is None or group.ranks is None:
        return ()
    seq, others = int(dump.seq[row]), [rank for rank in group.ranks if rank != dump.rank]
    here = [rank for rank in others if rank in dumps.ranks]
    held = [rank for rank in here if _holds_up(dumps, rank, group.name, seq)]
    return tuple(held or [rank for rank in others if rank not in dumps.ranks])


def _holds_up(dumps: Dumps, rank: int, group: str, seq: int) -> bool:
    """Whether a rank has not come to a collective, or has issued it behind an older call that it is stuck in."""
    standing, row = dumps.standing(rank, group, seq)
    return standing == NOT_ISSUED or (standing == WAITING and dumps.ranks[rank].oldest != row)


def _together(peer: RankDump, rank: int) -> bool:
    """Whether the peer's oldest unfinished call is a message between the two as well."""
    row = peer.oldest
    return row is not None and bool(peer.p2p[row]) and peer.peer(row) == rank


def _suspects(dumps: Dumps, waits: Mapping[int, Sequence[int]], found: Sequence[Divergence]) -> tuple[Suspect, ...]:
    waited: dict[int, list[int]] = {}
    for rank, blockers in waits.items():
        for blocker in blockers:
            waited.setdefault(blocker, []).append(rank)
    ends = [rank for rank in waited if not waits.get(rank)]
    if not waited:  # everybody is in the same call
        ends = sorted({rank for divergence in found for rank in divergence.waiting})
    reasons: dict[int, str] = {}
    for rank in ends:
        wrong = _wrong_call(dumps, rank, found)
        if wrong is not None:
            what = wrong.state.lower().replace("_", " ")
            said = f"{what} in {wrong.op} #{wrong.seq} of {_label(wrong)}"
            reasons |= dict.fromkeys(wrong.outliers or wrong.waiting, said)
        elif waited:
            reasons[rank] = _reason(dumps, rank)
    return tuple(Suspect(rank, reason, tuple(sorted(waited.get(rank, ())))) for rank, reason in sorted(reasons.items()))


def _wrong_call(dumps: Dumps, rank: int, found: Sequence[Divergence]) -> Divergence | None:
    """The divergence that a rank is stuck in, where the calls of the group's ranks contradict each other."""
    dump = dumps.ranks.get(rank)
    row = dump.oldest if dump is not None else None
    if dump is None or row is None or dump.p2p[row]:
        return None
    place = (dump.name_of(row), int(dump.seq[row]))
    wrong = [d for d in found if (d.group, d.seq) == place and d.state in CONTRADICTIONS and rank in d.waiting]
    return wrong[0] if wrong else None


def _reason(dumps: Dumps, rank: int) -> str:
    if rank not in dumps.ranks:
        return "left no dump: it crashed, or its dump was not given"
    dump = dumps.ranks[rank]
    row = dump.oldest
    if row is None:
        return "waits in no call: its host thread did not come to the next one"
    call, name = dump.call(row), dump.name_of(row)
    group = dumps.group_of.get((rank, name))
    label = group.label if group is not None else f"group {name}"
    others = [r for r in (group.ranks if group and group.ranks else ()) if r != rank and r in dumps.ranks]
    where = f"{call.op} #{int(dump.seq[row])} of {label}"
    over = [r for r in others if not dump.p2p[row] and dumps.standing(r, name, int(dump.seq[row]))[0] == FINISHED]
    if over:
        return f"its GPU has not finished {where}, which rank {over[0]} has: look at the device"
    return f"is stuck in {where}, which every other rank of the group has issued"


def _circle(waits: Mapping[int, Sequence[int]]) -> tuple[int, ...]:
    """Ranks that wait for each other, where following the waits leads back."""
    for start in sorted(waits):
        path: dict[int, int] = {}
        here: int | None = start
        while here is not None and here not in path:
            path[here] = len(path)
            here = min(waits.get(here, ()), default=None)
        if here is not None:
            return tuple(sorted(rank for rank, place in path.items() if place >= path[here]))
    return ()


def _message(dumps: Dumps, dump: RankDump) -> Message | None:
    row = dump.oldest
    if row is None or not dump.p2p[row]:
        return None
    call, peer = dump.call(row), dump.peer(row)
    other = dumps.ranks.get(peer) if peer is not None else None
    matched = None if other is None else _answers(other, dump.rank, call.op)
    return Message(dump.rank, call.op, peer, dump.name_of(row), int(dump.seq[row]), matched)


def _answers(peer: RankDump, rank: int, op: str) -> bool:
    """Whether the peer has an unfinished call to the other end of a message."""
    wanted = "recv" if op == "send" else "send"
    rows = np.flatnonzero(peer.p2p & ~peer.done)
    return any(peer.peer(int(row)) == rank and peer.call(int(row)).op == wanted for row in rows)


# -- one sentence


def _verdict(dumps: Dumps, suspects: Sequence[Suspect], deadlock: Sequence[int], found: Sequence[Divergence]) -> str:
    few = f" ({len(dumps.ranks)} of {len(dumps.ranks) + len(dumps.absent)} ranks left a dump)" if dumps.absent else ""
    if suspects:
        named = ", ".join(str(s.rank) for s in suspects[:8]) + (" and more" if len(suspects) > 8 else "")
        alike = {s.reason for s in suspects}
        why = f": {suspects[0].reason}" if len(alike) == 1 or len(suspects) == 1 else ""
        return f"look at rank{'s' if len(suspects) > 1 else ''} {named}{why}{few}"
    if deadlock:
        return f"ranks {', '.join(map(str, deadlock))} wait for each other: calls in different order{few}"
    stuck = next((d for d in found if d.waiting), None)
    if stuck is not None:
        where = f"{stuck.op} #{stuck.seq} of {_label(stuck)}"
        return f"every rank is in {where} and their calls agree: look at the network{few}"
    return f"no call is unfinished: the dumps show no hang{few}"


def _label(divergence: Divergence) -> str:
    return divergence.desc or f"group {divergence.group}"
