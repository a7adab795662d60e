"""Small traces made in the test itself, the layouts that writers use, and a second, simple reader to compare with."""

from __future__ import annotations

import json
from collections.abc import Callable
from fractions import Fraction
from typing import Any

from parsers.tables import RankTrace

Event = dict[str, Any]


def _kineto_event(event: Any) -> str:
    if not isinstance(event, dict):
        return "\n  " + json.dumps(event)
    head = {key: value for key, value in event.items() if key != "args"}
    lines = [json.dumps(head)[1:-1]] if head else []
    if isinstance(event.get("args"), dict):
        lines.append('"args": {\n      ' + json.dumps(event["args"])[1:-1] + "\n    }")
    elif "args" in event:
        lines.append('"args": ' + json.dumps(event["args"]))
    return "\n  {\n    " + ",\n    ".join(lines) + "\n  }"


def _kineto(document: Any) -> str:
    """Every event over several lines, its arguments on one: the libkineto way."""
    if isinstance(document, list):
        return "[" + ",".join(_kineto_event(event) for event in document) + "\n]"
    parts = []
    for key, value in document.items():
        text = "[" + ",".join(map(_kineto_event, value)) + "\n  ]" if key == "traceEvents" else json.dumps(value)
        parts.append(f"\n  {json.dumps(key)}: {text}")
    return "{" + ",".join(parts) + "\n}"


LAYOUTS: dict[str, Callable[[Any], str]] = {
    "kineto": _kineto,
    "compact": lambda document: json.dumps(document, separators=(",", ":")),
    "default": json.dumps,
    "indent4": lambda document: json.dumps(document, indent=4),
    "spaced": lambda document: json.dumps(document, separators=(" , ", " : ")),
    "crlf": lambda document: json.dumps(document, indent=1).replace("\n", "\r\n"),
    "tabs": lambda document: json.dumps(document, indent="\t"),
}


class TraceMaker:
    """Builds a trace event by event. Times in microseconds."""

    def __init__(
        self, rank: int = 0, world: int = 4, pid: int = 1000, device: int | None = None, **header: Any
    ) -> None:
        self.rank, self.pid, self.device = rank, pid, rank % 8 if device is None else device
        group = {"pg_name": "0", "pg_desc": "default_pg", "backend_config": "cuda:nccl", "pg_size": world}
        self.header: dict[str, Any] = {
            "schemaVersion": 1,
            "deviceProperties": [{"id": 0, "name": "GPU"}],
            "distributedInfo": {
                "backend": "nccl",
                "rank": rank,
                "world_size": world,
                "pg_count": 1,
                "pg_config": [{**group, "ranks": list(range(world))}],
            },
            **header,
        }
        self.events: list[Event] = []
        self.next_id = 1

    def x(self, cat: str, name: str, ts: float, dur: float, tid: Any = None, pid: Any = None, **args: Any) -> Event:
        """A complete event."""
        event: Event = {"ph": "X", "cat": cat, "name": name, "pid": self.pid if pid is None else pid}
        event |= {"tid": self.pid if tid is None else tid, "ts": ts, "dur": dur}
        if args:
            event["args"] = args
        self.events.append(event)
        return event

    def step(self, number: int, ts: float, dur: float) -> Event:
        """A profiler step."""
        return self.x("user_annotation", f"ProfilerStep#{number}", ts, dur)

    def kernel(self, name: str, ts: float, dur: float, stream: int = 7, cat: str = "kernel", **args: Any) -> Event:
        """A launch and what it launched."""
        number, self.next_id = self.next_id, self.next_id + 1
        self.x("cuda_runtime", "cudaLaunchKernel", ts - 20, 5, correlation=number, cbid=211)
        ids = {"device": self.device, "stream": stream, "correlation": number}
        return self.x(cat, name, ts, dur, tid=stream, pid=self.device, **{**ids, **args})

    def collective(self, ts: float, dur: float, nelems: int = 1024, **more: Any) -> Event:
        """An all-reduce of the default group, from operator to kernel."""
        args = {
            "Collective name": "allreduce",
            "In msg nelems": nelems,
            "Out msg nelems": nelems,
            "Group size": 4,
            "dtype": "BFloat16",
            "In split size": "[]",
            "Out split size": "[]",
            "Process Group Name": "0",
            "Process Group Description": "default_pg",
            "Process Group Ranks": "[0, 1, 2, 3]",
        } | more
        self.x(
            "cpu_op",
            "c10d::allreduce_",
            ts - 40,
            30,
            **{"Input Dims": [[[nelems]], [], []], "Input type": ["TensorList"]},
        )
        self.x("cpu_op", "record_param_comms", ts - 35, 20, **args, Rank=self.rank, Seq=self.next_id)
        self.x("user_annotation", "nccl:all_reduce", ts - 30, 15)
        return self.kernel(
            "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)", ts, dur, 20, **args
        )

    def document(self) -> dict[str, Any]:
        """The whole document."""
        return {**self.header, "traceEvents": self.events}

    def text(self) -> str:
        """The document as Python's json writes it."""
        return json.dumps(self.document())


def three_steps(**more: Any) -> TraceMaker:
    """Three steps of four kernels and four all-reduces; 3 * (1 + 4 * 2 + 4 * 5) = 87 events."""
    trace = TraceMaker(**more)
    for step in range(3):
        start = 1000.0 + step * 6000
        trace.step(step, start, 6000)
        for index in range(4):
            trace.kernel("sm90_gemm", start + 100 + index * 1000, 1000)
        for index in range(4):
            trace.collective(start + 1100 + index * 1000, 400)
    return trace


def _ns(event: Event, key: str, base: int = 0) -> int:
    return base + round(Fraction(str(event[key])) * 1000)  # a fraction is rounded to the nearest, halves to even


def expected(document: dict[str, Any] | list[Event]) -> dict[str, list[Any]]:
    """A second reader: the whole document by `json`, loops, fractions; only for what a few columns say."""
    events = document if isinstance(document, list) else document["traceEvents"]
    base = 0 if isinstance(document, list) else int(document.get("baseTimeNanoseconds") or 0)
    gpu = {"kernel", "gpu_memcpy", "gpu_memset", "gpu_user_annotation", "cuda_sync", "Kernel", "Memcpy", "Memset"}
    on_gpu = [event for event in events if isinstance(event, dict) and event.get("cat") in gpu]
    records = [e for e in events if isinstance(e, dict) and e.get("name") == "record_param_comms"]
    return {
        "gpu": [(_ns(e, "ts", base), _ns(e, "dur"), e["name"]) for e in on_gpu],
        "correlation": [e.get("args", {}).get("correlation") for e in on_gpu],
        "records": [
            (_ns(e, "ts", base), e["args"].get("Collective name"), e["args"].get("In msg nelems")) for e in records
        ],
        "kernel_records": [e["args"]["Collective name"] for e in on_gpu if "Collective name" in e.get("args", {})],
    }


def seen(trace: RankTrace) -> dict[str, list[Any]]:
    """What a trace says about the same columns."""
    gpu, comm = trace.gpu_events.to_pydict(), trace.comm_records.to_pylist()
    records = [row for row in comm if row["layer"] == "record_param_comms"]
    return {
        "gpu": list(zip(gpu["ts_ns"], gpu["dur_ns"], gpu["name"], strict=True)),
        "correlation": gpu["correlation"],
        "records": [(row["ts_ns"], row["collective"], row["in_nelems"]) for row in records],
        "kernel_records": [row["collective"] for row in comm if row["layer"] == "kernel"],
    }
