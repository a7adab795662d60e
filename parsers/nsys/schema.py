"""The tables of an Nsight Systems export that are read, and their columns.

An export holds only tables that have rows, and columns come and go between versions (NVIDIA's "SQLite Schema
Reference"; schema 3.4 of 2022 to 3.28 of 2026), so that nothing here can be relied upon: a table that is missing is
empty, a column that is missing is null.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType

KERNELS = "CUPTI_ACTIVITY_KIND_KERNEL"
COPIES = "CUPTI_ACTIVITY_KIND_MEMCPY"
FILLS = "CUPTI_ACTIVITY_KIND_MEMSET"
RUNTIME = "CUPTI_ACTIVITY_KIND_RUNTIME"
GRAPHS = "CUPTI_ACTIVITY_KIND_GRAPH_TRACE"
GRAPH_NODES = "CUDA_GRAPH_NODE_EVENTS"
NVTX = "NVTX_EVENTS"
STRINGS = "StringIds"
THREADS = "ThreadNames"
PROCESSES = "PROCESSES"
STREAMS_OF_PROCESS = "ProcessStreams"
DETAILS = "ANALYSIS_DETAILS"
SESSION = "TARGET_INFO_SESSION_START_TIME"
ENVIRONMENT = "TARGET_INFO_SYSTEM_ENV"
GPUS = "TARGET_INFO_GPU"
CUDA_DEVICES = "TARGET_INFO_CUDA_DEVICE"
EXPORT = "META_DATA_EXPORT"
CAPTURE = "META_DATA_CAPTURE"
MPI_RANKS = "MPI_RANKS"
MPI_COMMUNICATORS = "MPI_COMMUNICATORS"
DIAGNOSTICS = "DIAGNOSTIC_EVENT"
SCHEMAS = "NVTX_PAYLOAD_SCHEMAS"
SCHEMA_ENTRIES = "NVTX_PAYLOAD_SCHEMA_ENTRIES"
EVENT_PAYLOADS = "NVTX_EVENTS_PAYLOAD_SCHEMAS"
DYNAMIC_PREFIX = "DYNAMIC_NVTXPAYLOAD_DATATYPE_"

_GPU = "start end deviceId contextId streamId correlationId globalPid graphNodeId"
COLUMNS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        name: tuple(columns.split())
        for name, columns in {
            KERNELS: f"{_GPU} demangledName shortName",
            COPIES: f"{_GPU} bytes copyKind srcKind dstKind srcDeviceId dstDeviceId",
            FILLS: f"{_GPU} bytes",
            RUNTIME: "start end globalTid correlationId nameId",
            GRAPHS: "start end deviceId contextId streamId correlationId globalPid graphId graphExecId",
            GRAPH_NODES: "start end globalTid nameId graphNodeId originalGraphNodeId",
            NVTX: "start end eventType text globalTid textId domainId jsonTextId jsonText binaryData eventId",
            STRINGS: "id value",
            THREADS: "nameId globalTid",
            PROCESSES: "globalPid pid name",
            STREAMS_OF_PROCESS: "globalPid filenameId contentId",
            DETAILS: "duration startTime stopTime",
            SESSION: "utcEpochNs systemClockNs",
            ENVIRONMENT: "name nameEnum value",
            GPUS: "id name busLocation uuid chipName cuDevice smCount totalMemory computeMajor computeMinor",
            CUDA_DEVICES: "gpuId cudaId pid uuid numMultiprocessors",
            EXPORT: "name value",
            CAPTURE: "name value",
            MPI_RANKS: "globalTid rank",
            MPI_COMMUNICATORS: "size",
            DIAGNOSTICS: "severity text",
            SCHEMAS: "domainId schemaId name payloadSize",
            SCHEMA_ENTRIES: "domainId schemaId idx type name offset",
            EVENT_PAYLOADS: "eventId globalPid domainId payloadSchemaID",
        }.items()
    }
)
"""Columns that are read, by table."""

_OLD_NAMES = (
    # table, its older name, and a column that tells it from another table of that name
    (EXPORT, "EXPORT_META_DATA", "value"),
    (GRAPH_NODES, "CUDA_GRAPH_EVENTS", "graphNodeId"),
)
_ANY_OF = (NVTX, KERNELS, EXPORT, "EXPORT_META_DATA")


def is_export(tables: Iterable[str]) -> bool:
    """Whether a database with these tables is an export of Nsight Systems; other profilers use SQLite as well."""
    there = set(tables)
    return STRINGS in there and not there.isdisjoint(_ANY_OF)


def real_names(tables: Mapping[str, frozenset[str]]) -> dict[str, str]:
    """The name that each known table has in an export; tables that it lacks are missing."""
    found = {name: name for name in COLUMNS if name in tables}
    for name, old, column in _OLD_NAMES:
        if name not in found and column in tables.get(old, ()):
            found[name] = old
    found |= {name: name for name in tables if name.startswith(DYNAMIC_PREFIX)}
    return found
