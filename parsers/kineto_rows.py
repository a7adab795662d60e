"""Which of Kineto's events are kept, and the rows they become."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Sequence
from itertools import chain
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from parsers import tables
from parsers.columns import NULL, Columns, Ints, Names, integer, integers, nanosecond, nanoseconds
from parsers.kineto_comm import COMM_LAYERS, CommArgs, CommTexts
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

LONGEST_NS = 30 * 86_400 * 10**9
"""No event of a capture lasts a month: beyond it stands an overflowed counter (CUPTI's clock gives 236 years)."""

MARK_KINDS = ("step", "optimizer", "autograd", "annotation", "op")
_STEP, _OPTIMIZER, _AUTOGRAD, _NOTE, _OP = range(5)
_DROP = -1
_COMM_BASE = 10  # selection codes from here on are layers

_BACKEND_RANGE = re.compile(r"(?:nccl|gloo|rccl|hccl|xccl|mpi|ucc):")
_FUNCTIONAL = re.compile(r"_?c10d_functional(?:_autograd)?::(?!wait_tensor|_wrap_tensor)")
_NO_TRAFFIC = re.compile(r"_?c10d_functional")
_SERVING = re.compile(
    r"(?:vllm|sglang)::\w*(?:all_?reduce|all_?gather|reduce_?scatter|all_?to_?all|broadcast|send|recv)"
)
_PROFILER_STEP = re.compile(r"ProfilerStep#\d{1,18}\Z")
_LAUNCH = re.compile(r"launch(?!hostfunc|\w*attribute)|memcpy|memset|invokekernel|enqueue|appendmem", re.IGNORECASE)
_UNKNOWN_CALL = "INVALID"  # a call that this CUPTI has no name for; it may be a launch

_NO_GPU_ARGS = GpuArgs()
_NO_LAUNCH_ARGS = LaunchArgs()
_COMM_ARGS = msgspec.json.Decoder(list[CommArgs])


class _Choice(dict[str, int]):
    """What to do with an event, by its name; told once per name."""

    _CAPACITY = 1 << 20

    def __init__(self, choose: Callable[[str], int]) -> None:
        super().__init__()
        self._choose = choose

    def __missing__(self, name: str) -> int:
        if len(self) >= self._CAPACITY:  # names that never repeat must not fill the memory
            self.clear()
        choice: int = self._choose(name)
        self[name] = choice
        return choice


def _layer(name: str) -> int:
    return _COMM_BASE + COMM_LAYERS.index(name)


def _choose_mark(name: str) -> int | None:
    if _PROFILER_STEP.match(name):
        return _STEP
    if name.startswith("Optimizer."):
        return _OPTIMIZER
    return _layer("annotation") if _BACKEND_RANGE.match(name) else None


def _choose_annotation(name: str) -> int:
    mark = _choose_mark(name)
    return _NOTE if mark is None else mark


def _choose_operator(name: str) -> int:
    """Operators are communication, autograd's marks, marks of older writers, or compute."""
    if name == "record_param_comms":
        return _layer("record_param_comms")
    head, _, tail = name.partition("::")
    if not tail:
        mark = _choose_mark(name)
        if mark is not None:
            return mark
        named_range = name.startswith(("## ", "Torch-Compiled Region", "enumerate(", "DistributedDataParallel."))
        return _NOTE if named_range else _OP if "fused" in name else _DROP
    if head == "autograd" or tail.startswith("autograd::"):
        return _AUTOGRAD if name.startswith("autograd::engine::evaluate_function") else _DROP
    if head == "c10d":
        return _layer("c10d")
    if head == "symm_mem":
        return _layer("symm_mem")
    if _NO_TRAFFIC.match(name):
        return _layer("functional") if _FUNCTIONAL.match(name) else _DROP
    return _layer("functional") if _SERVING.match(name) else _OP


def _choose_call(name: str) -> int:
    return 0 if _LAUNCH.search(name) or name == _UNKNOWN_CALL else _DROP


class Rows:
    """The rows of one file so far.

    Attributes:
        pids: the processes as written, numbered; every table has the extra column ``pid`` of these numbers.
        threads: ``(pid, tid)`` -> name.
        quarantined: how many events were set aside, by reason.
        keep_operators: whether compute operators are kept: until something is seen that runs on a GPU.
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
        self.lenient_flaws: set[str] = set()
        self.events = 0
        self.last_ts: int | None = None  # start of the last event kept, in order of the file
        self.keep_operators = True
        self._operator_names = _Choice(_choose_operator)
        self._annotation_names = _Choice(_choose_annotation)
        self._call_names = _Choice(_choose_call)
        self._places: dict[int, int] | None = None
        self._buckets: dict[type, list[Any]] = {}
        self._gpu_events, self._cpu_events = self._bucket(Gpu), self._bucket(Operator, Annotation)
        self._calls, self._named = self._bucket(Launch), self._bucket(Named)

    def _bucket(self, *bases: type[Any]) -> list[Any]:
        bucket: list[Any] = []
        for kind in chain.from_iterable(wanted(base) for base in bases):
            self._buckets[kind] = bucket
        if bases == (Named,):
            self._buckets[Named] = bucket
        return bucket

    def take(self, events: Sequence[Any]) -> None:
        """Keep what is wanted of one batch."""
        bucket_of = self._buckets.get
        last = None
        for event in events:
            bucket = bucket_of(type(event))
            if bucket is not None:
                bucket.append(event)
                last = event
        if last is not None:
            ts = nanosecond(bytes(last.ts))
            self.last_ts = ts if ts != NULL else self.last_ts
        self._places = None
        if self._cpu_events and self._gpu_events:  # rare: Kineto writes all CPU events first
            self._places = {id(event): index for index, event in enumerate(events)}
        if self._cpu_events:
            self._take_cpu(self._cpu_events)
        if self._calls:
            self._take_calls(self._calls)
        if self._gpu_events:
            self._take_gpu(self._gpu_events)
        for event in self._named:
            self._take_named(event)
        for bucket in (self._gpu_events, self._cpu_events, self._calls, self._named):
            bucket.clear()
        self.events += len(events)

    # -- one category each

    def _take_gpu(self, events: list[Gpu]) -> None:
        self._gpu_seen()
        events, ts, dur = self._times(events, on_gpu=True)
        args = [event.args or _NO_GPU_ARGS for event in events]
        device = integers([arg.device for arg in args])
        stream = integers([arg.stream for arg in args])
        external = integers([arg.external_id for arg in args])
        if (device == NULL).any():
            pids = [event.pid if isinstance(event.pid, int) else NULL for event in events]
            device = np.where(device == NULL, integers(pids), device)
        if (stream == NULL).any():
            stream = np.where(stream == NULL, integers([event.tid for event in events]), stream)
        if (external == NULL).any():
            external = np.where(external == NULL, integers([arg.external_old for arg in args]), external)
        kinds = [GPU_KIND_OF[type(event)] for event in events]
        graph = integers([arg.graph_node for arg in args])
        columns: dict[str, npt.NDArray[Any] | int] = {
            "ts_ns": ts,
            "dur_ns": dur,
            "device": device,
            "stream": stream,
            "kind": self._gpu_kind.codes(kinds),
            "name": self.gpu_name.codes([event.name for event in events]),
            "correlation": integers([arg.correlation for arg in args]),
            "external_id": external,
            "bytes": integers([arg.bytes for arg in args]),
            "graph": np.where(graph == 0, NULL, graph),
            "pid": self.pids.codes([event.pid for event in events]),
        }
        self._fused(events, args)
        self._take_gpu_comm(events, args, kinds, columns)
        self.gpu.add(len(events), columns)

    def _take_gpu_comm(
        self, events: list[Gpu], args: list[GpuArgs], kinds: list[str], columns: dict[str, npt.NDArray[Any] | int]
    ) -> None:
        """Rows for the GPU events that say something about communication."""
        ranges = {
            index
            for index, kind in enumerate(kinds)
            if kind == "annotation" and _BACKEND_RANGE.match(events[index].name)
        }
        rows = [index for index, arg in enumerate(args) if arg.says_something() or index in ranges]
        if not rows:
            return
        names = self.comm_texts.names
        layers = names["layer"].codes(["gpu_annotation" if index in ranges else "kernel" for index in rows])
        at = np.array(rows)
        copied = {
            name: value[at]
            for name in ("ts_ns", "dur_ns", "device", "stream", "correlation", "pid")
            if not isinstance(value := columns[name], int)
        }
        self.comm.add(
            len(rows),
            {
                **self.comm_texts.columns([args[index] for index in rows]),
                **copied,
                "layer": layers,
                "name": names["name"].codes([events[index].name for index in rows]),
                "gpu_event": at + self.gpu.rows,
                "place": self._place([events[index] for index in rows]),
            },
        )

    def _take_calls(self, events: list[Launch]) -> None:
        self._gpu_seen()
        choice = self._call_names
        launches = [event for event in events if choice[event.name] == 0]
        if not launches:
            return
        launches, ts, dur = self._times(launches)
        args = [event.args or _NO_LAUNCH_ARGS for event in launches]
        external = integers([arg.external_id for arg in args])
        if (external == NULL).any():
            external = np.where(external == NULL, integers([arg.external_old for arg in args]), external)
        self._fused(launches, args)
        self.launches.add(
            len(launches),
            {
                "ts_ns": ts,
                "dur_ns": dur,
                "tid": integers([event.tid for event in launches]),
                "correlation": integers([arg.correlation for arg in args]),
                "external_id": external,
                "pid": self.pids.codes([event.pid for event in launches]),
                "unknown": np.fromiter((event.name == _UNKNOWN_CALL for event in launches), np.int8, len(launches)),
            },
        )

    def _take_cpu(self, events: list[Operator]) -> None:
        marks: list[Operator] = []
        kinds: list[int] = []
        comm: list[Operator] = []
        layers: list[int] = []
        operator, annotation, keep = self._operator_names, self._annotation_names, self.keep_operators
        for event in events:
            code = (annotation if isinstance(event, Annotation) else operator)[event.name]
            if code >= _COMM_BASE:
                comm.append(event)
                layers.append(code - _COMM_BASE)
            elif code >= 0 and (keep or code != _OP):
                marks.append(event)
                kinds.append(code)
        if marks:
            self._take_marks(marks, kinds)
        if comm:
            self._take_operators(comm, layers)

    def _take_marks(self, events: list[Operator], kinds: list[int]) -> None:
        kind = dict(zip(map(id, events), kinds, strict=True))
        events, ts, dur = self._times(events)
        self.marks.add(
            len(events),
            {
                "ts_ns": ts,
                "dur_ns": dur,
                "tid": integers([event.tid for event in events]),
                "kind": np.fromiter((kind[id(event)] for event in events), np.int32, len(events)),
                "name": self.mark_name.codes([event.name for event in events]),
                "pid": self.pids.codes([event.pid for event in events]),
            },
        )

    def _take_operators(self, events: list[Operator], layers: list[int]) -> None:
        layer = dict(zip(map(id, events), layers, strict=True))
        events, ts, dur = self._times(events)
        args = self._comm_args(events)
        self.comm.add(
            len(events),
            {
                **self.comm_texts.operator_columns(args),
                "ts_ns": ts,
                "dur_ns": dur,
                "tid": integers([event.tid for event in events]),
                "layer": np.fromiter((layer[id(event)] for event in events), np.int32, len(events)),
                "name": self.comm_texts.names["name"].codes([event.name for event in events]),
                "pid": self.pids.codes([event.pid for event in events]),
                "place": self._place(events),
            },
        )

    def _comm_args(self, events: list[Operator]) -> list[CommArgs]:
        raws = [event.args for event in events]
        try:
            return _COMM_ARGS.decode(b"[" + b",".join([bytes(raw) or b"{}" for raw in raws]) + b"]")
        except msgspec.DecodeError:
            return [lenient(CommArgs, raw, self.lenient_flaws) for raw in raws]

    def _take_named(self, event: Named) -> None:
        if event.name == "thread_name":
            key = (event.pid, event.tid)
            if "pt_" not in self.threads.get(key, ""):  # Kineto writes a thread's own name and then the program's
                self.threads[key] = event.label
        elif event.name in {"process_name", "process_labels"}:
            self.processes[event.pid] = f"{self.processes.get(event.pid, '')} {event.label}".strip()
        elif event.name.startswith(("Iteration Start", "Record Window End")):
            ts = nanoseconds([event.ts])[0]
            edge = "start" if event.name.startswith("Iteration") else "end"
            if ts != NULL:
                self.window[edge] = min(int(ts), self.window.get(edge, int(ts))) if edge == "start" else int(ts)

    # -- what they share

    def _times(self, events: list[Any], *, on_gpu: bool = False) -> tuple[list[Any], Ints, Ints]:
        """Start and duration, without the events whose times make no sense (they are counted)."""
        ts = nanoseconds([event.ts for event in events])
        dur = nanoseconds([event.dur for event in events])
        absent = (ts == NULL) | (dur == NULL)
        negative = (dur < 0) & ~absent
        endless = (dur > LONGEST_NS) | (np.abs(ts) > 2**62)
        bad = absent | negative | endless
        if on_gpu:
            unset = (ts == 0) & (dur == 0)
            bad |= unset
        if not bad.any():
            return events, ts, dur
        self.quarantined["no start or duration"] += int(absent.sum())
        self.quarantined["a negative duration"] += int(negative.sum())
        self.quarantined["a duration of more than a month"] += int((endless & ~absent & ~negative).sum())
        if on_gpu:
            self.quarantined["start and duration 0 on the GPU"] += int((unset & ~endless).sum())
        good = np.flatnonzero(~bad)
        return [events[index] for index in good.tolist()], ts[good], dur[good]

    def _place(self, events: Sequence[Any]) -> Ints:
        """Numbers that sort communication rows in the order of the file."""
        if self._places is None:
            return self.events + np.arange(len(events), dtype=np.int64)
        return self.events + np.fromiter((self._places[id(event)] for event in events), np.int64, len(events))

    def _fused(self, events: Sequence[Any], args: Sequence[Any]) -> None:
        """Remember which rank a process belongs to, where the tool that fused several files wrote it down."""
        if args and args[0].rank != NULL:
            for event, arg in zip(events, args, strict=True):
                if arg.rank != NULL:
                    self.fused_ranks[event.pid] = integer(arg.rank)

    def _gpu_seen(self) -> None:
        if self.keep_operators:
            self.forget_operators()

    def forget_operators(self) -> None:
        """Something runs on a GPU: there operators are launches, not compute; keep none and drop those kept so far."""
        self.keep_operators = False
        if self.marks.rows:
            self.marks.keep(self.marks.column("kind") != _OP)
