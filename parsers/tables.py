"""The tables every format is turned into, and the record of one rank that holds them.

Times are integer nanoseconds since the Unix epoch where the file allows it (else since its own origin), durations
integer nanoseconds, sizes as the column says. A null means that the file does not say; nothing here is inferred.

Two layers exist. The *facts* (`GPU_EVENTS`, `COMM_RECORDS`, `LAUNCHES`, `CPU_MARKS`, `STEPS`, `GROUPS`) are what a
parser fills. The *meaning* (`COLLECTIVES`) is what `heuristics` makes of them: one row per collective call.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import pyarrow as pa

TEXT = pa.dictionary(pa.int32(), pa.string())
"""Repeated text: stored once, referred to by number."""

GPU_EVENTS = pa.schema(
    [
        ("ts_ns", pa.int64()),
        ("dur_ns", pa.int64()),
        ("device", pa.int32()),
        ("stream", pa.int64()),
        ("kind", TEXT),  # kernel | memcpy | memset | sync | annotation | other
        ("name", TEXT),
        ("correlation", pa.int64()),
        ("external_id", pa.int64()),
        ("bytes", pa.int64()),  # of a memcpy or memset
        ("graph", pa.int64()),  # CUDA graph node id, where the kernel was replayed from a graph
    ]
)
"""Everything that ran on a GPU, in the order of the file."""

COMM_RECORDS = pa.schema(
    [
        # which layer of the stack says it:
        # kernel | record_param_comms | c10d | functional | symm_mem | annotation | gpu_annotation | nvtx (NCCL's own
        # range of a call) | gpu_nvtx (that range again, for work replayed from the CUDA graph that recorded it)
        # lists of calls, which do not nest: flight_recorder | nccl_log | nccl_profiler | execution_trace |
        # comms_logger
        ("layer", TEXT),
        ("name", TEXT),  # the event's own name
        ("ts_ns", pa.int64()),
        ("dur_ns", pa.int64()),
        ("tid", pa.int64()),  # CPU thread; null for GPU layers
        ("device", pa.int32()),  # GPU layers only
        ("stream", pa.int64()),  # GPU layers only
        ("correlation", pa.int64()),
        # as Kineto writes it; of layer nvtx: equal to that of the GPU events that came of the call (of the calls of a
        # group, where NCCL fused them)
        ("external_id", pa.int64()),
        ("gpu_event", pa.int32()),  # row of GPU_EVENTS, for layers kernel, gpu_annotation and gpu_nvtx
        ("collective", TEXT),  # Kineto `Collective name`
        ("dtype", TEXT),  # as written: BFloat16, Float, ...
        ("in_nelems", pa.int64()),  # elements, not bytes
        ("out_nelems", pa.int64()),
        ("message_bytes", pa.int64()),  # NCCL's count argument times the size of its type (nccl.h): one rank's share
        ("in_split", pa.list_(pa.int64())),  # rows of dimension 0 per peer; cut lists keep what is there
        ("out_split", pa.list_(pa.int64())),
        ("splits_cut", pa.bool_()),  # the writer truncated a split list
        ("group_name", TEXT),  # Kineto `Process Group Name`: joins with GROUPS.name
        ("group_desc", TEXT),
        ("group_size", pa.int32()),
        ("group_ranks", pa.list_(pa.int32())),  # as printed, without the ellipsis
        ("group_ranks_cut", pa.bool_()),  # the writer truncated the list
        ("rank_start", pa.int32()),
        ("rank_stride", pa.int32()),
        ("rank_arg", pa.int32()),  # `Rank`: own group rank; peer's for send and recv; the root for broadcast
        ("src_rank", pa.int32()),  # global
        ("dst_rank", pa.int32()),  # global
        ("seq", pa.int64()),
        ("comms_id", pa.int64()),  # the 64-bit hash, as a signed number
        ("is_async", pa.bool_()),
        ("input_dims", pa.list_(pa.list_(pa.int64()))),  # per tensor; tensor lists are flattened one level
        ("input_types", pa.list_(pa.string())),
        ("concrete_inputs", pa.list_(pa.string())),
    ]
)
"""Everything that says something about communication, from any layer, in the order of the file.

The layers of one call overlap (functional op > c10d op > record_param_comms > kernel > annotation); which rows belong
together is for `heuristics.primitives` to say."""

LAUNCHES = pa.schema(
    [
        ("ts_ns", pa.int64()),
        ("dur_ns", pa.int64()),
        ("tid", pa.int64()),
        ("correlation", pa.int64()),
        ("external_id", pa.int64()),
    ]
)
"""Runtime and driver calls that put work on a GPU; joined to GPU_EVENTS by `correlation`."""

CPU_MARKS = pa.schema(
    [
        ("ts_ns", pa.int64()),
        ("dur_ns", pa.int64()),
        ("tid", pa.int64()),
        # step | optimizer | autograd | annotation | op (operators, kept where no GPU ran) | sync (calls and operators
        # in which the CPU stands still for the GPU)
        ("kind", TEXT),
        ("name", TEXT),
    ]
)
"""What the CPU side says about the shape of the step."""

STEPS = pa.schema([("number", pa.int64()), ("ts_ns", pa.int64()), ("dur_ns", pa.int64())])
"""Profiler steps as marked in the file, in time order."""

GROUPS = pa.schema(
    [
        ("name", pa.string()),
        ("desc", pa.string()),
        ("backend", pa.string()),
        ("size", pa.int32()),
        ("ranks", pa.list_(pa.int32())),  # full and in group order, or null
        ("ranks_source", pa.string()),  # pg_config | listed | start_stride | cut_list | members | none
        ("declared", pa.bool_()),  # named in the file's header, whether or not it was used
    ]
)
"""Process groups of this rank. A parser fills in what the header declares; `heuristics.groups` adds the rest."""

COLLECTIVES = pa.schema(
    [
        ("ts_ns", pa.int64()),  # start on the wire's side: the kernel (or copy) on a GPU, the operator on a CPU
        ("dur_ns", pa.int64()),
        ("launch_ts_ns", pa.int64()),  # when the CPU asked for it
        ("tid", pa.int64()),
        ("device", pa.int32()),
        ("stream", pa.int64()),
        ("primitive", TEXT),  # all_reduce ... barrier, as in the contract
        ("role", TEXT),  # payload | sync | pack
        ("library", TEXT),  # nccl | rccl | gloo | deep_ep | ...
        ("classified_by", TEXT),  # metadata | operator | annotation | nvtx | kernel_name
        ("conflict", pa.bool_()),  # another source named a different primitive
        ("op", TEXT),  # the caller's operation: _allgather_base, allreduce_coalesced, all_to_allv, ...
        ("name", TEXT),  # kernel or operator name
        ("group", pa.int32()),  # row of the rank's GROUPS
        ("group_size", pa.int32()),
        ("dtype", TEXT),  # normalised: float32, bfloat16, ...
        ("in_nelems", pa.int64()),
        ("out_nelems", pa.int64()),
        ("size_bytes", pa.int64()),  # total array, as nccl-tests
        ("sent_bytes", pa.int64()),  # what this rank sends
        ("shape", pa.list_(pa.int64())),  # of the first tensor, where recorded
        ("direction", TEXT),  # send | recv
        ("peer", pa.int32()),  # global rank
        ("root", pa.int32()),  # group rank; of a message, the peer's where its global rank is not known
        ("in_split", pa.list_(pa.int64())),
        ("out_split", pa.list_(pa.int64())),
        ("seq", pa.int64()),
        ("comms_id", pa.int64()),
        ("is_async", pa.bool_()),
        ("step", pa.int32()),  # row of STEPS
        ("phase", TEXT),  # forward | backward | optimizer | unknown
    ]
)
"""One row per collective call of one rank, in order of `launch_ts_ns` (else `ts_ns`)."""


TWO_WRITERS = "two writers in one file"
"""Begins the note of a file in which a second header stands among the events."""


@dataclass(frozen=True)
class RankIdentity:
    """Who wrote this trace, and what said so."""

    rank: int | None
    rank_source: str | None  # metadata | file_name | group_intersection | group_rank | argument
    world_size: int | None
    host: str | None = None
    pid: int | None = None
    device: int | None = None  # the GPU, where one file holds several
    backend: str | None = None
    run_id: str | None = None


@dataclass(frozen=True)
class Health:
    """What was wrong with a file and what was done about it; all zero for a sound file."""

    complete: bool = True
    file_bytes: int = 0
    events: int = 0
    repaired: int = 0  # events changed so that they could be read
    quarantined: int = 0  # events set aside because their values make no sense
    dropped: int = 0  # events lost
    first_damage_byte: int | None = None
    last_good_ts_ns: int | None = None  # start of the last event kept, in order of the file
    notes: tuple[str, ...] = ()  # one sentence per kind of fault, with counts


@dataclass(frozen=True)
class RankTrace:
    """One rank's trace as tables.

    Raises nothing; tables that a format cannot fill are empty, never missing.
    """

    path: str
    format: str  # kineto | nsys | ...
    identity: RankIdentity
    gpu_events: pa.Table
    comm_records: pa.Table
    launches: pa.Table
    cpu_marks: pa.Table
    steps: pa.Table
    groups: pa.Table
    health: Health
    devices: tuple[Mapping[str, object], ...] = ()  # `deviceProperties`
    metadata: Mapping[str, object] = field(default_factory=dict)  # other header keys worth keeping
    witness: object | None = None  # what the format says beyond the tables, as a dataclass of its parser

    @property
    def on_gpu(self) -> bool:
        """Whether anything ran on a GPU: if not, communication is the operator itself."""
        return bool(self.gpu_events.num_rows)


def empty(schema: pa.Schema) -> pa.Table:
    """A table with no rows and the given schema (`schema.empty_table` would import pandas)."""
    return pa.Table.from_arrays([pa.nulls(0, field.type) for field in schema], schema=schema)
