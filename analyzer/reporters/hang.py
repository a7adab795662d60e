"""The hang report as sections."""

from __future__ import annotations

from collections.abc import Sequence

from analyzer.reporters.blocks import Cell, Column, Facts, Item, Section, Table, Tone
from heuristics.hang import Divergence, HangReport

_STATES = {
    "FULLY_MATCHED": Tone.PLAIN,
    "UNDECIDED": Tone.QUIET,
    "COLLECTIVE_STATE_MISMATCH": Tone.DOUBT,
}
_FRAMES = 6
_RANKS = 8


def hang_sections(report: HangReport) -> list[Section]:
    """Verdict, suspects, groups out of step, groups held up, messages, and stacks."""
    out = [d for d in report.divergences if not d.held]
    held = [d for d in report.divergences if d.held]
    parts = [
        Section("Hang", report.verdict, [Facts(_facts(report))]),
        _suspects(report),
        _groups("Out of step", "the first collective of each group on which its ranks differ", out),
        _groups("Held up", "groups whose ranks are all in the same call", held),
        _stacks(out),
    ]
    return [part for part in parts if part is not None]


def _facts(report: HangReport) -> list[tuple[str, str]]:
    rows = [("dumps", f"{len(report.ranks)} ranks: {_ranks(report.ranks)}")]
    if report.absent:
        rows.append(("no dump", _ranks(report.absent)))
    if report.deadlock:
        rows.append(("deadlock", f"ranks {_ranks(report.deadlock)} wait for each other"))
    lost = [m for m in report.messages if m.matched is False and m.peer is not None]
    if lost:
        first = lost[0]
        more = f", and {len(lost) - 1} more" if len(lost) > 1 else ""
        said = f"rank {first.rank} is in {first.op} #{first.seq} with rank {first.peer}, which has not posted its side"
        rows.append(("messages", said + more))
    return rows


def _suspects(report: HangReport) -> Section | None:
    if not report.suspects:
        return None
    rows: list[Sequence[str | Cell]] = [
        [Cell(str(s.rank), Tone.BAD), s.reason, _ranks(s.waited_for_by)] for s in report.suspects
    ]
    columns = [Column("rank", right=True), Column("why"), Column("waited for by", spare=1)]
    return Section("Look at", "ranks that others wait for and that wait for nobody", [Table(columns, rows)])


def _groups(title: str, lead: str, found: Sequence[Divergence]) -> Section | None:
    if not found:
        return None
    columns = [
        Column("group"),
        Column("ranks"),
        Column("call"),
        Column("match", spare=2),
        Column("waiting"),
        Column("done", spare=1),
        Column("missing"),
    ]
    rows: list[Sequence[str | Cell]] = [
        [
            d.desc or d.group,
            _ranks(d.ranks or ()),
            f"{d.op} #{d.seq:,}",
            Cell(d.state.lower(), _STATES.get(d.state, Tone.BAD)),
            _ranks(d.waiting),
            _ranks(d.finished),
            Cell(_ranks((*d.missing, *d.unknown)), Tone.BAD if d.missing else Tone.PLAIN),
        ]
        for d in found
    ]
    details = [Item([d.desc or d.group], sentence) for d in found for sentence in (*_expected(d), *d.details)]
    return Section(title, lead, [Table(columns, rows), *details])


def _expected(d: Divergence) -> list[str]:
    """Where in the run a call is, by the number of calls that a step has."""
    if d.calls_per_step is None:
        return []
    where = f"#{d.seq:,} is call {d.call_in_step} of step {d.step}, counted from the group's first call"
    return [f"{d.calls_per_step:,} collectives a step are expected: {where}"]


def _stacks(found: Sequence[Divergence]) -> Section | None:
    items = []
    for d in found:
        for ranks, stack in (*d.stacks[:2], *d.missing_stacks[:2]):
            frames = stack.splitlines()
            shown = " < ".join(frames[:_FRAMES]) + (" < ..." if len(frames) > _FRAMES else "")
            late = all(rank in d.missing for rank in ranks)
            what = "not there; last call" if late else f"in {d.op} #{d.seq:,}"
            items.append(Item([f"{d.desc or d.group}: ranks {_ranks(ranks)} {what}"], shown))
    return Section("Where in the code", "innermost frame first", items) if items else None


def _ranks(ranks: Sequence[int]) -> str:
    """Ranks for a cell; runs as ranges, the first few of many."""
    runs: list[list[int]] = []
    for rank in sorted(set(ranks)):
        if runs and rank == runs[-1][1] + 1:
            runs[-1][1] = rank
        else:
            runs.append([rank, rank])
    said = [str(a) if a == b else f"{a}-{b}" if b > a + 1 else f"{a}, {b}" for a, b in runs]
    return ", ".join(said[:_RANKS]) + (f" and {len(said) - _RANKS} more" if len(said) > _RANKS else "")
