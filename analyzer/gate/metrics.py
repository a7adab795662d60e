"""From an analysis and its single steps to a `Record`.

Exact metrics are what a program decides: layout, number of calls, bytes, types, what the ledger leaves unexplained.
They carry no tolerance. Noisy metrics are times and what is made of them. Bytes that differ from step to step while the
number of calls does not (tokens routed to experts, sequences of any length) depend on the data and count as noisy.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt

from analyzer.gate.record import Facts, LedgerBytes, ModelFacts, Record, Series, Value, fingerprint, layout_name
from analyzer.gate.samples import DimSamples, Samples, samples_of
from analyzer.measured import Measured
from analyzer.model import Analysis, CollectiveRow

DEGREES = ("tp", "cp", "pp", "dp", "ep")
TRAITS = (
    "sequence_parallel",
    "data_parallel",
    "zero_stage",
    "dp_shard",
    "dp_replicate",
    "cp_kind",
    "pp_schedule",
    "virtual_stages",
    "microbatches",
    "recompute",
    "grad_reduce_dtype",
)
MOST_SIZES = 64
"""Distinct array sizes kept per dimension and primitive; more are the mark of data-dependent traffic."""

Floats = npt.NDArray[np.float64]


def record_of(analysis: Analysis, ranks: Sequence[Measured] | None, tokens_per_step: int | None = None) -> Record:
    """Boil a run down.

    Args:
        analysis: the document.
        ranks: what it was made from; None where only the document is there: then times are means without samples.
        tokens_per_step: of the whole job; None: as read back from the traffic.
    """
    samples = samples_of(ranks) if ranks is not None else None
    facts = _facts(analysis, samples, ranks or (), tokens_per_step)
    exact: dict[str, Value] = dict(_exact(analysis, facts))
    noisy: dict[str, Series] = {}
    if samples is None:
        exact |= dict(_rows_of_document(analysis.collectives))
        noisy |= dict(_means(analysis))
    else:
        for name, value in _rows(samples):
            if isinstance(value, Series):
                noisy[name] = value
            else:
                exact[name] = value
        noisy |= dict(_times(samples, facts))
    return Record(
        tool=analysis.tool,
        fingerprint=fingerprint(facts),
        facts=facts,
        steps=list(samples.numbers) if samples is not None else [],
        exact=exact,
        noisy=noisy,
        anatomy_ns=anatomy(samples, facts) if samples is not None else _mean_anatomy(analysis),
        collectives=analysis.collectives,
        ledger=_ledger(analysis),
    )


def _facts(a: Analysis, samples: Samples | None, ranks: Sequence[Measured], tokens: int | None) -> Facts:
    ledger = a.ledger.model if a.ledger is not None else None
    captures = [rank.source.capture for rank in ranks]
    graphs = {c.graphs for c in captures} - {None}
    return Facts(
        world_size=a.world_size,
        ranks=a.trust.ranks_present,
        layout={name: getattr(a.layout, name) for name in DEGREES},
        gpus=sorted({str(d.get("name")) for rank in ranks for d in rank.source.devices if d.get("name")}),
        libraries={k: v for c in captures for k, v in sorted(c.libraries.items())},
        graphs=any(graphs) if graphs else None,
        profiler={k: v for c in captures for k, v in c.flags.items()},
        model=ModelFacts(
            name=ledger.name if ledger is not None and ledger.source == "given" else None,
            hidden=ledger.hidden if ledger is not None else None,
            elements=_elements(samples),
            total=_totals(samples),
        ),
        tokens_per_step=tokens if tokens is not None else _tokens(a),
    )


def _tokens(a: Analysis) -> int | None:
    """Tokens of one step of the whole job."""
    each = a.ledger.model.tokens_per_microbatch if a.ledger is not None else None
    if each is None or a.layout.dp is None or a.layout.cp is None:
        return None
    return each * (a.layout.microbatches or 1) * a.layout.dp * a.layout.cp


def _elements(samples: Samples | None) -> dict[str, list[int]]:
    if samples is None:
        return {}
    return {
        f"{dim}.{primitive}": sorted(traffic.elements)
        for (dim, primitive), traffic in samples.traffic.items()
        if len(traffic.elements) <= MOST_SIZES and not _depends_on_data(traffic.calls, traffic.sent)
    }


def _totals(samples: Samples | None) -> dict[str, float]:
    totals: dict[str, float] = {}
    for (dim, _), traffic in samples.traffic.items() if samples is not None else ():
        totals[dim] = round(totals.get(dim, 0.0) + traffic.total, 3)
    return totals


def _exact(a: Analysis, facts: Facts) -> Iterator[tuple[str, Value]]:
    yield "layout", layout_name(facts.layout) if None not in facts.layout.values() else None
    yield "world_size", a.world_size
    for trait in TRAITS:
        value = getattr(a.layout, trait)
        yield f"layout.{trait}", str(value).lower() if isinstance(value, bool) else value
    rows = a.ledger.rows if a.ledger is not None else None
    yield "ledger_residual_bytes", a.ledger.residual_bytes if a.ledger is not None and rows else None
    yield "missing_collectives", sum(r.verdict == "missing" for r in rows) if rows else None
    yield "extra_collectives", sum(r.verdict == "extra" for r in rows) if rows else None


def _depends_on_data(calls: Floats, sent: Floats | None) -> bool:
    return sent is not None and len(sent) > 1 and bool(np.ptp(calls) == 0) and bool(np.ptp(np.round(sent)) > 0)


def _rows(samples: Samples) -> Iterator[tuple[str, Value | Series]]:
    for (dim, primitive), traffic in samples.traffic.items():
        row = f"{dim}.{primitive}"
        yield f"calls.{row}", _number(float(np.mean(traffic.calls)))
        yield f"dtype.{row}", "+".join(sorted(traffic.dtypes)) if "?" not in traffic.dtypes else None
        yield f"groups.{row}", "+".join(map(str, sorted(traffic.groups))) if min(traffic.groups) > 0 else None
        if _depends_on_data(traffic.calls, traffic.sent) and traffic.sent is not None:
            yield f"bytes.{row}", _series(traffic.sent, "B", worth=0.0)
        else:
            yield f"bytes.{row}", None if traffic.sent is None else round(float(np.mean(traffic.sent)))


def _rows_of_document(rows: Sequence[CollectiveRow]) -> Iterator[tuple[str, Value]]:
    names = dict.fromkeys((row.dim, row.primitive) for row in rows)
    for dim, primitive in names:
        mine = [row for row in rows if (row.dim, row.primitive) == (dim, primitive)]
        sent = [row.sent_bytes_per_step for row in mine]
        types = {row.dtype for row in mine}
        yield f"calls.{dim}.{primitive}", _number(sum(row.calls_per_step for row in mine))
        yield (
            f"dtype.{dim}.{primitive}",
            None if None in types else "+".join(sorted(t for t in types if t is not None)),
        )
        sizes = {row.group_size for row in mine}
        yield (
            f"groups.{dim}.{primitive}",
            None if None in sizes else "+".join(map(str, sorted(n for n in sizes if n is not None))),
        )
        yield f"bytes.{dim}.{primitive}", None if None in sent else sum(s for s in sent if s is not None)


def _number(value: float) -> int | float:
    rounded = round(value, 6)
    return int(rounded) if rounded.is_integer() else rounded


def _series(values: Floats, unit: str, *, lower: bool = True, worth: float = 1.0, scale: float = 1.0) -> Series:
    shown = [round(float(v) / scale, 6 if unit in ("share", "GB/s") else 3) for v in values]
    return Series(unit=unit, samples=shown, lower_is_better=lower, worth_us=round(worth, 6))


def _times(s: Samples, facts: Facts) -> Iterator[tuple[str, Series]]:
    for name, part in (("step_us", "step"), ("compute_us", "compute"), ("exposed_us", "exposed"), ("idle_us", "idle")):
        yield name, _series(s.parts[part], "us", scale=1e3)
    if s.launch_gap is not None:
        yield "launch_gap_us", _series(s.launch_gap, "us", scale=1e3)
        bubble = _bubble(s, facts)
        if bubble is not None:
            yield "bubble_us", _series(bubble, "us", scale=1e3)
    for dim, d in s.dims.items():
        yield f"exposed.{dim}", _series(d.exposed, "us", scale=1e3)
        if d.wait is not None and d.transfer is not None:
            yield f"wait.{dim}", _series(d.wait, "us", scale=1e3)
            yield f"transfer.{dim}", _series(d.transfer, "us", scale=1e3)
        if (d.busy > 0).all():
            worth = float(np.mean(d.busy)) / 1e3
            yield f"overlap.{dim}", _series((d.busy - d.exposed) / d.busy, "share", lower=False, worth=worth)
        if d.transfer is not None and d.bus_bytes is not None and (d.transfer > 0).all() and (d.bus_bytes > 0).all():
            speed = d.bus_bytes / d.transfer  # bytes per ns are decimal GB per s
            # A bandwidth that falls by a small part costs that part of the time the data is under way.
            worth = float(np.mean(d.transfer)) / 1e3 / float(np.mean(speed))
            yield f"busbw.{dim}", _series(speed, "GB/s", lower=False, worth=worth)


def _bubble(s: Samples, facts: Facts) -> Floats | None:
    """Idle time of a pipeline stage: the next work has been launched and waits for another stage.

    Includes waiting for neighbours inside a receive, where matching can tell it from transfer.
    """
    if (facts.layout["pp"] or 1) < 2 or s.launch_gap is None:
        return None
    return np.maximum(s.parts["idle"] - s.launch_gap, 0.0) + _pipeline_wait(s)


def _pipeline_wait(s: Samples) -> Floats:
    waited = s.dims["pp"].exposed_wait if "pp" in s.dims else None
    return np.zeros(len(s.parts["step"])) if waited is None else waited


def _means(a: Analysis) -> Iterator[tuple[str, Series]]:
    """What a saved document knows: one mean instead of samples."""
    if a.exposure is None:
        return
    for name in ("step_us", "compute_us", "exposed_us", "idle_us"):
        yield name, _series(np.array([getattr(a.exposure, name)]), "us")
    for dim, d in a.exposure.by_dimension.items():
        yield f"exposed.{dim}", _series(np.array([d.exposed_us]), "us")
        if d.wait_us is not None and d.transfer_us is not None:
            yield f"wait.{dim}", _series(np.array([d.wait_us]), "us")
            yield f"transfer.{dim}", _series(np.array([d.transfer_us]), "us")
        if d.busy_us > 0:
            share = np.array([d.overlapped_us / d.busy_us])
            yield f"overlap.{dim}", _series(share, "share", lower=False, worth=d.busy_us)


def anatomy(s: Samples, facts: Facts) -> dict[str, int]:
    """The mean step in ns: compute, what each dimension exposed, waiting, bubble, launch gaps, and the rest.

    What this input cannot tell apart has no entry and stays where it was seen: waiting in ``exposed``, idle time in
    ``other``.
    """
    parts: dict[str, Floats] = {"compute": s.parts["compute"]}
    waiting = np.zeros(len(s.parts["step"]))
    bubble = _bubble(s, facts)
    for dim, d in s.dims.items():
        if dim == "pp" and bubble is None:
            parts["exposed.pp"] = d.exposed
            continue
        parts[f"exposed.{dim}"] = d.exposed - _waited(d)
        if dim != "pp":
            waiting += _waited(d)
    if any(d.exposed_wait is not None for d in s.dims.values()):
        parts["wait"] = waiting
    if bubble is not None:
        parts["bubble"] = bubble
    if s.launch_gap is not None:
        parts["launch gaps"] = s.launch_gap
    return _closed({name: round(float(np.mean(v))) for name, v in parts.items()}, float(np.mean(s.parts["step"])))


def _waited(d: DimSamples) -> Floats:
    return np.zeros(len(d.exposed)) if d.exposed_wait is None else d.exposed_wait


def _mean_anatomy(a: Analysis) -> dict[str, int]:
    if a.exposure is None:
        return {}
    parts = {"compute": round(a.exposure.compute_us * 1000)}
    parts |= {f"exposed.{dim}": round(d.exposed_us * 1000) for dim, d in a.exposure.by_dimension.items()}
    return _closed(parts, a.exposure.step_us * 1000)


def _closed(parts: dict[str, int], step: float) -> dict[str, int]:
    """``other`` is what is left: copies, and idle time with no known cause."""
    return {**parts, "other": round(step) - sum(parts.values())}


def _ledger(a: Analysis) -> list[LedgerBytes] | None:
    if a.ledger is None or not a.ledger.rows:
        return None
    return [
        LedgerBytes(dim=r.dim, primitive=r.primitive, link=r.link, predicted=r.predicted_bytes)
        for r in a.ledger.rows
        if r.predicted_bytes is not None
    ]
