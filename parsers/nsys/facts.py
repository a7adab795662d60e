"""What a report says about itself: clock, host, processes, GPUs, and the few settings of the job that matter.

The environment and the command line that nsys records hold credentials, addresses and names of users: only the
settings listed here are looked at, and only where their value is a number.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from parsers.columns import NULL, whole_number
from parsers.nsys.gpu import LAST_NS
from parsers.nsys.owners import PROCESS_SHIFT, THREAD_MASK
from parsers.nsys.schema import (
    CAPTURE,
    CUDA_DEVICES,
    DIAGNOSTICS,
    ENVIRONMENT,
    EXPORT,
    GPUS,
    MPI_COMMUNICATORS,
    MPI_RANKS,
    PROCESSES,
    SESSION,
    STREAMS_OF_PROCESS,
    THREADS,
)
from parsers.nsys.store import Store, as_int, records

RANK_SETTINGS = (
    ("RANK", "WORLD_SIZE"),
    ("SLURM_PROCID", "SLURM_NTASKS"),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("PMI_RANK", "PMI_SIZE"),
    ("PMIX_RANK", "PMIX_SIZE"),
    ("MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE"),
    ("JSM_NAMESPACE_RANK", "JSM_NAMESPACE_SIZE"),
)
"""Environment variables of launchers that say which rank a process is, and of how many; in order of preference."""

_SETTINGS = frozenset(name for pair in RANK_SETTINGS for name in pair)
_HOST, _DEVICE_ENVIRONMENT = 619, 610
_VARIABLE = re.compile(r"\A\s*(?P<name>[A-Z0-9_]+)=\"?(?P<value>\d{1,9})\"?\s*\Z")
_ARGUMENT = re.compile(
    r"\A--?(?P<name>nnodes|nproc[-_]per[-_]node|node[-_]rank)(?:=(?P<value>\d{1,6}(?::\d{1,6})?|gpu|auto))?\Z"
)
_PROCESS_KEY = re.compile(r"PROCESS_(\d+):(COMMAND|ARGUMENT_(\d{1,9})|ENVIRONMENT_VARIABLE)\Z")
_LAUNCHERS = ("torchrun", "torch.distributed.run", "torch.distributed.launch")
_LOST = re.compile(r"dropped|lost|missing|not all|incomplete|discarded|overflow", re.IGNORECASE)


@dataclass(frozen=True)
class Facts:
    """One report.

    Attributes:
        base_ns: added to every time to make it nanoseconds since the epoch.
        absolute: whether that is possible.
        host: name of the machine.
        version: of the nsys that exported it.
        settings: whitelisted environment variables.
        torchrun: ``nnodes``, ``nproc_per_node`` and ``node_rank`` of a launch with torchrun, as far as they are given.
        mpi_rank: per process, its rank in MPI_COMM_WORLD.
        mpi_size: size of the largest MPI communicator, or None.
        threads: names by process and thread.
        gpus: per process and CUDA device, the GPU.
        lost: what the profiler says it did not record.
        graphs: how CUDA graphs were traced (``graph`` or ``node``), as far as the capture's options say.
    """

    base_ns: int = 0
    absolute: bool = False
    host: str | None = None
    version: str | None = None
    settings: Mapping[str, int] = field(default_factory=dict)
    torchrun: Mapping[str, int] = field(default_factory=dict)
    mpi_rank: Mapping[int, int] = field(default_factory=dict)
    mpi_size: int | None = None
    threads: Mapping[tuple[int, int], str] = field(default_factory=dict)
    gpus: Mapping[tuple[int, int], Mapping[str, object]] = field(default_factory=dict)
    lost: tuple[str, ...] = ()
    graphs: str | None = None


def read_facts(store: Store) -> Facts:
    """Read what is known of a report as a whole."""
    export = {str(row["name"]): row["value"] for row in records(store, EXPORT, ("name", "value"))}
    capture = [(str(row["name"]), str(row["value"])) for row in records(store, CAPTURE, ("name", "value"))]
    environment = records(store, ENVIRONMENT, ("name", "nameEnum", "value"))
    base, absolute = _base(store, export)
    said = [row["value"] for row in environment if row["nameEnum"] == _DEVICE_ENVIRONMENT]
    variables = [text for value in said for text in str(value).split(";")]
    variables += [value for name, value in capture if name.endswith(":ENVIRONMENT_VARIABLE")]
    hosts = [str(row["value"]) for row in environment if row["nameEnum"] == _HOST and row["value"]]
    mode = next((value for name, value in capture if name == "CUDA_GRAPH_TRACE_OPTIONS:MODE"), None)
    sizes = [row["size"] for row in records(store, MPI_COMMUNICATORS, ("size",)) if isinstance(row["size"], int)]
    return Facts(
        base_ns=base,
        absolute=absolute,
        host=hosts[0] if hosts else None,
        version=str(export["EXPORT_PRODUCT_VERSION"]) if export.get("EXPORT_PRODUCT_VERSION") else None,
        settings=_settings(variables),
        torchrun=_torchrun(capture),
        mpi_rank=_mpi_ranks(store),
        mpi_size=max(sizes, default=None),
        threads=_threads(store),
        gpus=_gpus(store),
        lost=_losses(store),
        graphs=None if mode is None else mode.lower(),
    )


def _base(store: Store, export: Mapping[str, Any]) -> tuple[int, bool]:
    """Times count from the beginning of the session, unless the export moved them (``--ts-normalize``: to the epoch;
    ``--ts-shift``: by so many ns)."""
    shift = as_int(export.get("EXPORT_PARAM_TIME_SHIFT"))
    if not abs(shift) < LAST_NS:  # none, or no time
        shift = 0
    if str(export.get("EXPORT_PARAM_TIME_NORMALIZE", "")).lower() == "true":
        return -shift, True
    epochs = [row["utcEpochNs"] for row in records(store, SESSION, ("utcEpochNs",))]
    epoch = next((value for value in epochs if isinstance(value, int) and 0 < value < LAST_NS // 2), None)
    return (0, False) if epoch is None else (epoch - shift, True)


def _settings(variables: Iterable[str]) -> dict[str, int]:
    """Whitelisted variables with a number for a value; nothing else is kept, wherever it comes from."""
    found: dict[str, int] = {}
    for text in variables:
        match = _VARIABLE.match(text) if len(text) < 80 else None
        if match is not None and match["name"] in _SETTINGS:
            found.setdefault(match["name"], int(match["value"]))
    return found


def _torchrun(capture: Iterable[tuple[str, str]]) -> dict[str, int]:
    """Options of torchrun in the command line that nsys ran; no other argument is kept."""
    arguments: dict[int, str] = {}
    is_torchrun = False
    for name, value in capture:
        match = _PROCESS_KEY.match(name)
        if match is None or match[1] != "0":
            continue
        is_torchrun |= match[2] != "ENVIRONMENT_VARIABLE" and value.rsplit("/", 1)[-1] in _LAUNCHERS
        if match[3] is not None and len(value) < 40:
            arguments[int(match[3])] = value
    found: dict[str, int] = {}
    for place in sorted(arguments):
        match = _ARGUMENT.match(arguments[place])
        if match is None:
            continue
        text = match["value"] if match["value"] is not None else arguments.get(place + 1, "")
        number = whole_number(text)
        if number is not None:
            found.setdefault(match["name"].replace("-", "_"), number)
    return found if is_torchrun else {}


def _mpi_ranks(store: Store) -> dict[int, int]:
    rows = records(store, MPI_RANKS, ("globalTid", "rank"))
    return {
        row["globalTid"] >> PROCESS_SHIFT: row["rank"]
        for row in rows
        if isinstance(row["globalTid"], int) and isinstance(row["rank"], int)
    }


def _threads(store: Store) -> dict[tuple[int, int], str]:
    found: dict[tuple[int, int], str] = {}
    for block in store.scan(THREADS, ["nameId", "globalTid"]):
        names = store.strings(block.ints["nameId"][block.ints["nameId"] != NULL])
        pairs = zip(block.ints["globalTid"].tolist(), block.ints["nameId"].tolist(), strict=True)
        found |= {(tid >> PROCESS_SHIFT, tid & THREAD_MASK): names[name] for tid, name in pairs if name in names}
    return found


def _gpus(store: Store) -> dict[tuple[int, int], Mapping[str, object]]:
    """The GPU behind each process's CUDA device (``CUDA_VISIBLE_DEVICES`` renumbers them); process -1: any."""
    columns = (
        "id",
        "name",
        "busLocation",
        "uuid",
        "chipName",
        "cuDevice",
        "smCount",
        "totalMemory",
        "computeMajor",
        "computeMinor",
    )
    gpus = {row["id"]: _gpu(row) for row in records(store, GPUS, columns)}
    pids = {
        row["pid"]: row["globalPid"] >> PROCESS_SHIFT
        for row in records(store, PROCESSES, ("globalPid", "pid"))
        if isinstance(row["globalPid"], int)
    }
    found: dict[tuple[int, int], Mapping[str, object]] = {
        (-1, row["cuDevice"]): gpus[row["id"]]
        for row in records(store, GPUS, ("id", "cuDevice"))
        if isinstance(row["cuDevice"], int)
    }
    for row in records(store, CUDA_DEVICES, ("gpuId", "cudaId", "pid")):
        if row["gpuId"] in gpus and isinstance(row["cudaId"], int):
            found[pids.get(row["pid"], -1), row["cudaId"]] = gpus[row["gpuId"]]
    return found


def _gpu(row: Mapping[str, Any]) -> Mapping[str, object]:
    """A GPU under the keys of Kineto's ``deviceProperties``."""
    named = {
        "id": row["id"],
        "name": row["name"],
        "busLocation": row["busLocation"],
        "uuid": row["uuid"],
        "totalGlobalMem": row["totalMemory"],
        "computeMajor": row["computeMajor"],
        "computeMinor": row["computeMinor"],
        "numSms": row["smCount"],
    }
    return {key: value for key, value in named.items() if value is not None}


def _losses(store: Store) -> tuple[str, ...]:
    rows = records(store, DIAGNOSTICS, ("severity", "text"), limit=1000)
    found = [
        str(row["text"]).strip().splitlines()[0][:200] for row in rows if row["text"] and _LOST.search(str(row["text"]))
    ]
    return tuple(dict.fromkeys(found))[:5]


def captured_output(store: Store) -> Iterator[str]:
    """The lines that the processes wrote and nsys kept (``ProcessStreams``) which NCCL may have written."""
    for block in store.scan(STREAMS_OF_PROCESS, ["contentId"]):
        for number in block.ints["contentId"].tolist():
            if number != NULL:
                text = store.long_text(number)
                yield from (line for line in text.splitlines() if "NCCL" in line)
