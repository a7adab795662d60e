"""A timeline as Kineto writes it (libkineto/src/output_json.cpp, torch/csrc/profiler/util.cpp `saveNcclMeta`)."""

from __future__ import annotations

import gzip
import hashlib
import itertools
import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.synthesis.names import block_of, kernel_name
from benchmarks.synthesis.program import AUTOGRAD, COMPUTE, Kernel, Launch, Message, Program
from benchmarks.synthesis.scatter import clock_us
from benchmarks.synthesis.simulate import Done, Range, Timeline
from benchmarks.synthesis.spec import Spec, Writing

Event = dict[str, Any]

BASE_NS = 1_767_189_312_000_000_000
C10 = {
    "BFloat16": "c10::BFloat16",
    "Half": "c10::Half",
    "Float": "float",
    "Double": "double",
    "Long": "long int",
    "Int": "int",
    "Byte": "unsigned char",
    "Bool": "bool",
    "Float8_e4m3fn": "c10::Float8_e4m3fn",
}


class Writer:
    """One rank's file."""

    def __init__(self, spec: Spec, program: Program, timeline: Timeline, writing: Writing) -> None:
        self.spec, self.program, self.timeline, self.writing = spec, program, timeline, writing
        self.rank = program.rank
        self.device = self.rank % spec.gpus_per_node
        host = self.rank // spec.gpus_per_node  # NTP keeps hosts this close; processes of one host are much closer
        self.offset_us = random.Random(f"{spec.seed}:clock:{host}").uniform(-1500.0, 1500.0) if host else 0.0
        self.offset_us += clock_us(spec.seed, spec.name(), self.rank)
        self.pid = 30_000 + 97 * self.rank
        self.tids = {"main": self.pid, AUTOGRAD: self.pid + 411}
        self.ids = itertools.count(1)
        self.seq: dict[tuple[str, bool], int] = {}
        self.streams: dict[str, int] = {COMPUTE: 7}
        last = max((d.end_us for d in timeline.done), default=0.0)
        self.opens_us = last * writing.cut if writing.cut else -1.0
        self.start_us = 5_239_871_077_754.190 if not writing.integer_us else 1_706_850_122_846_038.0

    def write(self, folder: Path) -> Path:
        """Write ``rank<r>.json.gz``."""
        path = folder / f"rank{self.rank}.json.gz"
        with gzip.open(path, "wt", encoding="utf-8", compresslevel=1) as out:
            out.write(json.dumps(self.header())[:-1])
            out.write(',\n"traceEvents": [\n')
            out.write(",\n".join(json.dumps(event) for event in self.events()))
            out.write('\n],\n"traceName": "trace.json"}')
        return path

    def header(self) -> Event:
        """The keys before ``traceEvents``."""
        distributed: Event = {"backend": "nccl", "rank": self.rank, "world_size": self.spec.world}
        if self.writing.level in "ab":
            distributed |= {"pg_count": self.program.group_count, "pg_config": self._groups(), "nccl_version": "2.27.5"}
        gpu = {"name": "NVIDIA H100 80GB HBM3", "totalGlobalMem": 85_028_765_696, "numSms": 132}
        gpus = [{"id": i, **gpu} for i in range(min(self.spec.world, self.spec.gpus_per_node))]
        head: Event = {"schemaVersion": 1, "deviceProperties": gpus, "distributedInfo": distributed}
        if self.writing.shapes:
            head["record_shapes"] = 1
        if not self.writing.integer_us:
            head |= {"displayTimeUnit": "ms", "baseTimeNanoseconds": BASE_NS}
        return head

    def _groups(self) -> list[Event]:
        return [
            {
                "pg_name": group.name,
                "pg_desc": self._desc(group.desc),
                "backend_config": group.backend,
                "pg_size": group.size,
                "ranks": list(group.ranks),
            }
            for group in self.program.groups
        ]

    def _desc(self, desc: str) -> str:
        return desc if self.writing.level == "a" else "undefined"

    def events(self) -> Iterator[Event]:
        """Ranges and operators, then what ran on the GPU, then names."""
        gpu: list[Event] = []
        for item in self.timeline.ranges:
            if item.start_us < self.opens_us:
                continue
            if item.category == "graph":
                args = {"cbid": 311, "correlation": int(item.name)}
                us = item.end_us - item.start_us
                yield self._x("cuda_runtime", "cudaGraphLaunch", item.thread, item.start_us, us, args)
            elif self._wanted(item):
                yield self._x(item.category, item.name, item.thread, item.start_us, item.end_us - item.start_us, {})
        for done in self.timeline.done:
            asked = list(self._asked(done, gpu))
            if done.cpu_us >= self.opens_us:
                yield from asked
        yield from gpu
        yield from self._names()

    def _wanted(self, item: Range) -> bool:
        if item.name.startswith("ProfilerStep"):
            return self.writing.step_marks
        if item.name.startswith("autograd::"):
            return self.writing.autograd_marks
        if item.name.startswith("Optimizer"):
            return True
        return self.writing.level != "d" and (item.category == "cpu_op" or self.writing.range_marks)

    def _time(self, us: float) -> float | int:
        at = self.start_us + self.offset_us + us
        return int(at) if self.writing.integer_us else round(at, 3)

    def _span(self, us: float) -> float | int:
        return max(1, round(us)) if self.writing.integer_us else round(us, 3)

    def _x(self, cat: str, name: str, thread: str, ts: float, dur: float, args: Event) -> Event:
        args = {"External id": next(self.ids), **args}
        tid = self.tids[thread]
        head = {"ph": "X", "cat": cat, "name": name, "pid": self.pid, "tid": tid}
        return {**head, "ts": self._time(ts), "dur": self._span(dur), "args": args}

    def _asked(self, done: Done, gpu: list[Event]) -> Iterator[Event]:
        """The CPU side of one operation; its GPU side is put into ``gpu``."""
        op = done.operation
        if done.cpu_us < self.opens_us:
            if done.start_us >= self.opens_us and not (isinstance(op, Launch) and op.messages[0].group.size < 2):
                gpu.append(self._on_gpu(done, self._name(op), None, {}))
            return
        if done.graph:
            node = {"graph id": 4, "graph node id": 1 + done.number - done.graph}
            gpu.append(self._on_gpu(done, self._name(op), None, node))
            return
        if isinstance(op, Kernel):
            event = self._x("cpu_op", op.op, done.thread, done.cpu_us, done.cpu_dur_us, {})
            yield event
            yield self._runtime(done, event["args"]["External id"])
            gpu.append(self._on_gpu(done, op.name, event["args"]["External id"], {}))
            return
        call, mark = None, None
        if op.recorded and self.writing.level != "d":
            for event in self._recorded(op, done):
                yield event
                if event["name"] == "record_param_comms":
                    call = event["args"]["External id"]
                elif event["cat"] == "user_annotation":
                    mark = event["args"]["External id"]
        if op.messages[0].group.size < 2:
            return
        call = None if op.batched else call
        yield self._runtime(done, call)
        args = {} if call is None or not op.sizes_known else self._kernel_args(op.messages[0], done)
        gpu.append(self._on_gpu(done, self._name(op), call, args))
        if mark is not None:
            gpu.append(self._gpu_annotation(done, self._annotation(op), mark))

    def _name(self, op: Kernel | Launch) -> str:
        """The name of the kernel."""
        if isinstance(op, Kernel):
            return op.name
        return op.kernel or kernel_name(op.messages[0], self.writing.library)

    def _recorded(self, op: Launch, done: Done) -> Iterator[Event]:
        """What c10d records of a launch: its calls; of a batch, the end of the group after them, where it launches.

        `ncclGroupEnd` runs when the scopes of the sends and receives have closed (pytorch/pytorch#194693).
        """
        whole = done.cpu_dur_us * (0.5 if op.batched else 1.0)
        share = whole / len(op.messages)
        for place, message in enumerate(op.messages):
            yield from self._call(op, message, done, done.cpu_us + place * share, share * 0.96)
        if op.batched:
            yield self._x("user_annotation", "nccl:coalesced", done.thread, done.cpu_us + whole, whole * 0.9, {})

    def _annotation(self, op: Launch) -> str:
        if op.batched:
            return "nccl:coalesced"
        message = op.messages[0]
        word = message.words[2]
        if message.peer is not None:
            me, there = message.group.ranks.index(self.rank), message.group.ranks.index(message.peer)
            word += f" {me}->{there}" if word == "send" else f" {me}<-{there}"
        return f"nccl:{word}"

    def _call(self, op: Launch, message: Message, done: Done, ts: float, dur: float) -> Iterator[Event]:
        """The layers of one c10d call, outermost first."""
        shapes = self.writing.shapes and self.writing.level in "ab"
        dims = {"Input Dims": _dims(message), "Input type": [C10[message.dtype], "", ""]} if shapes else {}
        if message.functional:
            outer = {"Input Dims": [list(message.shape or [message.in_n]), [], []]} if shapes else {}
            yield self._x("cpu_op", f"_c10d_functional::{message.functional}", done.thread, ts, dur, outer)
        yield self._x("cpu_op", f"c10d::{message.words[1]}", done.thread, ts + dur * 0.04, dur * 0.92, dims)
        yield self._x("cpu_op", "record_param_comms", done.thread, ts + dur * 0.1, dur * 0.84, self._meta(op, message))
        if not op.batched:
            inner = {"Input Dims": [list(message.shape or [message.in_n])]} if shapes else {}
            yield self._x("user_annotation", self._annotation(op), done.thread, ts + dur * 0.2, dur * 0.7, inner)

    def _meta(self, op: Launch, message: Message) -> Event:
        """Arguments of ``record_param_comms``."""
        args = self._sizes(message, op)
        if args and self.writing.level in "ab":
            args |= self._group_args(message)
            me = message.group.ranks.index(self.rank)
            args["Rank"] = message.group.ranks.index(message.peer) if message.peer is not None else me
            if message.words[0] == "broadcast" or message.words[0] == "reduce":
                args["Rank"] = message.root
            stride = message.group.stride
            args["Global rank start"] = message.group.ranks[0]
            if stride is not None:
                args["Global rank stride"] = stride
            self._identity(op, message, args)
        return args

    def _identity(self, op: Launch, message: Message, args: Event) -> None:
        """``Seq`` and ``Comms Id``, where the release writes them."""
        if self.writing.release < (2, 8):
            return
        key = (message.group.name, message.peer is not None)
        self.seq[key] = self.seq.get(key, 0) + 1
        if self.writing.release >= (2, 13):
            start = (message.group.ranks[0], message.group.stride or -1, message.group.size)
            args["Comms Id"] = _hash((message.group.name, self.seq[key], *key[1:], *start))
        args["Seq"] = self.seq[key]
        args["Is asynchronized op"] = int(op.is_async)

    def _sizes(self, message: Message, op: Launch) -> Event:
        bare = self.writing.release < (2, 5) and message.words[0].endswith("_tensor_coalesced")
        if bare or not op.sizes_known:  # `RECORD_PARAM_COMMS` came to the coalesced calls later
            return {}
        return {
            "Collective name": message.words[0],
            "In msg nelems": message.in_n,
            "Out msg nelems": message.out_n,
            "Group size": message.group.size,
            "dtype": message.dtype,
            "In split size": _listed(message.in_split),
            "Out split size": _listed(message.out_split),
        }

    def _group_args(self, message: Message) -> Event:
        group = message.group
        ranks = group.ranks if group.stride else ()
        args: Event = {
            "Process Group Name": group.name,
            "Process Group Description": self._desc(group.desc),
            "Process Group Ranks": _listed(ranks, self.writing.release >= (2, 8)),
        }
        if message.peer is not None and ranks:
            args["Dst Rank" if message.words[0] == "send" else "Src Rank"] = message.peer
        return args

    def _kernel_args(self, message: Message, done: Done) -> Event:
        assert isinstance(done.operation, Launch)
        args = self._sizes(message, done.operation)
        if not args or self.writing.level not in "ab":
            return args
        args |= self._group_args(message)
        if self.writing.release >= (2, 11):
            args["Seq"] = self.seq.get((message.group.name, message.peer is not None), 0)
        return args

    def _runtime(self, done: Done, external: int | None) -> Event:
        at = done.cpu_us + done.cpu_dur_us * 0.6
        args = {"cbid": 211, "correlation": done.number}
        event = self._x("cuda_runtime", "cudaLaunchKernelExC", done.thread, at, done.cpu_dur_us * 0.25, args)
        if external is not None:
            event["args"]["External id"] = external
        return event

    def _stream(self, name: str) -> int:
        """Number streams as they come: compute is 7, torch's pools follow."""
        if name not in self.streams:
            self.streams[name] = 12 + 4 * len(self.streams)
        return self.streams[name]

    def _on_gpu(self, done: Done, name: str, external: int | None, meta: Event) -> Event:
        stream = self._stream(done.stream)
        grid, block = block_of(done.operation)
        args: Event = {"External id": external} if external is not None else {}
        args |= {"queued": 0, "device": self.device, "context": 1, "stream": stream}
        args["correlation"] = done.graph or done.number
        kind = "kernel"
        if isinstance(done.operation, Kernel) and done.operation.bytes:
            kind = "gpu_memcpy"
            args["bytes"] = done.operation.bytes
        else:
            args |= {"grid": grid, "block": block, **meta}
        head = {"ph": "X", "cat": kind, "name": name, "pid": self.device, "tid": stream}
        return {**head, "ts": self._time(done.start_us), "dur": self._span(done.end_us - done.start_us), "args": args}

    def _gpu_annotation(self, done: Done, word: str, external: int) -> Event:
        stream = self._stream(done.stream)
        head = {"ph": "X", "cat": "gpu_user_annotation", "name": word, "pid": self.device, "tid": stream}
        times = {"ts": self._time(done.start_us), "dur": self._span(done.end_us - done.start_us)}
        return {**head, **times, "args": {"External id": external}}

    def _names(self) -> Iterator[Event]:
        start = self._time(0.0)
        for thread, name in (("main", "python3"), (AUTOGRAD, "pt_autograd_0")):
            tid = self.tids[thread]
            row = {"name": "thread_name", "ph": "M", "ts": start, "pid": self.pid, "tid": tid}
            yield {**row, "args": {"name": f"thread {tid} ({name})"}}
        for stream in self.streams.values():
            row = {"name": "thread_name", "ph": "M", "ts": start, "pid": self.device, "tid": stream}
            yield {**row, "args": {"name": f"stream {stream} "}}
        first = {"name": "Iteration Start: PyTorch Profiler", "ph": "i", "s": "g", "pid": "Traces"}
        yield {**first, "tid": "Trace PyTorch Profiler", "ts": start}
        end = max((d.end_us for d in self.timeline.done), default=0.0)
        yield {"name": "Record Window End", "ph": "i", "s": "g", "pid": "", "tid": "", "ts": self._time(end + 50)}


def _listed(values: object, keep_last: bool = True) -> str:
    """A list as torch prints it: cut after 30 (`get_shapes`-like formatting in torch/csrc/profiler/util.cpp)."""
    items = list(values)  # type: ignore[call-overload]
    if len(items) <= 30:
        return str(items)
    shown = [*items[:29], "...", items[-1]] if keep_last else [*items[:30], "..."]
    return "[" + ", ".join(str(v) for v in shown) + "]"


def _dims(message: Message) -> list[Any]:
    """``Input Dims`` of the c10d operator (torch/csrc/distributed/c10d/Ops.cpp): outputs first, lists nested."""
    given = list(message.shape or [message.in_n])
    made = list(message.out_shape or given)
    op = message.words[1]
    if op in ("_allgather_base_", "_reduce_scatter_base_", "alltoall_base_"):
        return [made, given, [], [], []]
    if op.endswith("_tensor_coalesced_"):
        return [[made], [given], [], []]
    return [[given], [], [], []]


def _hash(parts: tuple[object, ...]) -> int:
    """A 63-bit number that is the same on every rank and in every process."""
    return int.from_bytes(hashlib.sha1(repr(parts).encode()).digest()[:8], "big") >> 1
