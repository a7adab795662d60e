"""What is missing from the input, impossible in it, or not recognised."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from analyzer.findings.base import Facts, finding
from analyzer.model import Finding
from analyzer.words import plural
from parsers.tables import TWO_WRITERS


def incomplete(facts: Facts) -> Iterator[Finding]:
    """Ranks, files and steps that are not there."""
    trust = facts.trust
    if trust.ranks_missing:
        yield _missing(facts)
    if trust.ranks_duplicated:
        yield finding(
            "ranks.duplicated",
            "warning",
            "some ranks are there more than once",
            "Only the first of each is used: files of another run may have stayed in the directory, or several "
            "processes of one file call themselves the same rank.",
            ranks=trust.ranks_duplicated,
            action="Give the files of one run.",
        )
    for rank in facts.ranks:
        trace = rank.source
        if any(note.startswith(TWO_WRITERS) for note in trace.health.notes):
            yield finding(
                "trace.two_writers",
                "error",
                "two writers in one file",
                f"{trace.path} holds pieces of two traces: two processes wrote to the same path.",
                ranks=[] if rank.source.rank is None else [rank.source.rank],
                action="Give every rank a file of its own, such as one with the rank in its name.",
            )
        elif not trace.health.complete:
            lost = "" if trace.on_gpu else " No GPU event is left: only what the CPU side says is analysed."
            yield finding(
                "trace.cut",
                "error" if not trace.on_gpu else "warning",
                "a trace is cut off",
                f"{trace.path} ends before its time.{lost}",
                ranks=[] if rank.source.rank is None else [rank.source.rank],
                action="Write it again, and let the profiler stop before the process ends.",
            )
    if trust.steps.source == "none" and facts.rows and not facts.alone:
        yield finding(
            "steps.none",
            "info",
            "the traces have no steps",
            "Every per-step figure is for the whole trace.",
            action="Call profiler.step() after each iteration.",
        )


def _missing(facts: Facts) -> Finding:
    """Ranks of the job of which nothing was given."""
    missing, traces = facts.trust.ranks_missing, not facts.alone
    lost = "waiting in collectives with them, and their own figures" if traces else "their calls, hosts and connections"
    return finding(
        "ranks.missing",
        "info" if len(facts.ranks) == 1 else "warning",
        f"{len(missing):,} of {plural(facts.world_size or 0, 'rank')} {'have no trace' if traces else 'are not there'}",
        f"What only they could show is left out: {lost}.",
        ranks=missing,
        action="Trace every rank in the same steps, or at least one of each pipeline stage."
        if traces
        else "Give the files of all ranks.",
    )


def impossible(facts: Facts) -> Iterator[Finding]:
    """Events whose times cannot be."""
    trust = facts.trust
    if trust.events_quarantined:
        yield finding(
            "events.impossible",
            "warning",
            f"{plural(trust.events_quarantined, 'event')} with impossible times",
            "They were set aside: negative or absurd durations, or times outside the capture.",
            action="Compare with a second capture; newer versions of the profiler (CUPTI) write fewer of them.",
        )
    if trust.events_clipped:
        yield finding(
            "events.clipped",
            "warning",
            f"{plural(trust.events_clipped, 'GPU event')} with an impossible duration",
            "A stream runs its work in order and these outlast what came after; they were cut where the next began.",
            action="Compare with a second capture; newer versions of the profiler (CUPTI) write fewer of them.",
        )


def _silent(facts: Facts) -> Finding:
    """Traces without any communication; a GPU that was recorded cannot be the reason."""
    world = "" if facts.world_size is None else f" in a job of {facts.world_size} ranks"
    table = "kernels of a library this tool does not know can be named with --kernel-table."
    if any(rank.source.on_gpu for rank in facts.ranks):
        said = "GPU work was recorded, and no kernel of it is of a communication library."
        action = f"Record a window in which ranks communicate; {table}"
    else:
        said = "No kernel, operator or annotation of a communication library was found. Was the GPU profiled?"
        of_nsys = all(rank.source.format == "nsys" for rank in facts.ranks)
        how = "nsys profile --trace=cuda,nvtx" if of_nsys else "ProfilerActivity.CUDA"
        action = f"Record the GPU ({how}); {table}"
    severity = "warning" if facts.world_size else "info"
    return finding("comm.none", severity, f"no communication{world}", said, action=action)


def communication(facts: Facts) -> Iterator[Finding]:
    """No communication, unknown communication, names that contradict operations."""
    if not facts.rows:
        if facts.world_size == 1:
            yield finding(
                "comm.world_of_one",
                "info",
                "one rank, no communication",
                "The job has a world size of 1.",
                action="Trace a job of several ranks.",
            )
        elif not facts.alone:
            yield _silent(facts)
    share = facts.trust.comm_time_classified
    if share is not None and share < 1:
        names = sorted({n for r in facts.ranks for n, _ in r.source.stats.unclassified_names})
        yield finding(
            "comm.unclassified",
            "warning",
            f"{(1 - share) * 100:.1f} % of communication time is of unknown kind",
            f"Kernels: {', '.join(names[:5])}.",
            cost=(1 - share) * sum(row.time_us_per_step or 0 for row in facts.rows) / share if share else None,
            action="Name them with --kernel-table.",
        )
    clashes: dict[str, int] = defaultdict(int)
    for rank in facts.ranks:
        for what, count in rank.source.stats.conflicts:
            clashes[what] += count
    if clashes:
        said = "; ".join(
            f"{what} ({plural(count, 'call')})" for what, count in sorted(clashes.items(), key=lambda i: -i[1])
        )
        yield finding(
            "comm.name_conflict",
            "info",
            f"kernel names contradict the operation in {plural(sum(clashes.values()), 'call')}",
            f"{said}. The operation is believed: NCCL names a kernel after the variant it was compiled for.",
            cost=0.0,
            action="Nothing: take operations, not kernel names, when comparing with other tools.",
        )
