"""Observed against predicted: the ledger of the document."""

from __future__ import annotations

import dataclasses
import itertools
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from analyzer.measured import Measured
from analyzer.mirrored import from_forward
from analyzer.model import CollectiveRow, Exposure, LedgerDoc, LedgerExposure, LedgerRow, ModelDoc
from analyzer.options import Options
from analyzer.predicted import Key, Predicted, from_model, stand_in
from analyzer.rows import DIM_ORDER
from analyzer.traffic import Traffic, traffic
from heuristics.verdict import DIMENSIONS, Layout
from ledger.clusters import load_cluster
from ledger.config import ParallelConfig
from ledger.errors import LedgerError
from ledger.load import load_model
from ledger.model import ModelSpec
from ledger.profiles import PROFILES, profile

CONTROL = "flags, counts, losses and norms: not payload"


@dataclass(frozen=True)
class Line:
    """One dimension and primitive, compared."""

    key: Key
    predicted: float | None
    observed: float
    named: float
    verdict: str
    explanation: str

    @property
    def unexplained(self) -> float:
        """Bytes by which the two differ without a cause."""
        if self.verdict in ("match", "explained"):
            return 0.0
        return abs(self.observed - self.named - (self.predicted or 0.0))


def declared_degrees(layout: str | None) -> dict[str, int] | None:
    """The degrees of a declared layout.

    Raises:
        LedgerError: the text is not a layout.
    """
    if layout is None:
        return None
    config = ParallelConfig.parse(layout)
    return {dim: getattr(config, dim) for dim in DIMENSIONS}


@dataclass(frozen=True)
class Reconciled:
    """The ledger, or why there is none; per dimension, the shares of its bytes that compute can hide."""

    ledger: LedgerDoc | None
    refused: str | None
    hideable: Mapping[str, Mapping[str, float]] = field(default_factory=dict)


def check(options: Options) -> None:
    """Find out before anything is read whether the options name things that exist.

    Raises:
        LedgerError: an unknown model, layout, profile or cluster.
    """
    declared_degrees(options.layout)
    if options.cluster:
        load_cluster(options.cluster)
    if options.model:
        load_model(options.model)
    if options.ledger_profile != "auto":
        profile(options.ledger_profile)


def reconcile(
    ranks: Sequence[Measured],
    layout: Layout,
    rows: Sequence[CollectiveRow],
    exposure: Exposure | None,
    options: Options,
) -> Reconciled:
    """Hold what was sent against the ledger.

    With a model, everything is predicted from its dimensions. Without one, the rest of the step is predicted from the
    run's own forward pass and gradients. With the profile ``auto`` the one that leaves least unexplained is used, and
    among equals the one that needs the fewest explanations.

    Raises:
        LedgerError: an unknown model or profile.
    """
    seen = traffic(ranks)
    unknown = [dim for dim in DIMENSIONS if getattr(layout, dim) is None]
    if ranks and all(rank.source.view.fragment for rank in ranks):
        return Reconciled(None, "the calls are a piece of a step, and the ledger predicts whole ones")
    if not seen:
        return Reconciled(None, "the bytes of no call are known")
    if unknown:
        return Reconciled(None, f"the layout is not known ({', '.join(unknown)})")
    model = load_model(options.model) if options.model else None
    stages = [layout.stage_of_rank.get(r.source.rank, 0) if r.source.rank is not None else 0 for r in ranks]
    best: tuple[tuple[float, int], Predicted, list[Line]] | None = None
    refused = "no profile can predict this layout"
    for name, assumed in itertools.product(_profiles(options, layout, seen), _stages_to_try(layout)):
        try:
            predicted = _predict(model, seen, assumed, name, stages, options)
        except LedgerError as error:
            refused = f"the model does not fit the layout: {error}"
            continue
        if layout.zero_stage is None:
            predicted.notes.append(f"ZeRO {assumed.zero_stage} is assumed, which leaves least unexplained")
        lines = compare(seen, predicted, assumed)
        left = sum(line.unexplained for line in lines), sum(line.verdict != "match" for line in lines)
        if best is None or left < best[0]:
            best = (left, predicted, lines)
    if best is None:
        return Reconciled(None, refused)
    document = _document(best[1], best[2], model, layout, _links(rows), exposure)
    return Reconciled(document, None, best[1].hideable)


def _links(rows: Sequence[CollectiveRow]) -> dict[Key, str | None]:
    """The link of each dimension and primitive, where all its calls use the same."""
    seen: dict[Key, set[str | None]] = defaultdict(set)
    for row in rows:
        seen[row.dim, row.primitive].add(row.link)
    return {key: next(iter(links)) if len(links) == 1 else None for key, links in seen.items()}


def _profiles(options: Options, layout: Layout, seen: Traffic) -> list[str]:
    """The profiles to try; the one that layout inference believes in first, so that it wins ties."""
    if options.ledger_profile != "auto":
        return [options.ledger_profile]
    trains = any(flow.phase in ("backward", "optimizer") for flow in seen)
    names = [name for name, each in PROFILES.items() if each.training or not trains]
    return sorted(names, key=lambda name: name != layout.profile)


def _stages_to_try(layout: Layout) -> list[Layout]:
    """The layout as it is, or with every ZeRO stage where that is not decided."""
    if layout.zero_stage is not None or layout.dp == 1:
        return [layout]
    return [dataclasses.replace(layout, zero_stage=stage) for stage in (0, 1, 2, 3)]


def _predict(
    model: ModelSpec | None, seen: Traffic, layout: Layout, name: str, stages: Sequence[int], options: Options
) -> Predicted:
    if model is None:
        predicted = from_forward(seen, layout, name, stages)
        whole = _any_size(seen, layout, name, stages, options)
        predicted.overlap, predicted.hideable = whole.overlap, whole.hideable
        return predicted
    tokens = tokens_of_microbatch(model, layout)
    config = parallel_config(layout, seen, tokens, options.gpus_per_node)
    return from_model(model, config, name, stages, tokens_known=tokens is not None)


def _any_size(seen: Traffic, layout: Layout, name: str, stages: Sequence[int], options: Options) -> Predicted:
    """A prediction whose sizes mean nothing: what compute can hide follows from layout and framework alone."""
    try:
        config = parallel_config(layout, seen, None, options.gpus_per_node)
        return from_model(stand_in(config), config, name, stages, tokens_known=True)
    except LedgerError:
        return Predicted(name)


def tokens_of_microbatch(model: ModelSpec, layout: Layout) -> int | None:
    """Tokens of one microbatch on one rank, from the layer-boundary activation; None where it does not fit."""
    activation = layout.model.activation_elements
    if activation is None:
        return layout.model.tokens_per_microbatch
    tokens, rest = divmod(activation, model.hidden)
    return tokens if not rest else None


def parallel_config(layout: Layout, seen: Traffic, tokens: int | None, gpus_per_node: int | None) -> ParallelConfig:
    """The layout as the ledger takes it; what the traffic shows of data types is filled in.

    Raises:
        LedgerError: the fields of the layout contradict each other.
    """
    tp, cp = layout.tp or 1, layout.cp or 1
    activations = _usual_dtype(seen, ("tp", "cp", "pp", "ep"))
    gathered = _usual_dtype(seen, ("dp",), ("all_gather",))
    reduced = layout.grad_reduce_dtype or _usual_dtype(seen, ("dp",), ("reduce_scatter", "all_reduce"))
    parameters = gathered or (activations if activations and reduced else reduced) or "bfloat16"
    order = layout.rank_order
    full = order is not None and sorted(order.split("-")) == sorted(DIMENSIONS)
    return ParallelConfig(
        tp=tp,
        cp=cp,
        pp=layout.pp or 1,
        dp=layout.dp or 1,
        ep=layout.ep or 1,
        sequence_parallel=bool(layout.sequence_parallel),
        zero_stage=layout.zero_stage or 0,
        hsdp_shard=layout.dp_shard if layout.zero_stage and (layout.dp_replicate or 1) > 1 else None,
        virtual_stages=layout.virtual_stages or 1,
        microbatches=layout.microbatches or 1,
        micro_batch_size=1,
        seq_len=(tokens or tp) * cp,
        cp_kind=layout.cp_kind or "ring",
        schedule=layout.pp_schedule or "1f1b",
        gpus_per_node=gpus_per_node or 8,
        param_dtype=parameters,
        act_dtype=activations or parameters,
        grad_dtype=reduced,
        recompute=layout.recompute or "none",
        rank_order=order if order is not None and full else ParallelConfig.rank_order,
    )


def _usual_dtype(seen: Traffic, dims: Sequence[str], primitives: Sequence[str] = ()) -> str | None:
    """The floating-point type that carries most bytes."""
    by_type: dict[str, float] = defaultdict(float)
    for flow, sent in seen.items():
        if flow.dim in dims and "float" in flow.dtype and (not primitives or flow.primitive in primitives):
            by_type[flow.dtype] += sent.bytes
    return max(by_type, key=lambda name: by_type[name], default=None)


def compare(seen: Traffic, predicted: Predicted, layout: Layout) -> list[Line]:
    """Every dimension and primitive that was seen or predicted, with a verdict."""
    observed: dict[Key, float] = defaultdict(float)
    calls: dict[Key, float] = defaultdict(float)
    for flow, sent in seen.items():
        observed[flow.dim, flow.primitive] += sent.bytes
        calls[flow.dim, flow.primitive] += sent.calls
    keys = {key for key, sent in observed.items() if sent} | set(predicted.bytes)
    return [
        _line(key, observed.get(key, 0.0), calls.get(key, 0.0), predicted, layout)
        for key in sorted(keys, key=lambda k: (DIM_ORDER.index(k[0]), k[1]))
        if key[0] not in predicted.skipped
    ]


def _line(key: Key, observed: float, calls: float, predicted: Predicted, layout: Layout) -> Line:
    expected = predicted.bytes.get(key)
    causes = predicted.named.get(key, {})
    named = sum(causes.values())
    said = "; ".join(f"{abs(sent):,.0f} B {'less' if sent < 0 else 'more'}: {cause}" for cause, sent in causes.items())
    # Each call's bytes are cut to whole ones.
    if abs(observed - named - (expected or 0.0)) <= max(calls, 1.0):
        origin = predicted.said.get(key, "")
        return Line(key, expected, observed, named, "explained" if causes else "match", said or origin)
    if key[0] == "control":
        return Line(key, expected, observed, named, "explained", CONTROL)
    cause = _cause(key, expected or 0.0, observed - named, layout) or predicted.padding(key, observed - named)
    if cause:
        return Line(key, expected, observed, named, "explained", "; ".join(part for part in (cause, said) if part))
    verdict = "extra" if not expected else "missing" if not observed else "differs"
    return Line(key, expected, observed, named, verdict, said)


def _cause(key: Key, expected: float, observed: float, layout: Layout) -> str | None:
    """A named reason for a whole ratio between the two."""
    m = layout.microbatches or 1
    if not expected or not observed:
        return None
    if key == ("tp", "all_gather") and 2 * observed == 3 * expected:
        return "backward gathers the inputs of column-parallel linears again, for their weight gradients"
    if key == ("tp", "all_reduce") and layout.sequence_parallel and not observed % expected:
        # A DTensor gradient that is still partial is reduced wherever the optimizer uses it.
        return f"gradients of weights that every tp rank holds are reduced {observed / expected:g} times"
    if key[0] == "dp" and m > 1 and observed == m * expected:
        return f"in each of {m} microbatches instead of once per step"
    if key == ("dp", "all_gather") and 2 * observed == expected:
        return "parameters stay gathered between forward and backward"
    return None


def _document(
    predicted: Predicted,
    lines: Sequence[Line],
    model: ModelSpec | None,
    layout: Layout,
    links: Mapping[Key, str | None],
    exposure: Exposure | None,
) -> LedgerDoc:
    guess = layout.model
    notes = [*guess.sources] if model is None else []
    notes += predicted.notes
    notes += [f"{dim} is not compared: {reason}" for dim, reason in predicted.skipped.items()]
    return LedgerDoc(
        profile=predicted.profile,
        model=ModelDoc(
            name=model.name if model else None,
            layers=model.layers if model else guess.layers,
            hidden=model.hidden if model else guess.hidden,
            tokens_per_microbatch=tokens_of_microbatch(model, layout) if model else guess.tokens_per_microbatch,
            parameters_per_rank=guess.parameters_per_rank,
            source="given" if model else "inferred",
            notes=notes,
        ),
        rows=[_row(line, links.get(line.key)) for line in lines],
        residual_bytes=round(sum(line.unexplained for line in lines)),
        exposure=list(_exposures(predicted, exposure)),
    )


def _row(line: Line, link: str | None) -> LedgerRow:
    expected = None if line.predicted is None else round(line.predicted)
    return LedgerRow(
        dim=line.key[0],
        primitive=line.key[1],
        link=link,
        predicted_bytes=expected,
        observed_bytes=round(line.observed),
        ratio=round(line.observed / line.predicted, 6) if line.predicted else None,
        verdict=line.verdict,
        explanation=line.explanation,
    )


def _exposures(predicted: Predicted, exposure: Exposure | None) -> Iterable[LedgerExposure]:
    """What compute could hide against what it did hide; more than half decides."""
    for dim, can_hide in predicted.overlap.items():
        time = exposure.by_dimension.get(dim) if exposure else None
        if time is None or not time.busy_us:
            continue
        share = time.exposed_us / time.busy_us
        verdict = "as_predicted"
        if can_hide == "yes" and share > 0.5:
            verdict = "more_exposed"
        elif can_hide == "no" and share < 0.5:
            verdict = "better_hidden"
        yield LedgerExposure(dim=dim, predicted=can_hide, observed_exposed_fraction=round(share, 6), verdict=verdict)
