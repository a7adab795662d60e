"""What several sources of one job say together: contradictions, and calls that had not finished."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from analyzer.findings.base import Facts, finding
from analyzer.model import Finding
from heuristics.links import link_type

if TYPE_CHECKING:
    from heuristics.hang import Divergence

_TITLES = {
    "rank": "sources disagree about who is which rank",
    "host": "sources disagree about where a rank runs",
    "world_size": "sources disagree about the number of ranks",
    "group": "sources disagree about who is in a process group",
    "communicator": "sources disagree about the size of a communicator",
    "calls": "sources disagree about the calls of a rank",
}
_SHOWN = 3


def contradictions(facts: Facts) -> Iterator[Finding]:
    """Where traces, logs, dumps and profilers of the job contradict each other."""
    if facts.sources is None:
        return
    for conflict in facts.sources.conflicts:
        yield finding(
            f"sources.{conflict.about}",
            "warning",
            _TITLES[conflict.about],
            f"{conflict.sentence}. What the traces say was kept.",
            ranks=conflict.ranks,
            action="Look whether files of another run lie among them, and give those of one job.",
        )
    other = {
        (kind, by_name)
        for rank in facts.ranks
        for link, kind in rank.links_of_group
        if (by_name := link_type(link, [str(d.get("name", "")) for d in rank.source.devices])) not in (None, kind)
        and kind is not None
    }
    for logged, by_name in sorted(other, key=str):
        yield finding(
            "sources.link",
            "warning",
            "the log and the GPU's name disagree about the wire",
            f"The log shows {logged} between GPUs of a host whose product is connected by {by_name}.",
            action="Look whether a faster path is switched off (NCCL_P2P_DISABLE, a container without peer access).",
        )


def alone(facts: Facts) -> Iterator[Finding]:
    """What logs, dumps and lists of calls tell where no trace is given, and what would add to it."""
    for kind in facts.alone:
        tells, add = kind.alone
        yield finding("sources.alone", "info", f"no trace beside the {kind.title}", tells, action=add)


def unfinished(facts: Facts) -> Iterator[Finding]:
    """Calls that Flight Recorder dumps show as issued and not finished, and for whom they wait."""
    report = facts.sources.hang if facts.sources is not None else None
    if report is None or not (report.suspects or report.deadlock or any(d.waiting for d in report.divergences)):
        return
    ranks = [suspect.rank for suspect in report.suspects] or list(report.deadlock)
    stuck = [divergence for divergence in report.divergences if divergence.waiting or divergence.missing]
    more = f" and {len(stuck) - _SHOWN} more groups" if len(stuck) > _SHOWN else ""
    said = "; ".join(_sentence(divergence) for divergence in stuck[:_SHOWN])
    yield finding(
        "calls.unfinished",
        "error",
        f"the job was stuck: {report.verdict}",
        f"{said}{more}" if said else "",
        ranks=ranks,
        action="Run `analyze hang` on the dumps: it shows every group, and where in the code its ranks are.",
    )


def _sentence(divergence: Divergence) -> str:
    label = divergence.desc or f"group {divergence.group}"
    parts = [
        f"{what} {_ranks(ranks)}"
        for what, ranks in (
            ("waiting", divergence.waiting),
            ("not there", divergence.missing),
            ("finished on", divergence.finished),
        )
        if ranks
    ]
    step = "" if divergence.step is None else f" (step {divergence.step}, call {divergence.call_in_step} of it)"
    return f"{divergence.op} #{divergence.seq} of {label}{step}: {', '.join(parts)}"


def _ranks(ranks: Sequence[int]) -> str:
    shown = ", ".join(map(str, ranks[:8]))
    return f"{shown} and {len(ranks) - 8} more" if len(ranks) > 8 else shown
