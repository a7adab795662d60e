"""One run as small numbers: what a comparison needs, and what a baseline file holds.

Everything in it is a pure function of the traces and the options: the same run gives the same bytes.
"""

from __future__ import annotations

import hashlib

import msgspec

from analyzer.model import CollectiveRow, Tool

KIND = "commlens.run"
SCHEMA_VERSION = 1

Value = int | float | str | None
"""Of an exact metric; None is *not determined from this input*."""


class _Part(msgspec.Struct, frozen=True, kw_only=True):
    """Base of the record's parts."""


class Series(_Part, frozen=True, kw_only=True):
    """A noisy metric.

    Attributes:
        unit: us | share | GB/s | B.
        samples: one per step; a single mean where steps are not known.
        lower_is_better: which way is worse.
        worth_us: microseconds of the step that one unit stands for: 1 for times, the time communicated for shares.
    """

    unit: str
    samples: list[float]
    lower_is_better: bool
    worth_us: float


class ModelFacts(_Part, frozen=True, kw_only=True):
    """What is known of the model from outside and from its traffic.

    Attributes:
        name: as given.
        hidden: as given or read back.
        elements: distinct sizes of the arrays of each dimension and primitive, in elements.
        total: elements per step and rank of each dimension.
    """

    name: str | None
    hidden: int | None
    elements: dict[str, list[int]]
    total: dict[str, float]


class Facts(_Part, frozen=True, kw_only=True):
    """What must be equal in two runs for their times to be comparable."""

    world_size: int | None
    ranks: list[int]
    layout: dict[str, int | None]
    gpus: list[str]
    libraries: dict[str, str]
    graphs: bool | None
    profiler: dict[str, bool]
    model: ModelFacts
    tokens_per_step: int | None


class LedgerBytes(_Part, frozen=True, kw_only=True):
    """Bytes that the ledger lets a rank send per step."""

    dim: str
    primitive: str
    link: str | None
    predicted: int


class Accepted(_Part, frozen=True, kw_only=True):
    """A change that somebody took into the baseline."""

    metric: str
    before: Value
    after: Value
    reason: str
    who: str
    when: str  # ISO 8601, UTC


class Record(_Part, frozen=True, kw_only=True):
    """One run.

    Attributes:
        fingerprint: of the facts: equal in runs that may be compared.
        steps: numbers of the steps behind the samples; empty where only means are known.
        exact: metrics without noise.
        noisy: metrics with one sample per step.
        anatomy_ns: the mean step divided up; the values sum to its length.
        collectives: the rows of the document.
        ledger: predicted bytes; None where there was no comparison.
        accepted: the baseline's history.
    """

    kind: str = KIND
    schema_version: int = SCHEMA_VERSION
    tool: Tool
    fingerprint: str
    facts: Facts
    steps: list[int]
    exact: dict[str, Value]
    noisy: dict[str, Series]
    anatomy_ns: dict[str, int]
    collectives: list[CollectiveRow]
    ledger: list[LedgerBytes] | None
    accepted: list[Accepted] = []


def fingerprint(facts: Facts) -> str:
    """Sixteen hexadecimal digits over what is known about the run's comparability."""
    return hashlib.sha256(msgspec.json.encode(facts, order="sorted")).hexdigest()[:16]


def to_json(record: Record) -> bytes:
    """The record as UTF-8 JSON with a final newline; equal records give equal bytes."""
    return msgspec.json.format(msgspec.json.encode(record), indent=1) + b"\n"


def layout_name(layout: dict[str, int | None]) -> str:
    """``tp8-cp1-pp16-dp128-ep1``; a question mark stands for a degree that is not known."""
    return "-".join(f"{dim}{'?' if degree is None else degree}" for dim, degree in layout.items())
