"""`Flow`: one kind of call a rank makes in a step, before it is turned into bytes."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from ledger.stages import Number, Stage


@dataclass(frozen=True, kw_only=True)
class Flow:
    """Calls of one kind in one step.

    Attributes:
        dim: tp | cp | pp | dp | ep | control.
        part: what travels: ``layer activations``, ``embedding``, ``gradients``, ...
        group: a group of `ledger.mesh.group_axes`.
        calls: per step.
        elements: S of one call (`ledger.collectives.collective_bytes`); where sizes differ, their mean.
        dtype: normalised name.
        overlap: ``yes`` | ``partial`` | ``no``: can compute hide it.
        formula: calls and elements in symbols.
        source: the paper or framework file the formula comes from.
        bucketed: the framework may cut the payload into more calls; bytes are exact, calls the least number.
        whole_payload: one peer gets everything (a one-hot all-to-all), so that the payload is what is sent.
        noise: small and latency-bound; kept apart from the payload.
    """

    dim: str
    part: str
    primitive: str
    phase: str
    group: str
    calls: Number
    elements: Number
    dtype: str
    overlap: str
    formula: str
    source: str
    bucketed: bool = False
    whole_payload: bool = False
    noise: bool = False


Rule = Callable[[Stage], Iterable[Flow]]
"""A stage's calls of some kind."""
