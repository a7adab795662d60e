"""Traces of any size with the mix of events that real ones have, in every layout that writers use.

`python -m benchmarks.traces out.json --megabytes 300 --layout kineto` writes one. The job is a decoder-only transformer
under FSDP2 with stacks and shapes recorded: most of a file is `python_function`, `cpu_op`, `cuda_runtime` and flow
events; kernels are about one event in twenty, NCCL kernels about one in a hundred.
"""

from __future__ import annotations

import argparse
import gzip
import itertools
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any

Event = dict[str, Any]

BASE_NS = 1_767_189_312_000_000_000
START_US = 5_239_871_077_754.190
GEMM = "sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x256x64_warpgroupsize2x1x1_execute_segment_k_off_kernel__5x"
ALL_GATHER = "ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
REDUCE_SCATTER = "ncclDevKernel_ReduceScatter_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
COMPUTE_OPS = ("aten::linear", "aten::t", "aten::matmul", "aten::mm", "aten::add", "aten::mul", "aten::_to_copy")
FRAMES = (
    "torch/nn/modules/module.py(1777): _call_impl",
    "train.py(412): train_step",
    "nn.Module: TransformerBlock_{layer}",
    "model/attention.py(88): forward",
    "<built-in function linear>",
    "torch/autograd/function.py(576): apply",
)


class Job:
    """The events of one rank, in the order in which Kineto writes them."""

    def __init__(self, rank: int = 0, world: int = 8, steps: int = 2, layers: int = 16) -> None:
        self.rank, self.world, self.steps, self.layers = rank, world, steps, layers
        self.pid, self.tid, self.backward_tid = 2_219_289 + rank, 2_219_289 + rank, 2_226_113 + rank
        self.step_us = 40_000.0
        self._ids = itertools.count(1)

    def header(self) -> dict[str, Any]:
        """The keys before `traceEvents`."""
        group = {"pg_name": "0", "pg_desc": "default_pg", "backend_config": "cuda:nccl", "pg_size": self.world}
        return {
            "schemaVersion": 1,
            "deviceProperties": [{"id": i, "name": "NVIDIA H100", "numSms": 132} for i in range(8)],
            "distributedInfo": {
                "backend": "nccl",
                "rank": self.rank,
                "world_size": self.world,
                "pg_count": 1,
                "pg_config": [{**group, "ranks": list(range(self.world))}],
                "nccl_version": "2.27.5",
            },
            "record_shapes": 1,
            "with_stack": 1,
            "displayTimeUnit": "ms",
            "baseTimeNanoseconds": BASE_NS,
        }

    def events(self) -> Iterator[Event]:
        """Operators and stacks of all steps, then runtime calls and kernels, then names of threads."""
        self._ids = itertools.count(1)
        for step in range(self.steps):
            yield from self._host(step)
        self._ids = itertools.count(1)
        for step in range(self.steps):
            yield from self._device(step)
        yield from self._names()

    def _x(self, cat: str, name: str, tid: int, ts: float, dur: float, args: Event, pid: int | None = None) -> Event:
        head = {"ph": "X", "cat": cat, "name": name, "pid": self.pid if pid is None else pid, "tid": tid}
        return {**head, "ts": round(ts, 3), "dur": round(dur, 3), "args": args}

    def _layer_times(self, step: int) -> Iterator[tuple[int, float, bool]]:
        start = START_US + step * self.step_us
        slot = self.step_us / (2 * self.layers + 2)
        for index in range(2 * self.layers):
            yield index % self.layers, start + 10 + index * slot, index >= self.layers

    def _host(self, step: int) -> Iterator[Event]:
        start = START_US + step * self.step_us
        yield self._x("user_annotation", f"ProfilerStep#{step}", self.tid, start, self.step_us, {"External id": 1})
        for layer, ts, backward in self._layer_times(step):
            tid = self.backward_tid if backward else self.tid
            if backward:
                name = "autograd::engine::evaluate_function: MmBackward0"
                yield self._x("cpu_op", name, tid, ts, 400, {"Sequence number": layer, "Fwd thread id": 1})
            yield from self._collective(layer, ts, tid, backward)
            for index, op in enumerate(COMPUTE_OPS * 5):
                at = ts + 80 + index * 9.013
                for depth in range(2):
                    frame = FRAMES[(index + depth) % len(FRAMES)].format(layer=layer)
                    stack = {"Python parent id": index, "Python id": index + depth, "Ev Idx": next(self._ids)}
                    yield self._x("python_function", frame, tid, at - 2 + depth * 0.1, 8.5, stack)
                yield self._x("cpu_op", op, tid, at, 7.777, self._shapes(index))
                if index % 3 == 0:
                    flow = {"ph": "s", "id": next(self._ids), "pid": self.pid, "tid": tid, "ts": round(at, 3)}
                    yield {**flow, "cat": "fwdbwd", "name": "fwdbwd"}
        end = start + self.step_us - 900
        yield self._x("user_annotation", "Optimizer.step#AdamW.step", self.tid, end, 800, {"External id": 9})

    def _shapes(self, index: int) -> Event:
        return {
            "External id": next(self._ids),
            "Record function id": 0,
            "Concrete Inputs": ["", "", ""],
            "Input type": ["c10::BFloat16", "c10::BFloat16", ""],
            "Input Strides": [[4096, 1], [1, 4096], []],
            "Input Dims": [[8192, 4096], [4096, 4096], []],
            "Ev Idx": index,
        }

    def _meta(self, layer: int, backward: bool) -> Event:
        shard, full = 27_267_072, 27_267_072 * self.world
        return {
            "Collective name": "_reduce_scatter_base" if backward else "_allgather_base",
            "In msg nelems": full if backward else shard,
            "Out msg nelems": shard if backward else full,
            "Group size": self.world,
            "dtype": "Float" if backward else "BFloat16",
            "In split size": "[]",
            "Out split size": "[]",
            "Process Group Name": "0",
            "Process Group Description": "default_pg",
            "Process Group Ranks": str(list(range(self.world))),
            "Seq": layer + (self.layers if backward else 0),
        }

    def _collective(self, layer: int, ts: float, tid: int, backward: bool) -> Iterator[Event]:
        word = "_reduce_scatter_base" if backward else "_all_gather_base"
        op = "c10d::_reduce_scatter_base_" if backward else "c10d::_allgather_base_"
        dims = {"Input Dims": [[218_136_576], [27_267_072], [], [], []], "Input type": ["float", "float", "", "", ""]}
        cpu = {"External id": next(self._ids), "Global rank start": 0, "Global rank stride": 1, "Rank": self.rank}
        yield self._x("cpu_op", op, tid, ts + 1, 60, {"External id": next(self._ids), **dims})
        yield self._x("cpu_op", "record_param_comms", tid, ts + 5, 50, {**self._meta(layer, backward), **cpu})
        yield self._x("user_annotation", f"nccl:{word}", tid, ts + 9, 40, {"External id": next(self._ids), **dims})

    def _device(self, step: int) -> Iterator[Event]:
        for layer, ts, backward in self._layer_times(step):
            tid = self.backward_tid if backward else self.tid
            comm = REDUCE_SCATTER if backward else ALL_GATHER
            yield from self._launch(comm, tid, ts + 20, ts + 60, 700, 28, self._meta(layer, backward))
            for index in range(5):
                at = ts + 90 + index * 60
                yield from self._launch(GEMM, tid, at, at + 30, 55.123, 7, {})
                for extra in range(4):
                    call = {"External id": index, "cbid": 273, "correlation": next(self._ids)}
                    yield self._x("cuda_runtime", "cudaEventQuery", tid, at + 5 + extra, 0.8, call)

    def _launch(
        self, name: str, tid: int, launch: float, ts: float, dur: float, stream: int, meta: Event
    ) -> Iterator[Event]:
        number = next(self._ids)
        call = {"External id": number, "cbid": 211, "correlation": number}
        yield self._x("cuda_runtime", "cudaLaunchKernel", tid, launch, 4.5, call)
        flow = {"ph": "s", "id": number, "pid": self.pid, "tid": tid, "ts": round(launch, 3), "cat": "ac2g"}
        yield {**flow, "name": "ac2g"}
        device = self.rank % 8
        args = {
            "External id": number,
            "queued": 0,
            "device": device,
            "context": 1,
            "stream": stream,
            "correlation": number,
            "registers per thread": 168,
            "shared memory": 205_824,
            "blocks per SM": 1.939394,
            "warps per SM": 23.272728,
            "grid": [32, 8, 1],
            "block": [384, 1, 1],
            "est. achieved occupancy %": 19,
            **meta,
        }
        yield self._x("kernel", name, stream, ts, dur, args, pid=device)
        flow = {"ph": "f", "id": number, "pid": device, "tid": stream, "ts": round(ts, 3), "cat": "ac2g"}
        yield {**flow, "name": "ac2g", "bp": "e"}

    def _names(self) -> Iterator[Event]:
        for tid, name in ((self.tid, "python3.12"), (self.backward_tid, "pt_autograd_0")):
            row = {"name": "thread_name", "ph": "M", "ts": START_US, "pid": self.pid, "tid": tid}
            yield {**row, "args": {"name": f"thread {tid} ({name})"}}
        row = {"name": "Iteration Start: PyTorch Profiler", "ph": "i", "s": "g", "pid": "Traces"}
        yield {**row, "tid": "Trace PyTorch Profiler", "ts": START_US}
        end = {"name": "Record Window End", "ph": "i", "s": "g", "pid": "", "tid": ""}
        yield {**end, "ts": round(START_US + self.steps * self.step_us, 3)}


def _kineto(event: Event) -> str:
    """The way libkineto prints an event: three lines and one for the arguments."""
    head = {key: value for key, value in event.items() if key not in {"ts", "dur", "args"}}
    lines = [f"    {json.dumps(head)[1:-1]},"]
    times = f'    "ts": {event["ts"]:.3f}'
    if "dur" in event:
        times += f', "dur": {event["dur"]:.3f}'
    if "args" in event:
        inner = json.dumps(event["args"])[1:-1]
        lines += [times + ",", '    "args": {', f"      {inner}", "    }"]
    else:
        lines.append(times)
    body = "\n".join(lines)
    return f"\n  {{\n{body}\n  }}"


def _indent(event: Event) -> str:
    return "\n    " + json.dumps(event, indent=2).replace("\n", "\n    ")


def _compact(event: Event) -> str:
    return json.dumps(event, separators=(",", ":"))


LAYOUTS: dict[str, Callable[[Event], str]] = {
    "kineto": _kineto,
    "indent": _indent,
    "compact": _compact,
    "spaced": lambda event: " " + json.dumps(event) + " ",
    "lines": lambda event: "\n" + json.dumps(event),
}


def dump(out: IO[str], header: dict[str, Any], events: Iterator[Event], layout: str) -> None:
    """Write one document with its events in the named layout."""
    head = json.dumps(header, separators=(",", ":") if layout == "compact" else None)
    out.write(head[:-1] + (',"traceEvents":[' if layout == "compact" else ',\n  "traceEvents": ['))
    text = LAYOUTS[layout]
    for index, event in enumerate(events):
        out.write(("," if index else "") + text(event))
    out.write('\n  ],\n  "traceName": "/tmp/trace.json"\n}')


def write(path: Path, megabytes: float, layout: str = "kineto", rank: int = 0, world: int = 8) -> Path:
    """Write a trace of about the given size; a name that ends in `.gz` is compressed."""
    probe = Job(rank, world, steps=1)
    step_bytes = sum(len(LAYOUTS[layout](event)) + 1 for event in probe.events())
    job = Job(rank, world, steps=max(1, round(megabytes * 1e6 / step_bytes)))
    opener = gzip.open if path.suffix == ".gz" else open
    with opener(path, "wt", encoding="utf-8") as out:
        dump(out, job.header(), job.events(), layout)  # type: ignore[arg-type]
    return path


def main() -> None:
    """Command line of the generator."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("path", type=Path)
    parser.add_argument("--megabytes", type=float, default=50)
    parser.add_argument("--layout", choices=sorted(LAYOUTS), default="kineto")
    parser.add_argument("--rank", type=int, default=0)
    args = parser.parse_args()
    write(args.path, args.megabytes, args.layout, args.rank)


if __name__ == "__main__":
    main()
