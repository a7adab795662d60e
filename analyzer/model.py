"""The result document (`schema_version` 1): what every reporter formats and every other program reads.

Times are microseconds, bytes integers, bandwidths decimal GB/s. "per step" is the mean over complete steps, "per rank"
the mean over the ranks read, unless the name says otherwise. ``None`` means not determined from this input.
"""

from __future__ import annotations

import msgspec

from analyzer.doc import Doc
from analyzer.model_sources import Logged, WiresDoc

SCHEMA_VERSION = 1


class Tool(Doc, frozen=True, kw_only=True):
    """Who wrote the document."""

    name: str
    version: str


class Input(Doc, frozen=True, kw_only=True):
    """One file that was read."""

    path: str
    format: str
    rank: int | None
    host: str | None
    bytes: int
    events: int
    complete: bool


class StepTrust(Doc, frozen=True, kw_only=True):
    """Where steps came from and which of them are whole."""

    source: str  # profiler_step | inferred | none
    complete: list[int]
    incomplete: list[int]


class Clock(Doc, frozen=True, kw_only=True):
    """Whether the ranks' clocks could be put on one axis."""

    aligned: bool
    residual_us: float | None
    offset_us: dict[str, float]


class Trust(Doc, frozen=True, kw_only=True):
    """What must be known before any number is believed."""

    ranks_present: list[int]
    ranks_missing: list[int]
    ranks_duplicated: list[int]
    events_repaired: int
    events_quarantined: int
    events_clipped: int
    steps: StepTrust
    comm_time_classified: float | None  # 0..1
    comm_time_with_group: float | None
    comm_calls_with_bytes: float | None
    clock: Clock
    warnings: list[str]


class Dimension(Doc, frozen=True, kw_only=True):
    """One dimension of the layout with its evidence."""

    degree: int | None
    confidence: float
    groups: list[list[int]]
    evidence: list[str]
    against: list[str]


class Alternative(Doc, frozen=True, kw_only=True):
    """A layout that came out behind."""

    tp: int | None
    cp: int | None
    pp: int | None
    dp: int | None
    ep: int | None
    zero_stage: int | None
    confidence: float
    why_less: str


class LayoutDoc(Doc, frozen=True, kw_only=True):
    """The inferred parallel layout."""

    tp: int | None
    cp: int | None
    pp: int | None
    dp: int | None
    ep: int | None
    sequence_parallel: bool | None
    data_parallel: str | None
    zero_stage: int | None
    dp_shard: int | None
    dp_replicate: int | None
    cp_kind: str | None
    pp_schedule: str | None
    virtual_stages: int | None
    microbatches: int | None
    rank_order: str | None
    recompute: str | None
    grad_reduce_dtype: str | None
    confidence: float
    source: str
    dimensions: dict[str, Dimension]
    alternatives: list[Alternative]


class Sizes(Doc, frozen=True, kw_only=True):
    """Spread of the total-array bytes of a row's calls."""

    min: int
    p50: int
    max: int


class CollectiveRow(Doc, frozen=True, kw_only=True):
    """One row per (dim, primitive, group size, link, dtype, op)."""

    dim: str
    primitive: str
    op: str | None
    group_size: int | None
    link: str | None  # intra_node | inter_node | mixed
    link_type: str | None
    dtype: str | None
    phase: str
    calls_per_step: float
    size_bytes: Sizes | None
    sent_bytes_per_step: int | None
    time_us_per_step: float | None  # null where calls were not timed
    wait_us_per_step: float | None
    transfer_us_per_step: float | None
    exposed_us_per_step: float | None  # null where nothing that computes was recorded
    overlapped_us_per_step: float | None
    algbw_gbps: float | None
    busbw_gbps: float | None
    classified_by: dict[str, int]


class DimensionTime(Doc, frozen=True, kw_only=True):
    """How long one dimension communicated, and how much of it nothing hid."""

    busy_us: float
    exposed_us: float
    overlapped_us: float
    wait_us: float | None
    transfer_us: float | None


class RankExposure(Doc, frozen=True, kw_only=True):
    """The step of one rank, divided up."""

    rank: int | None
    step_us: float
    compute_us: float
    exposed_us: float
    overlapped_us: float
    memcpy_us: float
    idle_us: float
    by_dimension: dict[str, DimensionTime]


class ExposedCause(Doc, frozen=True, kw_only=True):
    """Exposed time of one dimension with one cause; those of a dimension sum to its exposed time."""

    dim: str
    cause: str  # waiting | capture_start | bubble | stream | serialised | latency | late_launch | ...
    exposed_us: float
    avoidable_us: float | None  # null where nothing says what the transfers should take


class ExposurePrediction(Doc, frozen=True, kw_only=True):
    """Exposed time of one dimension as observed, as predicted, and the least there can be; µs per step and rank."""

    dim: str
    observed_us: float
    waiting_us: float | None  # of it; no prediction is made of waiting
    predicted_us: float | None
    lower_bound_us: float | None
    transfer_us: float | None  # what all transfers should take, hidden or not
    least_transfer_us: float | None
    hideable: dict[str, float]  # shares of the bytes that compute can hide: yes, partial, no
    avoidable_us: float | None
    speeds: str | None  # cluster | fitted | measured, several joined by "+"
    reason: str | None  # why there is no prediction


class TaxedKernel(Doc, frozen=True, kw_only=True):
    """A kernel that takes longer with communication beside it."""

    name: str
    alone_us: float
    beside_us: float
    slowdown: float
    count: int


class OverlapTax(Doc, frozen=True, kw_only=True):
    """What communication costs the compute that it runs beside; no part of the exposed time."""

    us_per_step: float
    kernels: list[TaxedKernel]


class Exposure(Doc, frozen=True, kw_only=True):
    """The mean step divided up; the exposed parts of the dimensions sum to ``exposed_us``."""

    step_us: float
    compute_us: float
    exposed_us: float
    overlapped_us: float
    memcpy_us: float
    idle_us: float
    by_dimension: dict[str, DimensionTime]
    by_rank: list[RankExposure]
    causes: list[ExposedCause] = msgspec.field(default_factory=list)
    prediction: list[ExposurePrediction] = msgspec.field(default_factory=list)
    overlap_tax: OverlapTax | None = None


class Bubble(Doc, frozen=True, kw_only=True):
    """Pipeline bubble as a share of the step: measured, and (p-1)/(v·m+p-1)."""

    observed: float | None
    predicted: float | None


class StageTime(Doc, frozen=True, kw_only=True):
    """The mean step of the ranks of one stage; compute, waiting, transfer, the rest exposed, memcpy and idle sum to it.

    The bubble is what the stage neither computed nor moved between the pipeline's first and last work: waiting, idle
    time, and all that its step has before its own first and after its own last work (for instance waiting in the
    all-reduce of a norm). As a fraction it is of the time between the two.
    """

    stage: int
    ranks: list[int]
    step_us: float
    compute_us: float
    waiting_us: float  # exposed, inside receives and sends
    transfer_us: float | None  # exposed, the rest of these; null where waiting holds it as well
    other_exposed_us: float  # of all other communication
    memcpy_us: float
    idle_us: float
    bubble_us: float | None  # null where it cannot be measured
    bubble_fraction: float | None


class Pipeline(Doc, frozen=True, kw_only=True):
    """What only pipelines have."""

    bubble_fraction: Bubble
    stage_of_rank: dict[str, int]
    by_stage: list[StageTime] = msgspec.field(default_factory=list)


class Imbalance(Doc, frozen=True, kw_only=True):
    """Largest expert load over the mean, over calls."""

    mean: float
    max: float


class ExpertLayer(Doc, frozen=True, kw_only=True):
    """Imbalance of one mixture-of-experts layer, by its order in the step."""

    layer: int
    imbalance: float


class Experts(Doc, frozen=True, kw_only=True):
    """What only mixtures of experts have."""

    imbalance: Imbalance
    by_layer: list[ExpertLayer]


class ModelDoc(Doc, frozen=True, kw_only=True):
    """The model behind the ledger: given, or read back from payloads."""

    name: str | None
    layers: int | None
    hidden: int | None
    tokens_per_microbatch: int | None
    parameters_per_rank: int | None
    source: str  # given | inferred | none
    notes: list[str]


class LedgerRow(Doc, frozen=True, kw_only=True):
    """Predicted against observed bytes that one rank sends per step."""

    dim: str
    primitive: str
    link: str | None
    predicted_bytes: int | None
    observed_bytes: int
    ratio: float | None
    verdict: str  # match | explained | missing | extra | differs
    explanation: str


class LedgerExposure(Doc, frozen=True, kw_only=True):
    """What the ledger says of overlap, against what was seen."""

    dim: str
    predicted: str  # yes | partial | no
    observed_exposed_fraction: float | None
    verdict: str


class LedgerDoc(Doc, frozen=True, kw_only=True):
    """Observed against predicted."""

    profile: str
    model: ModelDoc
    rows: list[LedgerRow]
    residual_bytes: int
    exposure: list[LedgerExposure]


class Straggler(Doc, frozen=True, kw_only=True):
    """A rank that the others wait for."""

    rank: int
    late_us_per_step: float
    share_of_waits: float
    cause: str | None


class JobSlowdown(Doc, frozen=True, kw_only=True):
    """A pipeline job replayed with its measured durations, and with every kind of operation taking the same."""

    ratio: float
    replayed_us: float
    ideal_us: float
    pipelines: list[list[int]]


class Finding(Doc, frozen=True, kw_only=True):
    """Something worth a person's attention."""

    id: str
    severity: str  # info | warning | error
    title: str
    detail: str
    dim: str | None
    ranks: list[int]
    cost_us: float | None  # per step; null where no time is at stake or it is not known
    action: str = ""  # what to do next


class Analysis(Doc, frozen=True, kw_only=True):
    """The whole result."""

    schema_version: int
    tool: Tool
    inputs: list[Input]
    trust: Trust
    world_size: int | None
    gpus_per_node: int | None
    layout: LayoutDoc
    collectives: list[CollectiveRow]
    exposure: Exposure | None
    pipeline: Pipeline | None
    experts: Experts | None
    ledger: LedgerDoc | None
    stragglers: list[Straggler]
    findings: list[Finding]
    slowdown: JobSlowdown | None = None  # of jobs whose every operation is known
    wires: WiresDoc | None = None  # of jobs with a log of NCCL or a profiler of its plugins
    logged: list[Logged] = msgspec.field(default_factory=list)  # what DeepSpeed's logger counted


def to_json(analysis: Analysis) -> bytes:
    """The document as UTF-8 JSON, indented, with a final newline."""
    return msgspec.json.format(msgspec.json.encode(analysis), indent=1) + b"\n"


def from_json(data: bytes) -> Analysis:
    """Read a document back.

    Raises:
        msgspec.ValidationError: the data is not a document of this schema.
    """
    return msgspec.json.decode(data, type=Analysis)
