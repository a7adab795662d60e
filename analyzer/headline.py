"""An analysis in one sentence, and what it does not know."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from analyzer.model import Analysis, Finding
from analyzer.words import plural

MATTERS = 0.05
"""Share of the step from which exposed communication is what the sentence is about."""


@dataclass(frozen=True)
class Headline:
    """What to say first.

    Attributes:
        sentence: the verdict.
        unknown: what this input does not decide, a few words each.
    """

    sentence: str
    unknown: tuple[str, ...]


def headline(analysis: Analysis) -> Headline:
    """The verdict: layout with its confidence, where the step goes, what costs most."""
    parts = [_layout(analysis), *_time(analysis)]
    first = _first(analysis)
    if first is not None and first.cost_us is not None:
        parts.append(f"most costly finding: {first.title} ({_time_said(first.cost_us)} per step)")
    return Headline("; ".join(parts) + ".", tuple(_unknown(analysis)))


def degrees(analysis: Analysis) -> str:
    """Dimensions of degree above one (or unknown): ``tp2 pp? dp2``; ``no parallelism`` without any."""
    found = [(name, getattr(analysis.layout, name)) for name in analysis.layout.dimensions]
    said = [f"{name}{'?' if degree is None else degree}" for name, degree in found if degree is None or degree > 1]
    return " ".join(said) or "no parallelism"


def _layout(analysis: Analysis) -> str:
    ranks = "a job of unknown size" if analysis.world_size is None else plural(analysis.world_size, "rank")
    return f"Layout {degrees(analysis)} on {ranks} (confidence {analysis.layout.confidence:.2f})"


def _time(analysis: Analysis) -> Iterator[str]:
    exposure = analysis.exposure
    if exposure is None or not exposure.step_us:
        yield "no time was recorded"
        return
    what = "step" if analysis.trust.steps.complete else "trace"
    length = _time_said(exposure.step_us)
    share = exposure.exposed_us / exposure.step_us
    dims = sorted(exposure.by_dimension.items(), key=lambda item: -item[1].exposed_us)
    if not analysis.collectives:
        yield f"no communication in a {what} of {length}"
    elif share < MATTERS:
        yield f"communication is hidden: {share * 100:.1f} % of the {length} {what} is exposed"
    else:
        most, time = dims[0]
        of_it = round(time.exposed_us / exposure.exposed_us, 6)
        part = "all of it" if of_it == 1 else "nearly all of it" if of_it > 0.99 else f"{of_it * 100:.0f} % of that"
        named = f", {part} {most}"
        shown = f"{share * 100:.1f}".removesuffix(".0")
        yield f"{shown} % of the {length} {what} is exposed communication{named}"
    idle = exposure.idle_us / exposure.step_us
    if idle > share and idle >= MATTERS:
        yield f"the ranks idle for {idle * 100:.1f} % of it"


def _first(analysis: Analysis) -> Finding | None:
    """The finding that costs most among those that ask for something to be done."""
    found = [f for f in analysis.findings if f.severity != "info" and f.cost_us]
    return max(found, key=lambda f: f.cost_us or 0.0, default=None)


def _unknown(analysis: Analysis) -> Iterator[str]:
    trust, layout = analysis.trust, analysis.layout
    for name in layout.dimensions:
        if getattr(layout, name) is None:
            yield f"the degree of {name}"
    if analysis.world_size is None:
        yield "the number of ranks"
    if trust.ranks_missing:
        yield f"what {plural(len(trust.ranks_missing), 'rank')} without a trace did"
    if trust.steps.source == "none":
        yield "where steps begin"
    if not analysis.collectives:
        return
    if not trust.clock.aligned:
        yield "how much of the communication is waiting"
    if trust.comm_calls_with_bytes is not None and trust.comm_calls_with_bytes < 1:
        yield f"the bytes of {(1 - trust.comm_calls_with_bytes) * 100:.3g} % of the calls"
    if analysis.ledger is None:
        yield "whether the bytes are those of the ledger"
    if analysis.gpus_per_node is None and (analysis.world_size or 2) > 1:
        yield "which ranks share a node"


def _time_said(us: float) -> str:
    """With its unit, in three or four digits."""
    for scale, name in ((1e6, "s"), (1e3, "ms")):
        if us >= scale:
            return f"{us / scale:.4g} {name}"
    return f"{us:.3g} µs"
