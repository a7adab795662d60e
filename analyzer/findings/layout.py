"""What the inferred layout means for a person: declared and observed, open questions, where its traffic goes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from analyzer.findings.base import Facts, finding
from analyzer.model import Finding
from heuristics.verdict import DIMENSIONS


def layout_verdict(facts: Facts) -> Iterator[Finding]:
    """The declared layout against the observed one, and what stays open."""
    layout = facts.layout
    if facts.declared:
        wrong = [
            (dim, degree, getattr(layout, dim))
            for dim, degree in facts.declared.items()
            if getattr(layout, dim) not in (None, degree)
        ]
        open_ones = [dim for dim in facts.declared if getattr(layout, dim) is None]
        if wrong:
            yield finding(
                "layout.declared_differs",
                "error",
                "the declared layout is not what the trace shows",
                "; ".join(f"{dim} declared {said}, observed {seen}" for dim, said, seen in wrong),
                action="Compare the launch command with the groups and the evidence under Layout.",
            )
        elif not open_ones:
            yield finding(
                "layout.declared_holds", "info", "the declared layout is what the trace shows", "", action="Nothing."
            )
        else:
            yield finding(
                "layout.declared_unverified",
                "info",
                f"the declared layout could not be verified for {', '.join(open_ones)}",
                "These traces do not decide it.",
                action="Give the traces of more ranks.",
            )
    undecided = [dim for dim in DIMENSIONS if getattr(layout, dim) is None]
    if undecided and facts.rows:
        verdicts = [layout.dimensions[dim] for dim in undecided if dim in layout.dimensions]
        reasons = [sentence for verdict in verdicts for sentence in verdict.against]
        if not reasons and len(verdicts) > 1 and all(verdict == verdicts[0] for verdict in verdicts):
            reasons = verdicts[0].evidence  # one reason for all of them
        yield finding(
            "layout.undecided",
            "info",
            f"{', '.join(undecided)} not determined",
            "; ".join(dict.fromkeys(reasons)) or "The traffic fits more than one layout.",
            action="Give the traces of more ranks, or the layout you believe in with --layout to have it verified.",
        )


def links(facts: Facts) -> Iterator[Finding]:
    """Tensor parallelism that leaves the host."""
    crossing = [r for r in facts.rows if r.dim == "tp" and r.link in ("inter_node", "mixed")]
    if crossing:
        yield finding(
            "tp.crosses_nodes",
            "warning",
            "tensor parallelism crosses hosts",
            "Its collectives are on the critical path of every layer and leave the fast links inside a host.",
            dim="tp",
            cost=sum(r.exposed_us_per_step or 0 for r in crossing),
            action="Keep tp within the GPUs of one host.",
        )


def regather(facts: Facts) -> Iterator[Finding]:
    """Column-parallel layers gather their input again in backward (Korthikanti et al. 2022, section 4.2.2)."""
    if not facts.layout.sequence_parallel:
        return
    calls: dict[str, float] = defaultdict(float)
    exposed = 0.0
    for row in facts.rows:
        if row.dim == "tp" and row.primitive in ("all_gather", "reduce_scatter"):
            calls[row.primitive] += row.calls_per_step
            exposed += (row.exposed_us_per_step or 0.0) if row.primitive == "all_gather" else 0.0
    gathers, scatters = calls["all_gather"], calls["reduce_scatter"]
    if scatters and gathers == 1.5 * scatters:
        yield finding(
            "tp.regather",
            "info",
            "sequence-parallel inputs are gathered again in backward",
            f"{gathers:g} all-gathers for {scatters:g} reduce-scatters: the weight gradient of column-parallel layers "
            "needs the whole input, which was not kept. It saves memory and costs a third of the all-gathers.",
            dim="tp",
            cost=exposed / 3,
            action="Nothing, unless activations fit without it: it is the price of sequence parallelism.",
        )
