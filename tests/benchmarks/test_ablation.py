"""What is taken from captured traces is gone, the rest is there, and nothing wrong is said of what is left."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

from benchmarks.scoring.ablation import SIZES, WITHOUT, without
from benchmarks.scoring.cases import ROOT, Case, ablated
from benchmarks.scoring.run import files, results

JOB = ROOT / "sample_traces" / "fsdp2_4_bf16"


def test_what_is_named_is_gone_and_nothing_else(tmp_path: Path) -> None:
    first = files(JOB)[0]
    with gzip.open(first, "rt") as text:
        whole = json.load(text)
    (path,) = without("no sizes", [first], tmp_path)
    left = json.loads(path.read_text())
    assert path.name == "rank0.json"
    assert len(left["traceEvents"]) == len(whole["traceEvents"])
    told = {name for event in whole["traceEvents"] for name in event.get("args", {})}
    still = {name for event in left["traceEvents"] for name in event.get("args", {})}
    assert told - still == told & set(SIZES) != set()
    (path,) = without("no steps", [first], tmp_path)
    marks = sum(e["name"].startswith("ProfilerStep") for e in whole["traceEvents"])
    assert (
        len(json.loads(path.read_text())["traceEvents"])
        == len(whole["traceEvents"]) - marks
        < len(whole["traceEvents"])
    )
    (path,) = without("no header", [first], tmp_path)
    assert set(whole) - set(json.loads(path.read_text())) == {"distributedInfo"}


def test_a_capture_is_answered_without_each() -> None:
    found = list(results(Case("fsdp2_4_bf16 (bundled)", "ablated", JOB)))
    assert [(r.given, r.ranks) for r in found] == [(what, ranks) for what in WITHOUT for ranks in ("all", "one", "one")]
    assert [r.wrong for r in found] == [[]] * 15
    assert {r.given for r in found if r.exact and r.ranks == "all"} >= {"no shapes", "no sizes", "no steps"}


def test_bundled_captures_are_ablated_wherever_the_tests_run() -> None:
    names = [case.name for case in ablated(None)]
    assert len(names) == len(list((ROOT / "sample_traces").glob("*/truth.json")))
    assert "tp4_sp (bundled)" in names
