"""The rows that Kineto's events become, collected block by block."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from parsers import tables
from parsers.columns import NULL, Columns, Ints, Names, integers, nanosecond
from parsers.kineto_comm import CommArgs, CommTexts
from parsers.kineto_events import (
    GPU_KIND_OF,
    Annotation,
    Gpu,
    GpuArgs,
    Launch,
    LaunchArgs,
    Named,
    Operator,
    lenient,
    wanted,
)
from parsers.kineto_pending import Pending
from parsers.kineto_select import (
    BACKEND_RANGE,
    COMM_BASE,
    MARK_KINDS,
    OPERATOR,
    SYNC,
    UNKNOWN_CALL,
    Choice,
    choose_annotation,
    choose_operator,
    is_launch,
    is_sync,
)

LONGEST_NS = 30 * 86_400 * 10**9
"""No event of a capture lasts a month: beyond it stands an overflowed counter (CUPTI's clock gives 236 years)."""

_LAST_NS = 2**62  # 146 years of nanoseconds: with the base added it still is a 64-bit number
_PENDING_ROWS = 4096  # as many rows are turned into arrays at once: NumPy's cost per call would dominate per block

_NO_GPU_ARGS = GpuArgs()
_NO_LAUNCH_ARGS = LaunchArgs()
_COMM_ARGS = msgspec.json.Decoder(list[CommArgs])

Arrays = dict[str, npt.NDArray[Any]]


class Rows:
    """The rows of one file so far; call `flush` before looking at the tables.

    Attributes:
        pids: the processes as written, numbered; every table has the extra column ``pid`` of these numbers.
        threads: ``(pid, tid)`` -> name.
        processes: pid -> its name and labels.
        window: ``start`` and ``end`` of the capture, as the profiler marked them.
        fused_ranks: pid -> rank, where a tool that fused several files wrote it down.
        quarantined: how many events were set aside, by reason.
        last_ts: start of the last event kept, in order of the file.
    """

    def __init__(self) -> None:
        self.pids = Names()
        self.comm_texts = CommTexts()
        self.gpu_name, self._gpu_kind, self.mark_name = Names(), Names(), Names()
        self.gpu = Columns(tables.GPU_EVENTS, {"name": self.gpu_name, "kind": self._gpu_kind})
        self.comm = Columns(tables.COMM_RECORDS, self.comm_texts.shared())
        self.launches = Columns(tables.LAUNCHES, {})
        self.marks = Columns(tables.CPU_MARKS, {"name": self.mark_name, "kind": Names(MARK_KINDS)})
        self.threads: dict[tuple[int | str, int | str], str] = {}
        self.processes: dict[int | str, str] = {}
        self.window: dict[str, int] = {}
        self.fused_ranks: dict[int | str, int] = {}
        self.quarantined: Counter[str] = Counter()
        self.flaws: set[str] = set()
        self.events = 0
        self.last_ts: int | None = None
        self._keep_operators = True
        self._places: dict[int, int] | None = None
        self._operators, self._annotations = Choice(choose_operator), Choice(choose_annotation)
        self._is_launch = Choice(lambda name: int(is_launch(name)) + 2 * int(is_sync(name)))
        self._new_gpu, self._new_launches, self._new_marks, self._new_comm = (Pending() for _ in range(4))
        self._on_gpu: list[Gpu] = []
        self._on_cpu: list[Operator] = []
        self._calls: list[Launch] = []
        self._named: list[Named] = []
        self._annotated: list[int] = []  # places of annotations in `_on_cpu`
        self._keep: dict[type, Callable[[Any], None]] = {Named: self._named.append}
        for base, keep in (
            (Gpu, self._on_gpu.append),
            (Operator, self._on_cpu.append),
            (Annotation, self._annotate),
            (Launch, self._calls.append),
        ):
            self._keep |= dict.fromkeys(wanted(base), keep)

    def take(self, events: Sequence[Any]) -> None:
        """Keep what is wanted of one batch."""
        keep_of = self._keep.get
        for event in events:
            keep = keep_of(type(event))
            if keep is not None:
                keep(event)
        last = next((event for event in reversed(events) if type(event) in self._keep), None)
        if last is not None and (ts := nanosecond(bytes(last.ts))) != NULL:
            self.last_ts = ts
        self._places = None
        if self._on_cpu and self._on_gpu:  # rare: Kineto writes all CPU events first
            self._places = {id(event): index for index, event in enumerate(events)}
        if self._on_cpu:
            self._take_cpu(self._on_cpu)
        if self._calls:
            self._take_calls(self._calls)
        if self._on_gpu:
            self._take_gpu(self._on_gpu)
        for event in self._named:
            self._take_named(event)
        for filled in (self._on_gpu, self._on_cpu, self._calls, self._named, self._annotated):
            filled.clear()
        self.events += len(events)
        if max(self._new_gpu.rows, self._new_launches.rows, self._new_marks.rows, self._new_comm.rows) > _PENDING_ROWS:
            self.flush()

    def forget_operators(self) -> None:
        """Something runs on a GPU: there operators are launches, not compute; keep none and drop those kept so far."""
        self._keep_operators = False
        self._flush_marks()
        if self.marks.rows:
            self.marks.keep(self.marks.column("kind") != OPERATOR)

    def flush(self) -> None:
        """Turn all that is pending into rows."""
        self._flush_comm()
        self._flush_gpu()
        self._flush_launches()
        self._flush_marks()

    # -- what to keep of a batch

    def _annotate(self, event: Annotation) -> None:
        self._annotated.append(len(self._on_cpu))
        self._on_cpu.append(event)

    def _take_gpu(self, events: list[Gpu]) -> None:
        if self._keep_operators:
            self.forget_operators()
        args = [event.args or _NO_GPU_ARGS for event in events]
        kinds = [GPU_KIND_OF[type(event)] for event in events]
        layers = [
            "kernel"
            if arg.says_something()
            else "gpu_annotation"
            if kind == "annotation" and BACKEND_RANGE.match(event.name)
            else None
            for event, arg, kind in zip(events, args, kinds, strict=True)
        ]
        self._note_ranks(events, args)
        self._new_gpu.add(
            events,
            {
                "device": [arg.device for arg in args],
                "stream": [arg.stream for arg in args],
                "correlation": [arg.correlation for arg in args],
                "external_id": [arg.external_id for arg in args],
                "external_old": [arg.external_old for arg in args],
                "bytes": [arg.bytes for arg in args],
                "graph": [arg.graph_node for arg in args],
                "kind": kinds,
                "layer": layers,
                "comm": [arg.detached() if layer else None for arg, layer in zip(args, layers, strict=True)],
                "place": self._place(events),
            },
        )

    def _take_calls(self, events: list[Launch]) -> None:
        if self._keep_operators:
            self.forget_operators()
        choices = self._chosen(self._is_launch, events)
        waits = [events[at] for at in np.flatnonzero(choices & 2).tolist()]
        if waits:
            self._new_marks.add(waits, {"kind": [SYNC] * len(waits)})
        launches = [events[at] for at in np.flatnonzero(choices & 1).tolist()]
        if not launches:
            return
        args = [event.args or _NO_LAUNCH_ARGS for event in launches]
        self._note_ranks(launches, args)
        self._new_launches.add(
            launches,
            {
                "correlation": [arg.correlation for arg in args],
                "external_id": [arg.external_id for arg in args],
                "external_old": [arg.external_old for arg in args],
            },
        )

    def _take_cpu(self, events: list[Operator]) -> None:
        choices = self._chosen(self._operators, events)
        for at in self._annotated:
            choices[at] = self._annotations[events[at].name]
        is_comm = choices >= COMM_BASE
        is_mark = (choices >= 0) & ~is_comm
        if not self._keep_operators:
            is_mark &= choices != OPERATOR
        marks = np.flatnonzero(is_mark)
        if len(marks):
            self._new_marks.add([events[at] for at in marks.tolist()], {"kind": choices[marks].tolist()})
        rows = np.flatnonzero(is_comm)
        if len(rows):
            comm = [events[at] for at in rows.tolist()]
            layers = (choices[rows] - COMM_BASE).tolist()
            self._new_comm.add(comm, {"layer": layers, "args": self._arguments(comm), "place": self._place(comm)})

    @staticmethod
    def _chosen(choice: Choice, events: Sequence[Any]) -> npt.NDArray[np.int8]:
        return np.fromiter(map(choice.__getitem__, [event.name for event in events]), np.int8, len(events))

    def _arguments(self, events: list[Operator]) -> list[CommArgs]:
        raws = [bytes(event.args) or b"{}" for event in events]
        try:
            return _COMM_ARGS.decode(b"[" + b",".join(raws) + b"]")
        except msgspec.DecodeError:
            return [lenient(CommArgs, msgspec.Raw(raw), self.flaws) for raw in raws]

    def _take_named(self, event: Named) -> None:
        if event.name == "thread_name":
            key = (event.pid, event.tid)
            if "pt_" not in self.threads.get(key, ""):  # Kineto writes a thread's own name and then the program's
                self.threads[key] = event.label
        elif event.name in {"process_name", "process_labels"}:
            self.processes[event.pid] = f"{self.processes.get(event.pid, '')} {event.label}".strip()
        elif event.name.startswith(("Iteration Start", "Record Window End")):
            ts = nanosecond(bytes(event.ts))
            if ts != NULL and event.name.startswith("Iteration"):
                self.window["start"] = min(ts, self.window.get("start", ts))
            elif ts != NULL:
                self.window["end"] = max(ts, self.window.get("end", ts))

    def _place(self, events: Sequence[Any]) -> list[int]:
        """Numbers that sort communication rows in the order of the file."""
        if self._places is None:
            return list(range(self.events, self.events + len(events)))
        return [self.events + self._places[id(event)] for event in events]

    def _note_ranks(self, events: Sequence[Any], args: Sequence[Any]) -> None:
        if args and args[0].rank != NULL:
            self.fused_ranks |= {
                event.pid: arg.rank for event, arg in zip(events, args, strict=True) if arg.rank != NULL
            }

    # -- from fields to rows

    def _flush_gpu(self) -> None:
        new = self._new_gpu
        if not new.rows:
            return
        graph = new.integers("graph")
        pids = [pid if isinstance(pid, int) else NULL for pid in new["pid"]]
        columns: Arrays = {
            "device": _or(new.integers("device"), pids),
            "stream": _or(new.integers("stream"), new["tid"]),
            "kind": self._gpu_kind.codes(new["kind"]),
            "name": self.gpu_name.codes(new["name"]),
            "correlation": new.integers("correlation"),
            "external_id": _or(new.integers("external_id"), new["external_old"]),
            "bytes": new.integers("bytes"),
            "graph": np.where(graph == 0, NULL, graph),
        }
        good = self._with_times(new, columns, on_gpu=True)
        self._add_gpu_comm(new, columns, good)
        self._add(self.gpu, columns, good)
        new.clear()

    def _add_gpu_comm(self, new: Pending, columns: Arrays, good: npt.NDArray[np.bool_]) -> None:
        """Rows for the GPU events that say something about communication."""
        layers = new["layer"]
        at = np.array([index for index, layer in enumerate(layers) if layer and good[index]], np.int64)
        if not len(at):
            return
        chosen = at.tolist()
        names = self.comm_texts.names
        row = np.cumsum(good) - 1 + self.gpu.rows
        copied = ("ts_ns", "dur_ns", "device", "stream", "correlation", "pid")
        self.comm.add(
            len(at),
            {
                **self.comm_texts.columns([new["comm"][index] for index in chosen]),
                **{name: columns[name][at] for name in copied},
                "layer": names["layer"].codes([layers[index] for index in chosen]),
                "name": names["name"].codes([new["name"][index] for index in chosen]),
                "gpu_event": row[at],
                "place": integers([new["place"][index] for index in chosen]),
            },
        )

    def _flush_launches(self) -> None:
        new = self._new_launches
        if new.rows:
            columns: Arrays = {
                "tid": new.integers("tid"),
                "correlation": new.integers("correlation"),
                "external_id": _or(new.integers("external_id"), new["external_old"]),
                "unknown": np.fromiter((name == UNKNOWN_CALL for name in new["name"]), np.int8, new.rows),
            }
            self._add(self.launches, columns, self._with_times(new, columns))
            new.clear()

    def _flush_marks(self) -> None:
        new = self._new_marks
        if new.rows:
            columns: Arrays = {
                "tid": new.integers("tid"),
                "kind": new.integers("kind"),
                "name": self.mark_name.codes(new["name"]),
            }
            self._add(self.marks, columns, self._with_times(new, columns))
            new.clear()

    def _flush_comm(self) -> None:
        new = self._new_comm
        if new.rows:
            columns: Arrays = {
                **self.comm_texts.operator_columns(new["args"]),
                "tid": new.integers("tid"),
                "layer": new.integers("layer"),
                "name": self.comm_texts.names["name"].codes(new["name"]),
                "place": new.integers("place"),
            }
            self._add(self.comm, columns, self._with_times(new, columns))
            new.clear()

    def _add(self, table: Columns, columns: Arrays, good: npt.NDArray[np.bool_]) -> None:
        if good.all():
            table.add(len(good), columns)
        else:
            table.add(int(good.sum()), {name: values[good] for name, values in columns.items()})

    def _with_times(self, new: Pending, columns: Arrays, *, on_gpu: bool = False) -> npt.NDArray[np.bool_]:
        """Add times and process; returns which rows have times that make sense (the others are counted)."""
        ts, dur = new.times()
        columns |= {"ts_ns": ts, "dur_ns": dur, "pid": self.pids.codes(new["pid"])}
        absent = (ts == NULL) | (dur == NULL)
        negative = (dur < 0) & ~absent
        endless = (dur > LONGEST_NS) & ~absent
        beyond = (np.abs(ts) > _LAST_NS) & ~absent & ~negative & ~endless
        unset = (ts == 0) & (dur == 0) if on_gpu else np.zeros(len(ts), np.bool_)
        for reason, rows in (
            ("no start or duration", absent),
            ("a negative duration", negative),
            ("a duration of more than a month", endless),
            ("a start beyond any clock", beyond),
            ("start and duration 0 on the GPU", unset),
        ):
            if rows.any():
                self.quarantined[reason] += int(rows.sum())
        good: npt.NDArray[np.bool_] = ~(absent | negative | endless | beyond | unset)
        return good


def _or(values: Ints, others: list[Any]) -> Ints:
    """The values, and the others where there are none."""
    missing = values == NULL
    return np.where(missing, integers(others), values) if missing.any() else values
