"""Results as text: Markdown for the documents, aligned columns for a terminal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from benchmarks.scoring import tables
from benchmarks.scoring.ablation import WITHOUT
from benchmarks.scoring.answers import DEGREES
from benchmarks.scoring.cases import degrees_text
from benchmarks.scoring.run import GIVEN, Result
from benchmarks.scoring.tables import Table

SOURCES = {
    "bundled": "captured jobs in this repository (`sample_traces/`): real programs on gloo",
    "captured": "more captured jobs of the same kind, not part of the repository",
    "ablated": "both kinds of captures, without names and without what some writers leave out",
    "published": "real GPU traces from public repositories whose layout is stated or follows from their contents",
    "generated": "simulated jobs (`benchmarks/synthesis/`): NCCL-style traces at four metadata levels",
    "layouts": "simulated jobs of published configurations (MLPerf Training, Megatron-Bridge), a few ranks of each",
}


def markdown(table: Table) -> str:
    """A Markdown table."""
    lines = ["| " + " | ".join(table.head) + " |", "|" + "---|" * len(table.head)]
    lines += ["| " + " | ".join(str(v) for v in row) + " |" for row in table.rows]
    return "\n".join(lines)


def aligned(table: Table) -> str:
    """Columns padded with spaces."""
    rows = [[str(v) for v in row] for row in (table.head, *table.rows)]
    widths = [max(len(row[i]) for row in rows) for i in range(len(table.head))]
    return "\n".join("  ".join(v.ljust(w) for v, w in zip(row, widths, strict=True)).rstrip() for row in rows)


def outcome(result: Result) -> str:
    """One answer in a few words."""
    if result.wrong:
        said = ", ".join(f"{field} {result.answer.fields[field]}" for field in result.wrong)
        return f"**wrong**: {said} ({result.answer.confidence:.2f})"
    return f"null: {', '.join(result.null)}" if result.null else "right"


def inferred(result: Result) -> str:
    """The degrees answered that are not 1."""
    fields = result.answer.fields
    parts = [f"{dim}{'?' if fields[dim] is None else fields[dim]}" for dim in DEGREES if fields[dim] != 1]
    zero = fields["zero"]
    return " ".join([*parts, *([f"zero{'?' if zero is None else zero}"] if zero != 0 else [])]) or "1"


def cases(results: Sequence[Result]) -> Table:
    """One row per answer from all ranks: truth, inferred, verdict."""
    rows = [
        (r.name, GIVEN[r.given], degrees_text(r.truth), inferred(r), f"{r.answer.confidence:.2f}", outcome(r))
        for r in results
        if r.ranks == "all"
    ]
    return Table(("case", "given", "truth", "inferred", "confidence", "verdict"), rows)


def by_level(results: Sequence[Result], levels: Sequence[str] = "abcd") -> Table:
    """One row per job: the verdict for each thing that was given, from all ranks."""
    rows = []
    whole = [r for r in results if r.ranks == "all"]
    for (_, name), some in tables.groups(whole, lambda r: (r.family, r.name)).items():
        at = {r.given: outcome(r) for r in some}
        rows.append((name, degrees_text(some[0].truth), *(at.get(level, "") for level in levels)))
    return Table(("job", "truth", *(GIVEN[level] for level in levels)), rows)


def _share(every: int) -> str:
    return f" Of the simulated jobs, every {every}th was measured." if every > 1 else ""


def excerpt(results: Sequence[Result], every: int = 1) -> str:
    """What the README shows."""
    return "\n\n".join(
        [
            markdown(tables.summary([r for r in results if r.ranks == "all"])),
            "*Exact layout*: TP, CP, PP, DP and EP all right. What is neither right nor wrong is `null`. Sources: "
            + "; ".join(f"{name}: {text}" for name, text in SOURCES.items() if any(r.source == name for r in results))
            + f".{_share(every)} Full metadata, against what people do by hand:",
            markdown(tables.by_hand(results)),
            "Single ranks, confusion matrices, reliability and every case: [docs/accuracy.md](docs/accuracy.md).",
        ]
    )


def document(results: Sequence[Result], every: int = 1) -> str:
    """The whole of docs/accuracy.md."""
    return "\n\n".join(_parts(results, every)) + "\n"


def _parts(results: Sequence[Result], every: int) -> Iterator[str]:
    yield "# How often the inferred layout is right"
    yield (
        "Written by `python -m benchmarks.accuracy --write`. Every answer is right, `null` or wrong; truths come from "
        "the programs that made the traces. Where two ZeRO stages have the same traffic, either is right."
        + _share(every)
    )
    yield "\n".join(f"* **{name}**: {text}" for name, text in SOURCES.items() if any(r.source == name for r in results))
    yield "## Totals"
    yield markdown(tables.summary(results))
    yield "## Against what people do by hand"
    yield (
        "*Kernel names only*: all-reduce is DDP, all-gather with reduce-scatter is FSDP, send-receive is a pipeline. "
        "*Group size only*: groups within a node are TP, larger ones DP, send-receive groups PP, all-to-all groups EP."
    )
    yield markdown(tables.against_baselines(results))
    yield "## Confusion, dimension by dimension"
    for (source, given), some in tables.groups(results, lambda r: (r.source, r.given)).items():
        yield f"### {source}, {GIVEN[given]}"
        yield markdown(tables.confusion(some))
        yield markdown(tables.stages(some))
    yield "## Reliability"
    yield "How often what is stated with some confidence is right; all sources, levels, and numbers of ranks."
    yield markdown(tables.reliability(results))
    for source in ("bundled", "captured", "published"):
        some = [r for r in results if r.source == source]
        if some:
            yield f"## Cases: {source}"
            yield markdown(cases(some))
    for source, levels in (("ablated", tuple(WITHOUT)), ("generated", "abcd"), ("layouts", "abcd")):
        some = [r for r in results if r.source == source]
        if some:
            yield f"## Cases: {source}"
            yield markdown(by_level(some, levels))
