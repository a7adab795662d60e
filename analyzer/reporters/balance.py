"""How evenly the experts are loaded: the section of a report."""

from __future__ import annotations

from analyzer.model import Experts
from analyzer.reporters.blocks import Column, Facts, Section, Table

SHOWN = 8
"""Layers with a row of their own, the most uneven ones; the document has all."""


def experts_section(experts: Experts | None) -> Section | None:
    """Imbalance over all dispatches, then of the most uneven layers; None where no experts were seen."""
    if experts is None:
        return None
    whole = experts.imbalance
    parts: list[Facts | Table] = [Facts([("imbalance", f"mean {whole.mean:.3f}, max {whole.max:.3f} over dispatches")])]
    worst = sorted(experts.by_layer, key=lambda layer: (-layer.imbalance, layer.layer))[:SHOWN]
    if len(experts.by_layer) > 1:
        rows = [[str(one.layer), f"{one.imbalance:.3f}"] for one in worst]
        parts.append(Table([Column("layer", right=True), Column("imbalance", right=True)], rows))
    left = len(experts.by_layer) > len(worst)
    more = f"; the {SHOWN} most uneven of {len(experts.by_layer)} layers" if left else ""
    return Section("Experts", f"largest load of a rank over the mean load{more}", parts)
