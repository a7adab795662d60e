"""PyTorch Kineto (Chrome trace event) files to tables."""

from __future__ import annotations

import gzip
import re
from decimal import Decimal
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa

from parsers import tables
from parsers.errors import InputError
from parsers.tables import Health, RankIdentity, RankTrace

_GPU_KIND = {
    "kernel": "kernel",
    "Kernel": "kernel",
    "gpu_memcpy": "memcpy",
    "Memcpy": "memcpy",
    "gpu_memset": "memset",
    "Memset": "memset",
    "cuda_sync": "sync",
    "gpu_user_annotation": "annotation",
    "mtia_ccp_events": "kernel",
}
_RUNTIME = {
    "cuda_runtime",
    "cuda_driver",
    "Runtime",
    "hip_runtime",
    "xpu_runtime",
    "mtia_runtime",
    "privateuse1_runtime",
}
_LAUNCH = re.compile(r"Launch|Memcpy|Memset|memcpy|memset")
_COMM_ANNOTATION = re.compile(r"(nccl|gloo|rccl|hccl|xccl|mpi|ucc):")
_FUNCTIONAL = ("c10d_functional::", "_c10d_functional::", "_c10d_functional_autograd::")
_ABSURD_NS = 10**9 * 86400 * 365


def _ns(text: Any) -> int:
    return int(Decimal(str(text)) * 1000)


def _int(value: Any) -> int | None:
    if value is None:
        return None
    if isinstance(value, str):
        found = re.search(r"-?\d+", value)
        return int(found.group()) if found else None
    return int(value)


def _ranks(value: Any) -> tuple[list[int] | None, bool]:
    if value is None:
        return None, False
    if isinstance(value, list):
        return [int(item) for item in value], False
    return [int(item) for item in re.findall(r"-?\d+", value)], "..." in value


def _dims(value: Any) -> list[list[int]] | None:
    if not isinstance(value, list):
        return None
    out: list[list[int]] = []
    for item in value:
        if isinstance(item, list) and item and isinstance(item[0], list):
            out.extend([int(size) for size in inner] for inner in item)
        elif isinstance(item, list):
            out.append([int(size) for size in item])
        else:
            out.append([])
    return out


def _signed(value: Any) -> int | None:
    number = _int(value)
    return number if number is None or number < 2**63 else number - 2**64


def _comm(args: dict[str, Any]) -> dict[str, Any]:
    group_ranks, cut = _ranks(args.get("Process Group Ranks"))
    in_split, in_cut = _ranks(args.get("In split size"))
    out_split, out_cut = _ranks(args.get("Out split size"))
    name = args.get("Process Group Name", args.get("Process Group ID"))
    concrete = args.get("Concrete Inputs")
    return {
        "external_id": _int(args.get("External id")),
        "collective": args.get("Collective name"),
        "dtype": args.get("dtype"),
        "in_nelems": _int(args.get("In msg nelems", args.get("In msg size"))),
        "out_nelems": _int(args.get("Out msg nelems", args.get("Out msg size"))),
        "in_split": in_split,
        "out_split": out_split,
        "splits_cut": in_cut or out_cut,
        "group_name": None if name is None else str(name),
        "group_desc": args.get("Process Group Description"),
        "group_size": _int(args.get("Group size")),
        "group_ranks": group_ranks,
        "group_ranks_cut": cut,
        "rank_start": _int(args.get("Global rank start")),
        "rank_stride": _int(args.get("Global rank stride")),
        "rank_arg": _int(args.get("Rank")),
        "src_rank": _int(args.get("Src Rank")),
        "dst_rank": _int(args.get("Dst Rank")),
        "seq": _int(args.get("Seq")),
        "comms_id": _signed(args.get("Comms Id")),
        "is_async": None if args.get("Is asynchronized op") is None else bool(args["Is asynchronized op"]),
        "input_dims": _dims(args.get("Input Dims")),
        "input_types": [str(item) for item in args["Input type"]] if isinstance(args.get("Input type"), list) else None,
        "concrete_inputs": [str(item) for item in concrete] if isinstance(concrete, list) else None,
    }


def _cpu_layer(cat: str, name: str) -> str | None:
    if cat == "cpu_op":
        if name == "record_param_comms":
            return "record_param_comms"
        if name.startswith("c10d::"):
            return "c10d"
        if name.startswith(_FUNCTIONAL):
            return None if "wait_tensor" in name or "_wrap_tensor" in name else "functional"
        if name.startswith(("symm_mem::", "vllm::", "sglang::")):
            return "symm_mem"
    return "annotation" if _COMM_ANNOTATION.match(name) else None


class _Rows:
    """Rows of every table, as they are met."""

    def __init__(self, base_ns: int) -> None:
        self.base_ns = base_ns
        self.gpu: list[dict[str, Any]] = []
        self.comm: list[dict[str, Any]] = []
        self.launches: list[dict[str, Any]] = []
        self.marks: list[dict[str, Any]] = []
        self.ops: list[dict[str, Any]] = []
        self.steps: list[dict[str, Any]] = []
        self.threads: dict[int, str] = {}
        self.quarantined = 0

    def add(self, event: dict[str, Any]) -> None:
        cat, name, args = str(event.get("cat", "")), str(event.get("name", "")), event.get("args") or {}
        if event.get("ph") == "M":
            if name == "thread_name" and isinstance(event.get("tid"), int):
                known = self.threads.get(event["tid"], "")
                if "pt_autograd" not in known:
                    self.threads[event["tid"]] = str(args.get("name"))
            return
        if event.get("ph") != "X" or event.get("ts") is None:
            return
        if cat in _GPU_KIND:
            self._timed(event, lambda row: self._gpu(row, cat, name, args, event))
        elif cat in _RUNTIME:
            if _LAUNCH.search(name):
                self._timed(event, lambda row: self._launch(row, args))
        elif cat in {"cpu_op", "user_annotation", "Operator"}:
            self._timed(event, lambda row: self._cpu(row, cat, name, args))

    def _timed(self, event: dict[str, Any], then: Any) -> None:
        dur_ns = _ns(event.get("dur", 0))
        gpu = event.get("cat") in _GPU_KIND
        if dur_ns < 0 or dur_ns > _ABSURD_NS or (gpu and not dur_ns and not event["ts"]):
            self.quarantined += 1
            return
        tid = event.get("tid")
        row = {
            "ts_ns": self.base_ns + _ns(event["ts"]),
            "dur_ns": dur_ns,
            "tid": tid if isinstance(tid, int) else None,
        }
        then(row)

    def _gpu(self, row: dict[str, Any], cat: str, name: str, args: dict[str, Any], event: dict[str, Any]) -> None:
        stream = _int(args.get("stream", event.get("tid")))
        device = _int(args.get("device", event.get("pid")))
        row = {**row, "tid": None, "device": device, "stream": stream, "name": name}
        row["correlation"] = _int(args.get("correlation"))
        kind = _GPU_KIND[cat]
        layer = "kernel" if "Collective name" in args else None
        if kind == "annotation" and _COMM_ANNOTATION.match(name):
            layer = "gpu_annotation"
        if layer:
            self.comm.append({**row, **_comm(args), "layer": layer, "gpu_event": len(self.gpu)})
        more = {"kind": kind, "external_id": _int(args.get("External id")), "bytes": _int(args.get("bytes"))}
        self.gpu.append({**row, **more, "graph": _int(args.get("graph node id")) or None})

    def _launch(self, row: dict[str, Any], args: dict[str, Any]) -> None:
        ids = {"correlation": _int(args.get("correlation")), "external_id": _int(args.get("External id"))}
        self.launches.append({**row, **ids})

    def _cpu(self, row: dict[str, Any], cat: str, name: str, args: dict[str, Any]) -> None:
        layer = _cpu_layer(cat, name)
        if layer:
            self.comm.append({**row, **_comm(args), "layer": layer, "name": name})
            return
        kind = "annotation" if cat == "user_annotation" else "op"
        if name.startswith("ProfilerStep#"):
            kind = "step"
            self.steps.append({**row, "number": int(name.split("#")[1])})
        elif name.startswith("Optimizer."):
            kind = "optimizer"
        elif name.startswith("autograd::engine::evaluate_function"):
            kind = "autograd"
        (self.ops if kind == "op" else self.marks).append({**row, "kind": kind, "name": name})


def _table(rows: list[dict[str, Any]], schema: pa.Schema) -> pa.Table:
    return pa.Table.from_pylist(rows, schema=schema)


def _groups(info: dict[str, Any]) -> pa.Table:
    rows = []
    for group in info.get("pg_config") or []:
        ranks, cut = _ranks(group.get("ranks"))
        known = bool(ranks) and not cut
        rows.append(
            {
                "name": str(group.get("pg_name")),
                "desc": group.get("pg_desc"),
                "backend": group.get("backend_config"),
                "size": _int(group.get("pg_size")) or (len(ranks) if ranks and not cut else None),
                "ranks": ranks if known else None,
                "ranks_source": "pg_config" if known else "none",
                "declared": True,
            }
        )
    return _table(rows, tables.GROUPS)


def _distributed(header: dict[str, Any]) -> dict[str, Any]:
    info = header.get("distributedInfo") or {}
    if isinstance(info, str):
        try:
            info = msgspec.json.decode(info.replace("'", '"'))
        except msgspec.DecodeError:
            info = {}
    return info if isinstance(info, dict) else {}


def _identity(path: Path, info: dict[str, Any], header: dict[str, Any]) -> RankIdentity:
    rank, source = _int(info.get("rank")), "metadata"
    if rank is None:
        found = re.search(r"rank[-_]?(\d+)", path.name)
        rank, source = (int(found.group(1)), "file_name") if found else (None, "")
    return RankIdentity(
        rank=rank,
        rank_source=source or None,
        world_size=_int(info.get("world_size")),
        host=header.get("host_name"),
        backend=info.get("backend"),
    )


def read(path: Path) -> list[RankTrace]:
    """Read a whole file (see `parsers.read`)."""
    if not path.is_file():
        raise InputError("no such file", path=str(path))
    data = path.read_bytes()
    size = len(data)
    if data[:2] == b"\x1f\x8b":
        data = gzip.decompress(data)
    try:
        document = msgspec.json.decode(data)
    except msgspec.DecodeError as error:
        raise InputError(f"not a JSON trace ({error})", path=str(path)) from error
    header = document if isinstance(document, dict) else {"traceEvents": document}
    if not isinstance(header.get("traceEvents"), list):
        raise InputError("no traceEvents", path=str(path))
    info = _distributed(header)
    rows = _Rows(_int(header.get("baseTimeNanoseconds")) or 0)
    for event in header["traceEvents"]:
        rows.add(event)
    marks = rows.marks if rows.gpu else sorted(rows.marks + rows.ops, key=lambda row: int(row["ts_ns"]))
    metadata = {k: v for k, v in header.items() if isinstance(v, str | int | float)}
    metadata["threads"] = rows.threads
    return [
        RankTrace(
            path=str(path),
            format="kineto",
            identity=_identity(path, info, header),
            gpu_events=_table(rows.gpu, tables.GPU_EVENTS),
            comm_records=_table(rows.comm, tables.COMM_RECORDS),
            launches=_table(rows.launches, tables.LAUNCHES),
            cpu_marks=_table(marks, tables.CPU_MARKS),
            steps=_table(sorted(rows.steps, key=lambda row: int(row["ts_ns"])), tables.STEPS),
            groups=_groups(info),
            health=Health(file_bytes=size, events=len(header["traceEvents"]), quarantined=rows.quarantined),
            devices=tuple(header.get("deviceProperties") or ()),
            metadata=metadata,
        )
    ]
