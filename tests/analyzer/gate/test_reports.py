"""What CI systems read: JUnit, GitHub's commands and files, SARIF, markdown and HTML."""

from __future__ import annotations

import json
import re
from pathlib import Path
from xml.etree import ElementTree as Xml

import msgspec
import pytest

from analyzer.gate.verdict import Comparison, compare
from analyzer.plots.waterfall import waterfall as draw_waterfall
from analyzer.reporters.blocks import Picture
from analyzer.reporters.comparison import MOST_BYTES, comparison_markdown, waterfall
from analyzer.reporters.comparison_page import comparison_report
from analyzer.reporters.github import publish, workflow_commands
from analyzer.reporters.html import page
from analyzer.reporters.junit import junit
from analyzer.reporters.sarif import sarif
from tests.analyzer.gate.runs import run, series

FIVE = [100.0, 101, 102, 103, 104]
WHEN = "2026-01-02T03:04:05Z"
ANATOMY = {"compute": 70_000, "exposed.tp": 20_000, "other": 10_000}


def regression() -> Comparison:
    before = run(FIVE, anatomy=ANATOMY, noisy={"wait.tp": series([5.0] * 5)})
    after = run(
        [t * 1.1 for t in FIVE],
        exact={"bytes.tp.all_reduce": 691_200, "layout.zero_stage": None},
        noisy={"wait.tp": series([9.0] * 5)},
        anatomy=ANATOMY | {"exposed.tp": 32_000, "other": 8_000},
    )
    return compare(before, after)


def inconclusive() -> Comparison:
    return compare(run(FIVE), run(FIVE, world_size=8))


def many(rows: int) -> Comparison:
    """More failures than any reader wants."""
    names = {f"bytes.dp.all_gather_{i:05}": i for i in range(rows)}
    return compare(run(FIVE, exact=names), run(FIVE, exact={name: value + 1 for name, value in names.items()}))


# The elements and attributes of junit-10.xsd of the xunit plugin of Jenkins, and those that Ant's schema demands
# (windyroad/JUnit-Schema): (attributes that must be there, attributes that may be there, children in order).
JUNIT = {
    "testsuites": (set(), {"name", "time", "tests", "failures", "errors", "disabled"}, ["testsuite"]),
    "testsuite": (
        {"name", "tests", "failures", "errors", "time", "timestamp", "hostname", "id", "package"},
        {"skipped", "group", "file", "log", "url", "version"},
        ["properties", "testcase", "system-out", "system-err"],
    ),
    "properties": (set(), set(), ["property"]),
    "testcase": (
        {"name", "classname", "time"},
        {"group", "file", "assertions"},
        ["skipped", "error", "failure"],
    ),
    "failure": ({"message", "type"}, set(), []),
    "error": ({"message", "type"}, set(), []),
    "skipped": (set(), {"message", "type"}, []),
    "system-out": (set(), set(), []),
    "system-err": (set(), set(), []),
}


def validate(element: Xml.Element) -> None:
    must, may, children = JUNIT[element.tag]
    given = set(element.attrib)
    assert must <= given <= must | may, element.tag
    order = [children.index(child.tag) for child in element]
    assert order == sorted(order), element.tag
    for child in element:
        validate(child)


@pytest.mark.parametrize("comparison", [regression(), inconclusive(), many(3), compare(run(FIVE), run(FIVE))])
def test_junit_has_the_common_structure_and_true_counts(comparison: Comparison) -> None:
    root = Xml.fromstring(junit(comparison, WHEN))
    validate(root)
    for suite in root:
        cases = suite.findall("testcase")
        assert int(suite.attrib["tests"]) == len(cases) > 0
        for tag, count in (("failure", "failures"), ("error", "errors"), ("skipped", "skipped")):
            assert int(suite.attrib[count]) == len(suite.findall(f"testcase/{tag}"))
        assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d", suite.attrib["timestamp"])
        assert len({case.attrib["name"] for case in cases}) == len(cases)


def test_junit_has_one_case_per_metric_and_names_the_failure() -> None:
    found = regression()
    root = Xml.fromstring(junit(found, WHEN))
    assert sum(len(suite.findall("testcase")) for suite in root) == len(found.rows)
    failed = {c.attrib["name"]: c.find("failure") for c in root.iter("testcase") if c.find("failure") is not None}
    assert set(failed) == {"step_us", "bytes.tp.all_reduce"}
    message = failed["bytes.tp.all_reduce"]
    assert message is not None
    assert message.attrib == {"message": "645,120 → 691,200", "type": "changed"}
    # a warning is no failed test
    assert "wait.tp" in "".join(out.text or "" for out in root.iter("system-out"))


def test_junit_of_incomparable_runs_is_an_error_with_the_reason() -> None:
    case = Xml.fromstring(junit(inconclusive(), WHEN)).find("testsuite/testcase/error")
    assert case is not None
    assert "world: 4 ranks in the baseline, 8 ranks here" in case.attrib["message"]


def test_junit_survives_characters_that_xml_forbids() -> None:
    name = "calls.dp.all\x00re<d>&uce\x1b"
    found = compare(run(FIVE), run(FIVE, exact={name: 3}))
    names = {case.attrib["name"] for case in Xml.fromstring(junit(found, WHEN)).iter("testcase")}
    assert "calls.dp.all�re<d>&uce�" in names


COMMAND = re.compile(r"::(error|warning) title=([^:,\r\n]*)::([^\r\n]+)")


def test_annotations_are_at_most_ten_workflow_commands_worst_first() -> None:
    lines = workflow_commands(many(40)).splitlines()
    assert len(lines) == 10
    assert all(COMMAND.fullmatch(line) for line in lines)
    said = [COMMAND.fullmatch(line) for line in workflow_commands(regression()).splitlines()]
    assert [(m[1], m[2]) for m in said if m is not None] == [
        ("error", "commlens%3A bytes.tp.all_reduce"),
        ("error", "commlens%3A step_us"),
        ("warning", "commlens%3A wait.tp"),
    ]


def test_annotations_escape_what_the_runner_would_read() -> None:
    found = compare(run(FIVE), run(FIVE, exact={"calls.a\n::error::b,50%": 3}))
    lines = workflow_commands(found).splitlines()
    assert len(lines) == 1
    assert lines[0].startswith("::error title=commlens%3A calls.a%0A%3A%3Aerror%3A%3Ab%2C50%25::calls.a%0A::error")


def test_inconclusive_is_annotated_with_the_difference() -> None:
    assert workflow_commands(inconclusive()).splitlines() == [
        "::error title=commlens%3A not comparable::the runs cannot be compared: "
        "world: 4 ranks in the baseline, 8 ranks here"
    ]


def test_summary_and_outputs_are_appended_to_the_runners_files(tmp_path: Path) -> None:
    summary, outputs = tmp_path / "summary.md", tmp_path / "outputs"
    summary.write_text("# before\n")
    publish(regression(), {"GITHUB_STEP_SUMMARY": str(summary), "GITHUB_OUTPUT": str(outputs)})
    assert summary.read_text().startswith("# before\n# Communication: regression\n")
    assert outputs.read_text() == "verdict=regression\nexit-code=1\n"
    assert summary.stat().st_size < 1 << 20


def test_nothing_is_written_outside_of_github(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    publish(regression(), {"GITHUB_STEP_SUMMARY": "", "HOME": "/"})
    assert list(tmp_path.iterdir()) == []


def test_markdown_shows_changed_metrics_only() -> None:
    text = comparison_markdown(regression())
    table = [line for line in text.splitlines() if line.startswith("| ")]
    assert any("bytes.tp.all\\_reduce" in line or "bytes.tp.all_reduce" in line for line in table)
    assert not any("calls.tp" in line or "dtype.tp" in line for line in table)
    widths = {line.count(" | ") for line in table if "metric" in line or "step_us" in line}
    assert len(widths) == 1


@pytest.mark.parametrize("rows", [1, 2000])
def test_markdown_fits_a_comment(rows: int) -> None:
    text = comparison_markdown(many(rows))
    assert len(text.encode()) <= MOST_BYTES < 65_536
    assert text.startswith("# Communication: regression\n")
    if rows > 1000:
        assert re.search(r"the \d+ worst of 200\d", text)


def test_waterfall_leads_from_the_old_step_to_the_new() -> None:
    found = regression().attribution
    assert found is not None
    lines = waterfall(found).splitlines()
    assert [line.split()[:2] for line in lines] == [
        ["before", "100.0"],
        ["exposed.tp", "+12.0"],
        ["other", "-2.0"],
        ["after", "110.0"],
    ]
    # from 100 to 112 over the whole width, and back by a sixth of it
    assert lines[1].endswith("█" * 24)
    assert lines[2].endswith("░" * 4)


def test_html_is_the_page_of_a_report_and_its_names_are_harmless() -> None:
    evil = compare(run(FIVE), run(FIVE, exact={"calls.<script>alert(1)</script>\u202egpj": 3}))
    text = page(comparison_report(evil))
    assert text.count("<script") == 1, "ours"
    assert "calls.&lt;script&gt;alert(1)&lt;/script&gt;" in text
    assert "\u202e" not in text
    assert not re.search(r"(?:src|href)=(?!\"#)|@import|url\((?!#)", text)


def test_html_draws_the_way_from_the_old_step_to_the_new() -> None:
    found = comparison_report(regression())
    assert found.title == "Communication: regression"
    assert ("step", "110.0 µs", "+10.0% of 100.0 µs") in found.tiles
    (where,) = [section for section in found.sections if section.title == "Where the difference comes from"]
    picture = where.parts[0]
    assert isinstance(picture, Picture)
    assert picture.alt == "The mean step goes from 100.0 µs to 110.0 µs; exposed.tp adds most, 12.0 µs."
    assert '<figure id="waterfall">' in page(found)


def test_bars_of_the_waterfall_begin_where_the_last_one_ends() -> None:
    found = regression().attribution
    assert found is not None
    ax = draw_waterfall(found).axes[0]
    assert [(round(bar.get_x(), 6), round(bar.get_width(), 6)) for bar in ax.patches] == [(100, 12), (112, -2)]
    assert [label.get_text() for label in ax.get_yticklabels()] == ["before", "exposed.tp", "other", "after"]
    assert [text.get_text() for text in ax.texts] == ["+12.0 µs", "-2.0 µs", "100.0 µs", "110.0 µs"]
    low, high = ax.get_xlim()
    assert (low, high) == (pytest.approx(100 - 0.18 * 12), pytest.approx(112 + 0.18 * 12))


def test_sarif_names_rule_level_and_place() -> None:
    log = json.loads(sarif(regression(), "ci/budget.toml"))
    assert (log["version"], log["$schema"]) == ("2.1.0", "https://json.schemastore.org/sarif-2.1.0.json")
    (only,) = log["runs"]
    rules = [rule["id"] for rule in only["tool"]["driver"]["rules"]]
    assert [(r["ruleId"], r["level"]) for r in only["results"]] == [
        ("exact", "error"),
        ("noisy", "error"),
        ("noisy", "warning"),
    ]
    for result in only["results"]:
        assert rules[result["ruleIndex"]] == result["ruleId"]
        place = result["locations"][0]["physicalLocation"]
        assert place == {"artifactLocation": {"uri": "ci/budget.toml"}, "region": {"startLine": 1}}
        assert re.fullmatch("[0-9a-f]{16}", result["partialFingerprints"]["metric/v1"])
    assert json.loads(sarif(inconclusive(), "x"))["runs"][0]["results"][0]["ruleId"] == "inconclusive"
    assert json.loads(sarif(compare(run(FIVE), run(FIVE)), "x"))["runs"][0]["results"] == []


def test_document_can_be_read_back() -> None:
    from analyzer.gate.verdict import to_json

    found = regression()
    assert msgspec.json.decode(to_json(found), type=Comparison) == found
