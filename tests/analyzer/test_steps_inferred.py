"""Steps that nobody marked, end to end: the same figures as with the marks."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from analyzer.cli import main
from tests.analyzer.time_files import GEMM, Writer, analysed


def without_marks(source: Path, folder: Path) -> Path:
    """The traces of a job, less their step marks."""
    folder.mkdir()
    for file in source.glob("rank*.json.gz"):
        document = json.loads(gzip.decompress(file.read_bytes()))
        events = document["traceEvents"]
        document["traceEvents"] = [e for e in events if not str(e.get("name")).startswith("ProfilerStep")]
        (folder / file.name).write_bytes(gzip.compress(json.dumps(document).encode()))
    return folder


def document(*arguments: object) -> dict[str, Any]:
    result = CliRunner().invoke(main, [*(str(a) for a in arguments), "--format", "json", "-q"])
    assert result.exit_code == 0, result.stderr
    found: dict[str, Any] = json.loads(result.stdout)
    return found


def calls(found: dict[str, Any]) -> list[tuple[Any, ...]]:
    return sorted(
        (row["dim"] or "", row["primitive"], row["calls_per_step"], row["sent_bytes_per_step"])
        for row in found["collectives"]
    )


@pytest.mark.parametrize("case", ["ddp4", "fsdp2_4", "pp4_1f1b", "zero1_4"])
def test_a_job_without_marks_gives_the_figures_of_the_marked_one(
    sample_traces: Path, tmp_path: Path, case: str
) -> None:
    marked, bare = document(sample_traces / case), document(without_marks(sample_traces / case, tmp_path / case))
    assert (marked["trust"]["steps"]["source"], bare["trust"]["steps"]["source"]) == ("profiler_step", "inferred")
    assert len(bare["trust"]["steps"]["complete"]) == len(marked["trust"]["steps"]["complete"])
    assert bare["trust"]["steps"]["incomplete"] == []
    assert calls(bare) == calls(marked)
    assert {k: bare["layout"][k] for k in ("tp", "cp", "pp", "dp", "ep")} == {
        k: marked["layout"][k] for k in ("tp", "cp", "pp", "dp", "ep")
    }


def test_inferred_steps_are_chosen_by_number(sample_traces: Path, tmp_path: Path) -> None:
    bare = without_marks(sample_traces / "ddp4", tmp_path / "bare")
    one, all_three = document(bare, "--steps", "1:1"), document(bare)
    assert all_three["trust"]["steps"]["complete"] == [0, 1, 2]
    assert calls(one) == calls(all_three)
    assert one["exposure"]["step_us"] != all_three["exposure"]["step_us"]
    refused = CliRunner().invoke(main, [str(bare), "--steps", "7:9", "-q"])
    assert refused.exit_code == 3
    assert "complete are: 0, 1, 2" in refused.stderr


def test_boundaries_that_are_not_certain_are_said_to_be(tmp_path: Path) -> None:
    """Between the last launch of a step and the first of the next nothing is recorded for two thirds of a step."""
    rank = Writer(0, 2)
    for n in range(3):
        rank.kernel(GEMM, 1_000.0 + n * 6_000, 1_900)
        rank.collective("allreduce", 3_000.0 + n * 6_000, 400, 1_000_000)
    found = analysed(tmp_path, [rank])
    assert found.trust.steps.source == "inferred"
    assert found.exposure is not None
    assert found.exposure.step_us == 6_000
    assert len([text for text in found.trust.warnings if "not certain to 0.3% of a step" in text]) == 1
