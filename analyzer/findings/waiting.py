"""Who waits for whom, and what cannot be known about it."""

from __future__ import annotations

from collections.abc import Iterator

from analyzer.findings.base import NOISE, Facts, finding
from analyzer.model import Finding
from analyzer.reporters.format import time
from analyzer.stragglers import late_steps
from analyzer.words import plural


def late_ranks(facts: Facts) -> Iterator[Finding]:
    """Ranks that the others wait for."""
    if facts.timing is None:
        return
    for late in facts.timing.late:
        why = f"Cause: {late.cause}." if late.cause else "No single cause explains it."
        yield finding(
            "rank.late",
            "warning",
            f"the others wait for rank {late.rank}",
            f"It arrives {late.late_us_per_step:,.0f} µs later than the others, {late_steps(late)}, and causes "
            f"{late.share_of_waits * 100:.0f} % of all waiting (last in {late.last[0]} of {late.last[1]} collectives). "
            f"{why}",
            ranks=[late.rank],
            cost=late.late_us_per_step,
            action=_to_do(late.cause),
        )


def slowdown(facts: Facts) -> Iterator[Finding]:
    """How much faster the job would be if every rank did the same."""
    found = facts.slowdown
    if found is None or found.replayed_us - found.ideal_us < NOISE * found.replayed_us:
        return
    yield finding(
        "job.slowdown",
        "warning",
        f"stragglers make the job {found.ratio:.3f} times slower",
        f"Replayed with its measured durations a step takes {time(found.replayed_us)}, with every kind of operation "
        f"taking the same {time(found.ideal_us)}.",
        cost=found.replayed_us - found.ideal_us,
        action="Even out the stages (layers, loss and embedding) and the sequences of the replicas.",
    )


def slow_link(facts: Facts) -> Iterator[Finding]:
    """Ranks in which all slow groups meet."""
    link = None if facts.timing is None else facts.timing.link
    if link is not None:
        yield finding(
            "link.slow",
            "warning",
            f"transfers are slow wherever {plural(len(link.ranks), 'rank')} take part",
            "All groups that are slower than their equals have these ranks in common, and no other group has.",
            ranks=link.ranks,
            cost=link.lost_us_per_step,
            action="Look at their links (nvidia-smi nvlink -s, ibstat, cabling), or move the job off these hosts.",
        )


def disagreements(facts: Facts) -> Iterator[Finding]:
    """Collectives on which the ranks do not agree."""
    for item in () if facts.timing is None else facts.timing.differences:
        yield finding(
            f"comm.{item.state.lower()}",
            "warning",
            f"ranks do not agree on {plural(item.count, 'collective')} ({item.state})",
            f"{item.detail[0].upper()}{item.detail[1:]}.",
            ranks=item.ranks,
            action="Compare the code paths of these ranks; a job whose ranks disagree hangs or computes nonsense.",
        )


def unknown_waiting(facts: Facts) -> Iterator[Finding]:
    """How much waiting there was at least, where it could not be measured."""
    timing, exposure = facts.timing, facts.exposure
    if timing is None or exposure is None or not timing.bound:
        return
    least = sum(timing.bound.values())
    if least >= NOISE * exposure.step_us:
        why = f"{timing.refused[0].upper()}{timing.refused[1:]}. " if timing.refused else ""
        by_dim = ", ".join(f"{dim} {us:,.0f} µs" for dim, us in sorted(timing.bound.items(), key=lambda i: -i[1]) if us)
        yield finding(
            "wait.bound",
            "info",
            f"at least {least:,.0f} µs per step of communication is waiting",
            f"{why}Calls of one kind and payload transfer the same, so what they take longer than the shortest of them "
            f"is waiting ({by_dim}). This is a lower bound: the shortest may have waited too.",
            cost=least,
            action="Give the traces of all ranks: then waiting is measured, and the late rank named.",
        )


def link_speeds(facts: Facts) -> Iterator[Finding]:
    """What the job's own transfers say about its links."""
    for fit in () if facts.timing is None else facts.timing.fits:
        wire = f" ({fit.link})" if fit.link else ""
        yield finding(
            "link.speed",
            "info",
            f"{fit.dim} {fit.primitive} over {fit.group_size} ranks{wire}: {fit.latency_us:,.1f} µs + bytes / "
            f"{fit.busbw_gbps:,.1f} GB/s",
            f"Fitted to {fit.count} transfers without their waiting; half are within {fit.error * 100:.0f} % of it.",
            dim=fit.dim,
            cost=0.0,
            action="Compare with nccl-tests on these ranks, or give the speeds you expect with --cluster.",
        )


_TO_DO = {
    "device sync": "Remove the synchronisation from the step, or do it on all ranks at once and less often.",
    "data loading": "More loader workers, prefetching, or local data on this rank.",
    "garbage collection": "Collect on all ranks in the same step (gc.disable, gc.collect every n steps).",
    "slower compute": "Compare clocks, temperature and other jobs of this GPU with the others; swap it if slow.",
    "host gap before launch": "Look at this rank's CPU: other processes, NUMA placement, Python between launches.",
    "expert imbalance": "Balance the router (auxiliary loss, bias), or lower the capacity factor.",
    "longer sequences": "Pack or sort sequences so that every rank gets the same number of tokens.",
    "slow link": "Look at the links of this rank (nvidia-smi nvlink -s, ibstat, cabling).",
}


def _to_do(cause: str | None) -> str:
    """What to do about a late rank."""
    known = None if cause is None else _TO_DO.get(cause.split(":")[0])
    return known or "Compare this rank's trace with another's over the time before these collectives."
