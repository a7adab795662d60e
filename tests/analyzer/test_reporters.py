from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from analyzer.model import Analysis, ExpertLayer, Experts, Imbalance
from analyzer.pipeline import analyze
from analyzer.reporters import format as fmt
from analyzer.reporters.blocks import Cell, Column, Facts, Item, Section, Table, Tone
from analyzer.reporters.markdown import markdown
from analyzer.reporters.sections import sections
from analyzer.reporters.text import text
from tests.analyzer.kineto_files import write_job


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (None, "–"),
        (0, "0 µs"),
        (0.04, "<0.1 µs"),
        (12.34, "12.3 µs"),
        (999.94, "999.9 µs"),
        (1000, "1.00 ms"),
        (123_456, "123.46 ms"),
        (9_876_543, "9.88 s"),
        (-2_500, "-2.50 ms"),
    ],
)
def test_times_carry_the_unit_in_which_they_are_read(value: float | None, said: str) -> None:
    assert fmt.time(value) == said


@pytest.mark.parametrize(
    ("value", "said"), [(512, "512 B"), (1536, "1.54 kB"), (8_388_608, "8.39 MB"), (2e9, "2.00 GB")]
)
def test_bytes_are_decimal(value: float, said: str) -> None:
    assert fmt.size(value) == said


def test_a_column_has_one_unit_for_all_its_values() -> None:
    unit = fmt.time_unit([3.0, 9_999.0, None])
    assert unit is fmt.MICROSECONDS
    unit = fmt.time_unit([3.0, 10_000.0])
    assert [fmt.number(v, unit) for v in (3.0, 10_000.0, None, 0)] == ["<0.01", "10.00", "–", "0"]


@pytest.mark.parametrize(
    ("share", "said"),
    [(None, "–"), (0, "0 %"), (1, "100 %"), (0.99999, ">99.9 %"), (0.0001, "<0.1 %"), (0.5, "50.0 %")],
)
def test_percentages_never_round_to_all_or_nothing(share: float | None, said: str) -> None:
    assert fmt.percent(share) == said


@pytest.mark.parametrize(
    ("ranks", "said"),
    [
        ([], "none"),
        ([3], "3"),
        ([0, 1], "0, 1"),
        ([2, 1, 0, 3], "0-3"),
        ([0, 1, 2, 5, 8, 9], "0-2, 5, 8, 9"),
        ([0, 8, 16, 24], "0, 8, .. 24"),
        ([r for r in range(40) if r % 3], "1, 2, 4, 5, 7, 8, 10, 11, 13, 14, 16, 17 and 14 more"),
    ],
)
def test_ranks_are_runs(ranks: list[int], said: str) -> None:
    if len(ranks) > 20:
        assert fmt.ranks(ranks, limit=6) == said
    else:
        assert fmt.ranks(ranks) == said


HOSTILE = "evil\x1b[31m <script>alert(1)</script> | `x` \u202e"


def report() -> list[Section]:
    table = Table(
        [Column("name"), Column("spare", spare=1), Column("value MB", right=True)],
        [["a", "x" * 30, "1.00"], ["long " * 4, "y", Cell("100.00", Tone.BAD)]],
    )
    return [
        Section("One", "lead", [Facts([("fact", HOSTILE), ("", "more")]), table]),
        Section("Two", "", [Item([Cell("warn  ", Tone.DOUBT), Cell("title", Tone.HEAD)], "why " * 40)]),
    ]


def test_names_from_a_trace_cannot_move_the_cursor() -> None:
    shown = text(report(), terminal=True, width=100)
    assert "\x1b[31m <script>" not in shown
    assert "\u202e" not in shown


def test_colour_is_for_terminals_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")
    assert "\x1b[" in text(report(), terminal=True, width=100)
    assert "\x1b[" not in text(report(), terminal=False, width=100)
    monkeypatch.setenv("NO_COLOR", "1")
    assert "\x1b[3" not in text(report(), terminal=True, width=100)


def test_a_table_drops_its_spare_columns_before_it_is_wider_than_the_page() -> None:
    assert "spare" in text(report(), width=80)
    assert "spare" not in text(report(), width=50)
    rows = [line for line in text(report(), width=20).splitlines() if "100.00" in line]
    assert rows == ["  long long long long     100.00"]


def test_words_wrap_under_themselves() -> None:
    lines = text(report(), width=60).splitlines()
    detail = [line for line in lines if line.startswith("        why")]
    assert len(detail) == 4
    assert all(len(line) <= 60 for line in lines)


def test_markdown_escapes_what_would_be_markup() -> None:
    shown = markdown(report(), "A | title")
    assert shown.startswith("# A \\| title\n")
    assert "<script>" not in shown
    assert "\\<script\\>" in shown
    assert "| name | spare | value MB |\n| :-- | :-- | --: |\n| a | " in shown
    assert "- warn **title**<br>why why" in shown


@pytest.fixture(scope="module")
def analysis(tmp_path_factory: pytest.TempPathFactory) -> Analysis:
    return analyze(write_job(tmp_path_factory.mktemp("job")))


def test_the_report_of_a_known_job(analysis: Analysis) -> None:
    lines = text(sections(analysis), width=120).splitlines()
    said = "\n".join(lines)
    assert "ranks          0, 1 of 2" in said
    assert "steps          3 complete (0-2), marked by the profiler" in said
    assert "recognised by  metadata 100 % of calls" in said
    table = next(i for i, line in enumerate(lines) if line.startswith("  dim  primitive"))
    header = "dim primitive n link dtype phase calls size kB sent MB time µs wait µs exposed µs busbw GB/s ledger"
    assert " ".join(lines[table].split()) == header
    row = "dp all_reduce 2 nvlink bf16 B 4 2000.00 13.00 1400.0 200.0 350.0 10.8 1.000"
    assert " ".join(lines[table + 1].split()) == row
    assert any(line.split()[:4] == ["exposed", "communication", "350.0", "5.8"] for line in lines)


def test_what_nobody_knows_has_no_column(analysis: Analysis) -> None:
    rows = [msgspec.structs.replace(row, wait_us_per_step=None, busbw_gbps=None) for row in analysis.collectives]
    shown = text(sections(msgspec.structs.replace(analysis, collectives=rows)), width=100)
    header = next(line for line in shown.splitlines() if line.startswith("  dim  primitive"))
    assert "wait" not in header
    assert "busbw" not in header


@pytest.mark.parametrize("width", [100, 120])
@pytest.mark.parametrize("case", ["tp2pp2dp2", "mc8_tp2ep2pp2_moe", "f_tp8pp16_w16384"])
def test_reports_of_real_jobs_fit_the_page(shared: Path, case: str, width: int) -> None:
    files = sorted(str(p) for p in (shared / "data" / "captures" / case).glob("rank*.json.gz"))[:2]
    shown = text(sections(analyze(files)), width=width)
    assert max(len(line) for line in shown.splitlines()) <= width
    assert "…" not in shown


def test_the_stages_of_a_captured_pipeline_divide_its_step(sample_traces: Path) -> None:
    """Two stages of four ranks; only operators are known, so that what messages took may all be waiting."""
    found = analyze(sample_traces / "tp2_pp2_dp2")
    assert found.exposure is not None
    assert found.pipeline is not None
    by_rank = {rank.rank: rank for rank in found.exposure.by_rank}
    assert [stage.ranks for stage in found.pipeline.by_stage] == [[0, 1, 2, 3], [4, 5, 6, 7]]
    for stage in found.pipeline.by_stage:
        members = [by_rank[rank] for rank in stage.ranks]
        assert stage.transfer_us is None
        exposed = stage.waiting_us + stage.other_exposed_us
        whole = stage.compute_us + exposed + stage.memcpy_us + stage.idle_us
        assert whole == pytest.approx(stage.step_us, abs=1e-9)
        assert stage.step_us == pytest.approx(sum(r.step_us for r in members) / 4, abs=2e-3)
        assert stage.compute_us == pytest.approx(sum(r.compute_us for r in members) / 4, abs=2e-3)
        assert stage.waiting_us == pytest.approx(sum(r.by_dimension["pp"].exposed_us for r in members) / 4, abs=2e-3)
    shown = text(sections(found), width=100)
    assert max(len(line) for line in shown[shown.index("Stages") : shown.index("\nExposed")].splitlines()) <= 100
    lines = [
        line.split() for line in shown[shown.index("\nStages") : shown.index("\nExposed")].splitlines()[2:] if line
    ]
    assert lines[0] == ["stage", "ranks", "step", "ms", "compute", "waiting", "other", "exposed", "copies", "idle"]
    for line, stage in zip(lines[1:], found.pipeline.by_stage, strict=True):
        parts = (stage.step_us, stage.compute_us, stage.waiting_us, stage.other_exposed_us)
        assert line[2:6] == [f"{us / 1000:.2f}" for us in parts]
    assert "| stage | ranks |" in " ".join(markdown(sections(found), "t").replace("--:", "").split())


def test_a_job_without_a_pipeline_has_no_stages(analysis: Analysis) -> None:
    assert "Stages" not in [section.title for section in sections(analysis)]


@pytest.mark.parametrize(("layers", "shown"), [(1, []), (3, [2, 1, 0]), (10, [9, 8, 7, 6, 5, 4, 3, 2])])
def test_the_most_uneven_layers_of_experts_are_named(analysis: Analysis, layers: int, shown: list[int]) -> None:
    """Layer n has an imbalance of 1 + n/8: their mean and maximum are over dispatches."""
    by_layer = [ExpertLayer(layer=n, imbalance=1 + n / 8) for n in range(layers)]
    experts = Experts(imbalance=Imbalance(mean=1.25, max=2.0625), by_layer=by_layer)
    lines = text(sections(msgspec.structs.replace(analysis, experts=experts)), width=100).splitlines()
    at = next(i for i, line in enumerate(lines) if line.startswith("Experts"))
    more = "; the 8 most uneven of 10 layers" if layers == 10 else ""
    assert lines[at] == f"Experts  largest load of a rank over the mean load{more}"
    assert lines[at + 1] == "  imbalance  mean 1.250, max 2.062 over dispatches"
    rows = [line.split() for line in lines[at + 3 : at + 3 + len(shown)]]
    assert rows == [[str(n), f"{1 + n / 8:.3f}"] for n in shown]


def test_experts_of_a_captured_job_are_in_every_report(sample_traces: Path) -> None:
    found = analyze(sample_traces / "ep4_dp8")
    assert found.experts is not None
    said = f"mean {found.experts.imbalance.mean:.3f}, max {found.experts.imbalance.max:.3f} over dispatches"
    assert said in text(sections(found), width=100)
    assert f"**imbalance** {said}" in markdown(sections(found), "t")
    assert [layer.layer for layer in found.experts.by_layer] == [0, 1, 2]
    assert "Experts" not in [section.title for section in sections(msgspec.structs.replace(found, experts=None))]
