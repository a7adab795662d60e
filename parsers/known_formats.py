"""The formats that are read: how each is told from its content, and what it can prove. Pure data."""

from __future__ import annotations

from dataclasses import dataclass

PROVES = ("time", "operation", "bytes", "dtype", "members", "group_id", "link", "rank")
"""What a source may say of a collective: when it ran and for how long, which operation, how many bytes of which type,
which ranks took part, an identity of the group that is equal on all of its ranks, over which wire, and who wrote it."""


@dataclass(frozen=True)
class KnownFormat:
    """One format.

    Attributes:
        name: as in ``inputs[].format`` of the result document.
        title: for people.
        module: the parser; it offers ``sniff(head)`` and ``read(source)``.
        detected_by: what in the first block gives it away.
        proves: per entry of `PROVES`, what the source says; an empty text for nothing.
    """

    name: str
    title: str
    module: str
    detected_by: str
    proves: tuple[str, str, str, str, str, str, str, str]


KNOWN = (
    KnownFormat(
        "nsys",
        "NVIDIA Nsight Systems (exports as SQLite, Parquet, Arrow, JSON lines; .nsys-rep through nsys; nsys stats)",
        "parsers.nsys",
        "SQLite with StringIds and NVTX_EVENTS or CUPTI_ACTIVITY_KIND_KERNEL, the same tables in a directory or stream",
        (
            "yes",
            "yes",
            "payloads (NCCL 2.16 on, exported with blobs)",
            "reductions: kernel name",
            "where all members are given",
            "communicator hash (NCCL 2.25 on)",
            "",
            "launcher, communicator, file",
        ),
    ),
    KnownFormat(
        "summary",
        "per-rank summary (analyze summarize)",
        "parsers.summary",
        "Parquet whose metadata say commlens_summary",
        ("yes", "yes", "yes", "yes", "yes", "yes", "", "yes"),
    ),
    KnownFormat(
        "flight_recorder",
        "PyTorch Flight Recorder dump (pickle or JSON)",
        "parsers.flight_recorder",
        "a pickle, or a JSON object or list, whose text names profiling_name, pg_config or collective_seq_id",
        ("when asked for; duration with timing on", "yes", "shapes", "yes", "all", "group name", "", "file, groups"),
    ),
    KnownFormat(
        "nccl_log",
        "NCCL or RCCL debug log (NCCL_DEBUG=INFO)",
        "parsers.nccl_log",
        "a line with NCCL INFO, WARN, TRACE or CALL, or the library's version line",
        (
            "",
            "COLL lines",
            "COLL lines",
            "COLL lines",
            "where all members log",
            "communicator id",
            "yes",
            "label or communicator",
        ),
    ),
    KnownFormat(
        "nccl_inspector",
        "NCCL Inspector (JSON lines)",
        "parsers.nccl_inspector",
        "JSON lines whose first has header, coll_perf or p2p_perf",
        ("duration", "yes", "yes", "", "", "communicator id", "", "in the communicator"),
    ),
    KnownFormat(
        "nccl_profiler",
        "NCCL example profiler, CoMMA",
        "parsers.nccl_profiler",
        "rows with cat GROUP, COLL, P2P, ... of Chrome's asynchronous events; objects with comm_hash",
        ("duration with GPU rows", "yes", "yes", "yes", "", "communicator id", "proxy: network", "in the communicator"),
    ),
    KnownFormat(
        "deepspeed_log",
        "DeepSpeed communication logger",
        "parsers.deepspeed_log",
        "the header of its summary, a `comm op:` line, or JSON with summary and msg_size_bytes",
        ("distorted duration", "yes", "rounded", "", "", "", "", "in verbose lines"),
    ),
    KnownFormat(
        "execution_trace",
        "PyTorch execution trace (JSON), MLCommons Chakra (.et and JSON)",
        "parsers.chakra",
        "a JSON object whose first key is schema with a version, one with workload_graph, or length-prefixed protobuf",
        ("of Chakra's kernels", "yes", "yes", "of PyTorch's", "declared ones", "group name", "", "file, groups"),
    ),
    KnownFormat(
        "kineto",
        "PyTorch profiler trace (Kineto, Chrome JSON)",
        "parsers.kineto",
        "a JSON object with traceEvents or Kineto's header keys, or a list of trace events",
        ("yes", "yes", "yes", "yes", "yes", "group name", "", "yes"),
    ),
)
"""Asked in this order: the first whose parser knows the content wins."""
