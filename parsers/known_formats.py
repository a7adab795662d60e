"""The formats that are read: how each is told from its content, and what it can prove. Pure data."""

from __future__ import annotations

from dataclasses import dataclass

PROVES = ("time", "operation", "bytes", "dtype", "members", "group_id", "link", "rank")
"""What a source may say of a collective: when it ran and for how long, which operation, how many bytes of which type,
which ranks took part, an identity of the group that is equal on all of its ranks, over which wire, and who wrote it."""

NSYS_REPORTS = (".nsys-rep", ".qdrep", ".qdstrm")
"""Names of reports in the own format of Nsight Systems, which has no published signature."""

_JSON_BEGINS = (b"{", b"[{")


@dataclass(frozen=True)
class KnownFormat:
    """One format.

    Attributes:
        name: as in ``inputs[].format`` of the result document.
        title: for people.
        module: the parser; it offers ``sniff(head)`` and ``read(source)``.
        detected_by: what in the first block gives it away.
        proves: per entry of `PROVES`, what the source says; an empty text for nothing.
        json_words: what a block that begins as JSON mentions if it is of this format, one of them at least; none if the
            format is never JSON. What mentions none is refused without importing the parser, which for a small trace
            takes longer than reading it. None where words do not tell.
        within: bytes in which the words are looked for; 0 for the whole block.
        alone: what a file tells where it is all that is given, and what to give beside it; empty for traces, which hold
            a timeline of a device.
        suffixes: names of files that are of this format whatever their content looks like.
        directories: whether a directory may be of this format.
    """

    name: str
    title: str
    module: str
    detected_by: str
    proves: tuple[str, str, str, str, str, str, str, str]
    json_words: tuple[bytes, ...] | None = None
    within: int = 4096
    alone: tuple[str, str] = ("", "")
    suffixes: tuple[str, ...] = ()
    directories: bool = False

    def possible(self, head: bytes) -> bool:
        """Whether the first block of a file, decompressed, may be of this format; its parser has the last word."""
        if self.json_words is None or not head.startswith(_JSON_BEGINS):
            return True
        here = head[: self.within] if self.within else head
        return any(word in here for word in self.json_words)


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
        json_words=(b'"table"', b'"Type"', b'"data"'),
        suffixes=NSYS_REPORTS,
        directories=True,
    ),
    KnownFormat(
        "straggler_analysis",
        "operations of a pipeline job (ByteDance StragglerAnalysis, Parquet)",
        "parsers.straggler_parquet",
        "Parquet with the columns rank, step, optype, start_ts, duration and seq_id",
        ("yes", "yes", "", "", "inferred from ends that coincide", "", "", "yes"),
        json_words=(),
    ),
    KnownFormat(
        "summary",
        "per-rank summary (analyze summarize)",
        "parsers.summary",
        "Parquet whose metadata say commlens_summary",
        ("yes", "yes", "yes", "yes", "yes", "yes", "", "yes"),
        json_words=(),
    ),
    KnownFormat(
        "flight_recorder",
        "PyTorch Flight Recorder dump (pickle or JSON)",
        "parsers.flight_recorder",
        "a pickle, or a JSON object or list, whose text names profiling_name, pg_config or collective_seq_id",
        ("when asked for; duration with timing on", "yes", "shapes", "yes", "all", "group name", "", "file, groups"),
        json_words=(b"profiling_name", b"pg_status", b"collective_seq_id"),
        within=0,
        alone=(
            "A dump lists the groups with all their members and the last calls of its rank with their sizes, not when "
            "they ran nor what computed meanwhile.",
            "Give traces of the PyTorch profiler or of Nsight Systems beside the dumps for times; `analyze hang` shows "
            "who waits for whom.",
        ),
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
        json_words=(),
        alone=(
            "A log names communicators, their ranks and hosts, and the wires between them; it has no times, and calls "
            "only where NCCL_DEBUG_SUBSYS includes COLL.",
            "Give it beside traces of the PyTorch profiler or of Nsight Systems: they say what is sent when, the log "
            "over which wire.",
        ),
    ),
    KnownFormat(
        "nccl_inspector",
        "NCCL Inspector (JSON lines)",
        "parsers.nccl_inspector",
        "JSON lines whose first has header, coll_perf or p2p_perf",
        ("duration", "yes", "yes", "", "", "communicator id", "", "in the communicator"),
        json_words=(b'"header"', b'"coll_perf"', b'"p2p_perf"', b'"proxy_trace"', b"\nnccl_"),
        alone=(
            "Inspector lists calls with bytes, durations and communicators, not what computed meanwhile nor the steps.",
            "Give it beside traces of the PyTorch profiler or of Nsight Systems for the rest of the step, or beside "
            "NCCL's log (NCCL_DEBUG=INFO) for members and wires.",
        ),
    ),
    KnownFormat(
        "nccl_profiler",
        "NCCL example profiler, CoMMA",
        "parsers.nccl_profiler",
        "rows with cat GROUP, COLL, P2P, ... of Chrome's asynchronous events; objects with comm_hash",
        ("duration with GPU rows", "yes", "yes", "yes", "", "communicator id", "proxy: network", "in the communicator"),
        json_words=(
            *(b'"' + category for category in (b"GROUP", b"COLL", b"P2P", b"KERNEL_LAUNCH", b"PROXY", b"NET", b"GPU")),
            b'"comm_hash"',
        ),
        within=16384,
        alone=(
            "The plugin lists calls with sizes and communicators, and durations where it saw the GPU, not what "
            "computed meanwhile nor the steps.",
            "Give it beside traces of the PyTorch profiler or of Nsight Systems for the rest of the step, or beside "
            "NCCL's log (NCCL_DEBUG=INFO) for members and wires.",
        ),
    ),
    KnownFormat(
        "deepspeed_log",
        "DeepSpeed communication logger",
        "parsers.deepspeed_log",
        "the header of its summary, a `comm op:` line, or JSON with summary and msg_size_bytes",
        ("distorted duration", "yes", "rounded", "", "", "", "", "in verbose lines"),
        json_words=(b'"msg_size_bytes"',),
        within=0,
        alone=(
            "The logger counts operations by size on one rank, without their groups, and waits for each, which makes "
            "them longer than in an ordinary run.",
            "Give a trace of the PyTorch profiler instead, recorded without the logger: groups, steps and overlap are "
            "in it.",
        ),
    ),
    KnownFormat(
        "execution_trace",
        "PyTorch execution trace (JSON), MLCommons Chakra (.et and JSON)",
        "parsers.chakra",
        "a JSON object whose first key is schema with a version, one with workload_graph, or length-prefixed protobuf",
        ("of Chakra's kernels", "yes", "yes", "of PyTorch's", "declared ones", "group name", "", "file, groups"),
        json_words=(b'"schema"', b'"workload_graph"'),
        alone=(
            "An execution trace lists operators in order with sizes and groups; few of them carry times, and none says "
            "what ran at once on the device.",
            "Give the PyTorch profiler's trace of the same steps for times.",
        ),
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
