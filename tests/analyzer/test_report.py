"""The report as a document: order, size, escaping, both forms; what a browser does with it is in tests/browser."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from analyzer.cli import main
from analyzer.details import Details, Missing
from analyzer.headline import headline
from analyzer.options import Options
from analyzer.pipeline import examine
from analyzer.reporters.html import page
from analyzer.reporters.markdown import markdown
from analyzer.reporters.report import Report, markdown_sections, report
from benchmarks.synthesis.generate import generate
from benchmarks.synthesis.spec import MODELS, Spec
from tests.analyzer.report_files import BIDI, hostile_job, hung_job

ORDER = [
    "Trust",
    "Layout",
    "Step",
    "Collectives",
    "Ledger",
    "Bandwidth",
    "Traffic",
    "Slow ranks",
    "Pipeline",
    "Worst collectives",
    "Findings",
    "Not shown",
]


def run(*arguments: object) -> Result:
    return CliRunner().invoke(main, [str(a) for a in arguments])


@pytest.fixture(scope="module")
def captured(sample_traces: Path) -> Report:
    return report(Details(examine(sample_traces / "tp2_pp2_dp2", Options())))


@pytest.fixture(scope="module")
def html(captured: Report) -> str:
    return page(captured)


def test_sections_come_in_the_order_in_which_they_are_read(captured: Report) -> None:
    assert [section.title for section in captured.sections if section.title in ORDER] == ORDER


def test_the_verdict_is_one_sentence_with_confidence_and_what_is_unknown(captured: Report) -> None:
    assert captured.verdict.startswith(
        "Layout tp2 pp2 dp2 on 8 ranks (confidence 0.99); 63.7 % of the 395.8 ms step is exposed communication, "
        "51 % of that tp"
    )
    assert captured.verdict.count(". ") == 0
    assert captured.unknown == ("how much of the communication is waiting",)


def test_the_page_holds_everything_and_fetches_nothing(html: str) -> None:
    assert "default-src 'none'" in html
    assert not re.findall(r'(?:src|href)="(?!#|data:)', html)
    assert not re.findall(r"url\((?!#)", html)
    assert "@import" not in html
    assert len(re.findall(r'<svg role="img" aria-label="[^"]+"', html)) == html.count("<svg ") == 8


def test_every_picture_says_in_words_what_it_shows(html: str) -> None:
    assert html.count("<figcaption><strong>") == html.count("<figure")
    assert "stage 1 of replica 0 computes longest, 1.52 times the median" in html


def test_the_markdown_twin_has_the_same_sections_and_the_numbers_of_the_pictures(captured: Report) -> None:
    text = markdown(markdown_sections(captured), captured.title)
    assert [line[3:] for line in text.splitlines() if line.startswith("## ")] == ["Verdict", *[
        section.title for section in captured.sections
    ]]  # fmt: skip
    assert "| rank | compute ms | exposed tp ms |" in text
    assert "- **not known** how much of the communication is waiting" in text
    assert "<svg" not in text


def test_hostile_names_break_neither_page_nor_picture_nor_markdown(tmp_path: Path) -> None:
    found = report(Details(examine(hostile_job(tmp_path), Options())))
    html, text = page(found), markdown(markdown_sections(found), found.title)
    assert html.count("<script") == 1
    assert "<img" not in html
    assert BIDI not in html
    assert BIDI not in text
    assert "window.hacked" in html
    assert not re.findall(r"(?<!\\)<(?:script|img)", text)
    for table in re.findall(r"(?:^\|.*\n)+", text, re.MULTILINE):
        assert len({len(re.findall(r"(?<!\\)\|", line)) for line in table.splitlines()}) == 1


def test_the_command_writes_page_and_markdown_by_the_ending(sample_traces: Path, tmp_path: Path) -> None:
    for name, start in (("a.html", "<!DOCTYPE html>"), ("a.md", "# Communication of a job: dp4")):
        result = run("report", sample_traces / "ddp4", "-o", tmp_path / name, "-q")
        assert result.exit_code == 0
        assert (tmp_path / name).read_text().startswith(start)
    again = run("report", sample_traces / "ddp4", "-o", tmp_path / "a.html", "-q")
    assert again.exit_code == 2
    assert "--force overwrites it" in again.stderr
    wrong = run("report", sample_traces / "ddp4", "-o", tmp_path / "a.pdf")
    assert wrong.exit_code == 2
    assert "give it the ending .html or .md" in wrong.stderr


def test_run_with_format_html_is_the_same_page(sample_traces: Path, tmp_path: Path) -> None:
    run("report", sample_traces / "ddp4", "-o", tmp_path / "a.html", "-q")
    result = run("run", sample_traces / "ddp4", "--format", "html", "-q", "--no-progress")
    assert result.stdout == (tmp_path / "a.html").read_text()


def test_a_summary_gives_the_same_page_as_the_traces(sample_traces: Path, tmp_path: Path) -> None:
    assert run("summarize", sample_traces / "pp2_gpipe", "-o", tmp_path / "job.parquet", "-q").exit_code == 0
    from_traces = report(Details(examine(sample_traces / "pp2_gpipe", Options())))
    from_summary = report(Details(examine(tmp_path / "job.parquet", Options())))

    def pictures(text: str) -> list[str]:
        return re.findall(r"<figure.*?</figure>", text, re.DOTALL)

    assert pictures(page(from_summary)) == pictures(page(from_traces))


def test_one_rank_shows_what_one_rank_can_tell(sample_traces: Path) -> None:
    path = sorted((sample_traces / "tp2_pp2_dp2").glob("rank0*"))[0]
    found = report(Details(examine(path, Options())))
    assert "what 7 ranks without a trace did" in found.unknown
    absent = next(section for section in found.sections if section.title == "Not shown")
    said = dict(absent.parts[0].rows)  # type: ignore[union-attr]
    assert said["pipeline"] == "no pipeline has a trace of its every stage"
    assert len(page(found)) < 300_000


def test_dumps_of_a_hung_job_are_a_page_of_their_own(tmp_path: Path) -> None:
    hung_job(tmp_path / "dumps")
    result = run("hang", tmp_path / "dumps", "--format", "html", "-o", tmp_path / "hang.html")
    assert result.exit_code == 0
    text = (tmp_path / "hang.html").read_text()
    assert "Look at rank 2: waits in no call" in text
    assert text.count("<svg ") == 1
    assert text.count("<script") == 1
    assert BIDI not in text
    assert run("report", tmp_path / "dumps", "-o", tmp_path / "both.html", "-q").exit_code == 0
    assert "Hang: look at rank 2" in (tmp_path / "both.html").read_text()


def test_sixty_four_ranks_stay_under_two_megabytes(tmp_path: Path) -> None:
    model = replace(MODELS["moe"], layers=4)
    spec = Spec(tp=2, pp=4, dp=8, ep=4, sp=True, zero=1, microbatches=4, schedule="1f1b", steps=2, model=model)
    generate(spec, tmp_path / "job")
    job = Details(examine(tmp_path / "job", Options(workers=2)))
    assert not isinstance(job.pipeline, Missing)
    turns = [" ".join(f"{t.phase[0].upper()}{t.microbatch}" for t in lane.turns) for lane in job.pipeline.lanes]
    assert turns == [
        "F0 F1 F2 F3 B0 B1 B2 B3",
        "F0 F1 F2 B0 F3 B1 B2 B3",
        "F0 F1 B0 F2 B1 F3 B2 B3",
        "F0 B0 F1 B1 F2 B2 F3 B3",
    ]
    text = page(report(job))
    assert len(text.encode()) < 2_000_000
    assert text.count("<svg ") == 9
    assert "64 ranks in 8 nodes" in text


def test_headline_without_communication(sample_traces: Path, shared: Path) -> None:
    found = headline(examine(shared / "data" / "real" / "sglang_tp1_decode", Options()).analysis)
    assert "no communication in a" in found.sentence
