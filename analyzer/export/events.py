"""The job's own events on their way into the export: on the common axis, with identifiers of their own, and with what
is known of the calls they belong to."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
from msgspec import Raw

from analyzer.export.calls import Calls
from analyzer.export.chrome import Event, base_ns, batches, header_of, microseconds, raw, text_of, times
from analyzer.export.cut import FLOWS, Cut, Window
from analyzer.export.identifiers import Identifiers, raw_int
from analyzer.exposure import Timeline
from analyzer.intervals import Ints
from analyzer.measured import Measured
from analyzer.words import plural
from parsers.columns import NULL
from parsers.kineto_events import GPU_KINDS

if TYPE_CHECKING:
    from analyzer.export.anonymize import Hider
    from heuristics.labelled import LabelledRank

_ON_GPU = frozenset(f'"{kind}"'.encode() for kind in GPU_KINDS)
_ON_CPU = frozenset((b'"cpu_op"', b'"user_annotation"', b'"Operator"'))
_ZERO, _NO_NAME = Raw(b"0"), Raw(b'""')
_LINKED = (*FLOWS, b'"b"', b'"n"', b'"e"', b'"S"', b'"T"', b'"p"', b'"F"', b'"N"', b'"O"', b'"D"')


@dataclass(frozen=True, eq=False)
class Placed:
    """A rank in the export.

    Attributes:
        rank: the rank.
        index: its position among all.
        calls: what is known of its calls.
        line: its timeline.
        labelled: the rank with its events; None where they are gone.
    """

    rank: Measured
    index: int
    calls: Calls
    line: Timeline
    labelled: LabelledRank | None


class Lookup:
    """Finds the call an event belongs to by when it began: every piece of communication is in the timeline."""

    def __init__(self, placed: Sequence[Placed]) -> None:
        start = [item.line.comm_start for item in placed]
        order = np.argsort(np.concatenate(start), kind="stable")
        self._start = np.concatenate(start)[order]
        self._end = np.concatenate([item.line.comm_end for item in placed])[order]
        self._call = np.concatenate([item.line.comm_call for item in placed])[order]
        self._place = np.repeat(np.arange(len(placed)), [len(one) for one in start])[order]
        self._placed = placed
        self._categories = _ON_GPU if any(item.line.on_gpu for item in placed) else _ON_CPU
        self._args: dict[tuple[int, int], bytes] = {}

    def near(self, start: Ints) -> tuple[Ints, Ints]:
        """For many starts, the first and the last + 1 of the pieces that begin there."""
        return np.searchsorted(self._start, start, "left"), np.searchsorted(self._start, start, "right")

    def args(self, event: Event, start_end: tuple[int, int], pieces: tuple[int, int]) -> bytes | None:
        """Arguments to add to an event, without braces; None where it belongs to no call.

        Of several pieces that begin at one moment it is the one of equal length (else none, unless there is only one).
        """
        if bytes(event.get("cat", b"")) not in self._categories or bytes(event.get("ph", b"")) != b'"X"':
            return None
        first, last = pieces
        equal = [i for i in range(first, last) if self._end[i] == start_end[1]]
        if not equal and (last - first > 1 or self._categories is _ON_CPU):
            return None
        piece = equal[0] if equal else first
        call, place = int(self._call[piece]), int(self._place[piece])
        if call < 0:
            return None
        if (place, call) not in self._args:
            said = self._placed[place].calls.args(call)
            for known in ("group", "dtype", "group_size", "library"):
                said.pop(known, None)  # Kineto's own arguments hold these
            self._args[place, call] = msgspec.json.encode(said)[1:-1]
        return self._args[place, call]


def passed_through(
    path: str,
    placed: Sequence[Placed],
    shift: Callable[[Ints], Ints],
    ids: Identifiers,
    window: Window | None,
    hide: Hider | None,
    notes: list[str],
) -> Iterator[list[dict[str, Any]]]:
    """The events of a Kineto file, ready to be written, block by block.

    Args:
        path: the file.
        placed: the ranks in it.
        shift: from its own clock (absolute ns) to ns since the origin.
        ids: gives new identifiers.
        window: what to keep; None for all.
        hide: hides names.
        notes: takes a sentence about what was left out.
    """
    base = base_ns(header_of(path)) or 0
    cut = None if window is None else Cut(window, 0)
    rewriter = _Rewriter(placed, ids, hide)
    lost = 0
    for batch in batches(path):
        start, length = times(batch, "ts"), times(batch, "dur")
        timed = start != NULL
        own = np.where(timed, start + base, 0)
        at = np.where(timed, shift(own), 0)
        # Kineto writes an event that ended before it began with a negative length: no viewer takes it.
        sound = (timed & ((length == NULL) | (length >= 0))) | np.fromiter(map(_timeless, batch), np.bool_, len(batch))
        lost += int(len(batch) - sound.sum())
        yield rewriter.batch(batch, own, at, np.maximum(np.where(length == NULL, 0, length), 0), sound, cut)
    if cut is not None:
        yield list(cut.pairs())
    yield list(rewriter.names())
    if lost:
        notes.append(f"{path}: {plural(lost, 'event')} without a possible time left out")


def _timeless(event: Event) -> bool:
    """Whether an event needs no time: names of processes and threads."""
    return bytes(event.get("ph", b"")) == b'"M"'


class _Rewriter:
    """Rewrites the events of one file."""

    def __init__(self, placed: Sequence[Placed], ids: Identifiers, hide: Hider | None) -> None:
        self._lookup = Lookup(placed)
        self._ids, self._hide = ids, hide
        rank = placed[0].rank.source.rank if len(placed) == 1 else None
        self._rank = None if rank is None or ids.alone else rank
        self._processes: dict[int, str] = {}

    def batch(
        self, events: list[Event], own: Ints, at: Ints, spans: Ints, sound: np.ndarray, cut: Cut | None
    ) -> list[dict[str, Any]]:
        """One block.

        Args:
            events: as read.
            own: begin on the file's own clock, absolute ns.
            at: begin in ns since the origin.
            spans: length in ns.
            sound: which are written.
            cut: the window.
        """
        first, last = self._lookup.near(own)
        known = last > first
        out = []
        rows = zip(events, own.tolist(), at.tolist(), spans.tolist(), sound.tolist(), known.tolist(), strict=True)
        for row, (event, own_ns, ns, span, is_sound, may_be_known) in enumerate(rows):
            if not is_sound:
                continue
            said = None
            if may_be_known:
                said = self._lookup.args(event, (own_ns, own_ns + span), (int(first[row]), int(last[row])))
            event["ts"] = _ZERO if _timeless(event) else microseconds(ns)
            if cut is not None:
                kept = cut.take(event, ns, span)
                if kept is None:
                    continue
                event = kept
            out.append(self._rewritten(event, said))
        return out

    def _rewritten(self, event: Event, said: bytes | None) -> Event:
        """New identifiers, more arguments, no names where they are to be hidden."""
        if self._hide is not None:
            event = self._hide.event(event)
        ids = self._ids
        pid = ids.process(bytes(event.get("pid", _ZERO)))
        event["pid"] = raw_int(pid)
        event["tid"] = raw_int(ids.thread(pid, bytes(event.get("tid", _ZERO))))
        event.setdefault("name", _NO_NAME)
        phase = bytes(event.get("ph", b""))
        if phase == b'"M"':
            return self._named(event, pid)
        if "id" in event and not ids.alone and phase in _LINKED:
            event["id"] = raw_int(ids.link(bytes(event["id"])))
        if "args" in event or said is not None:
            event["args"] = self._arguments(bytes(event.get("args", b"{}")), said)
        return event

    def _arguments(self, args: bytes, said: bytes | None) -> Raw:
        args = self._ids.links_in(args).strip()
        if not args.startswith(b"{"):
            return Raw(args)
        more = b"" if said is None else said
        if self._rank is not None and b'"rank"' not in args:
            more = b'"rank":' + str(self._rank).encode() + (b"," + more if more else b"")
        if not more:
            return Raw(args)
        rest = args[1:].lstrip()
        return Raw(b"{" + more + (b"}" if rest.startswith(b"}") else b"," + rest))

    def _named(self, event: Event, pid: int) -> Event:
        """Names of processes say whose they are; their order is ours, so that the processes of a rank stay together."""
        name = text_of(event, "name")
        if name == "process_name":
            args = msgspec.json.decode(bytes(event.get("args", b"{}")))
            own = str(args.get("name", "")) if isinstance(args, dict) else ""
            self._processes[pid] = own
            event["args"] = raw({"name": self._title(own)})
        elif name == "process_sort_index":
            event["args"] = raw({"sort_index": pid})
        elif name == "thread_sort_index" and self._ids.hidden:
            event["args"] = raw({"sort_index": int(bytes(event["tid"]))})
        return event

    def _title(self, own: str) -> str:
        return own if self._rank is None else f"rank {self._rank}: {own}".rstrip(": ")

    def names(self) -> Iterator[dict[str, Any]]:
        """Names of what had a word for a number, and of processes that nobody named."""
        for word, pid in self._ids.processes.items():
            if pid not in self._processes:
                own = word.decode("utf-8", "replace").strip('"') if self._hide is None else "process"
                yield _meta("process_name", pid, 0, {"name": self._title(own or "process")})
                yield _meta("process_sort_index", pid, 0, {"sort_index": pid})
        for (pid, word), tid in self._ids.words.items():
            own = word.decode("utf-8", "replace").strip('"') if self._hide is None else "thread"
            yield _meta("thread_name", pid, tid, {"name": own or "thread"})


def _meta(what: str, pid: int, tid: int, args: dict[str, Any]) -> dict[str, Any]:
    return {"ph": "M", "name": what, "pid": pid, "tid": tid, "ts": 0, "args": args}
