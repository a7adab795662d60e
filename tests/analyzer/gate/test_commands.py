"""`compare`, `check` and `baseline` as a user calls them."""

from __future__ import annotations

import gzip
import json
import re
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner, Result

from analyzer.cli import main
from tests.analyzer.gate.inject import injected, repeat

ROOT = Path(__file__).resolve().parents[3]


def call(*args: str | Path, **env: str) -> Result:
    return CliRunner().invoke(main, [str(a) for a in args], env=env or {"GITHUB_ACTIONS": None})  # type: ignore[dict-item]


@pytest.fixture
def base(sample_traces: Path, tmp_path: Path) -> Path:
    path = tmp_path / "base.json"
    assert call("baseline", "write", sample_traces / "ddp4", "-o", path).exit_code == 0
    return path


def test_whole_life_of_a_baseline(sample_traces: Path, tmp_path: Path, base: Path) -> None:
    refused = call("baseline", "write", sample_traces / "ddp4", "-o", base)
    assert (refused.exit_code, f"{base} exists; --force overwrites it" in refused.stderr) == (2, True)
    again = call("baseline", "write", sample_traces / "ddp4", "-o", base, "--force")
    assert ("unchanged" in again.stderr, again.stdout) == (True, "")
    assert call("check", sample_traces / "ddp4", "--baseline", base).exit_code == 0
    fault = injected(sample_traces / "ddp4", tmp_path / "fault", "allreduce", 1, repeat)
    failed = call("check", fault, "--baseline", base, "--format", "json")
    assert failed.exit_code == 1
    said = json.loads(failed.stdout)
    assert (said["schema_version"], said["verdict"], said["exit_code"]) == (1, "regression", 1)
    assert {row["metric"] for row in said["rows"] if row["status"] == "changed"} == {
        "bytes.dp.all_reduce",
        "calls.dp.all_reduce",
    }
    took = call(
        "baseline", "accept", fault, "--baseline", base, "--metric", "*.dp.all_reduce", "--reason", "twice now"
    )  # fmt: skip
    assert (took.exit_code, took.stdout.splitlines()[0]) == (0, "calls.dp.all_reduce: 3 → 4")
    assert call("check", fault, "--baseline", base).exit_code == 0
    shown = call("baseline", "show", base)
    assert "twice now" in shown.stdout
    assert call("check", sample_traces / "ddp4", "--baseline", base).exit_code == 1


def test_two_layouts_are_inconclusive(sample_traces: Path) -> None:
    found = call("compare", sample_traces / "pp2_gpipe", sample_traces / "pp4_1f1b")
    assert found.exit_code == 3
    assert "layout: tp1-cp1-pp2-dp1-ep1 in the baseline, tp1-cp1-pp4-dp1-ep1 here" in " ".join(found.stdout.split())


def test_saved_results_have_no_steps_but_exact_metrics(sample_traces: Path, tmp_path: Path) -> None:
    saved = tmp_path / "saved.json"
    assert call("run", sample_traces / "ddp4", "--format", "json", "-o", saved).exit_code == 0
    same = call("compare", saved, saved)
    assert same.exit_code == 3
    assert "only a mean" in " ".join(same.stdout.split())
    assert call("compare", saved, saved, "--inconclusive", "pass").exit_code == 0
    fault = injected(sample_traces / "ddp4", tmp_path / "fault", "allreduce", 1, repeat)
    assert call("compare", saved, fault).exit_code == 1


def test_too_few_steps_are_inconclusive(sample_traces: Path) -> None:
    tp4 = sample_traces / "tp4"
    found = call("compare", tp4, tp4, "--steps", "3:4")
    assert found.exit_code == 3
    assert "too few steps: 2 steps in the baseline, 2 steps here; 3 are needed" in " ".join(found.stdout.split())


def test_cut_file_is_inconclusive_for_a_check(sample_traces: Path, tmp_path: Path, base: Path) -> None:
    folder = tmp_path / "cut"
    folder.mkdir()
    for path in (sample_traces / "ddp4").glob("rank*"):
        data = gzip.decompress(path.read_bytes())
        (folder / path.name.removesuffix(".gz")).write_bytes(data[:-400] if "rank2" in path.name else data)
    found = call("check", folder, "--baseline", base)
    assert found.exit_code == 3
    assert "the file is cut" in found.stderr


def test_every_report_of_one_run(sample_traces: Path, tmp_path: Path, base: Path) -> None:
    kinds = ("json", "junit", "sarif", "md", "html", "github", "text")
    reports = [a for kind in kinds for a in ("--report", f"{kind}={tmp_path / kind}")]
    found = call("check", sample_traces / "ddp4", "--baseline", base, *reports)
    assert found.exit_code == 0
    begins = {"json": "{", "junit": "<?xml", "sarif": "{", "md": "# Communication: pass", "html": "<!DOCTYPE html>"}
    for kind, text in begins.items():
        assert (tmp_path / kind).read_text(encoding="utf-8").startswith(text)
    assert (tmp_path / "github").read_text() == ""
    assert "Verdict  pass" in (tmp_path / "text").read_text(encoding="utf-8")


def test_in_github_actions_annotations_go_to_stderr_and_the_summary_to_its_file(
    sample_traces: Path, tmp_path: Path
) -> None:
    summary, outputs = tmp_path / "summary", tmp_path / "outputs"
    # As the runner sets them: GitHub Docs, "Variables reference"
    env = {
        "GITHUB_ACTIONS": "true",
        "GITHUB_STEP_SUMMARY": str(summary),
        "GITHUB_OUTPUT": str(outputs),
        "GITHUB_WORKSPACE": str(tmp_path),
    }
    budget = ROOT / "examples" / "ci" / "too_tight.toml"
    found = call("check", sample_traces / "tp4", "--budget", budget, "--format", "json", **env)
    assert found.exit_code == 1
    assert json.loads(found.stdout)["verdict"] == "regression"
    assert [line for line in found.stderr.splitlines() if line.startswith("::error title=commlens%3A exposed.tp")]
    assert summary.read_text(encoding="utf-8").startswith("# Communication: regression")
    assert outputs.read_text() == "verdict=regression\nexit-code=1\n"


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (("check", "X"), "nothing to check against"),
        (("compare", "X"), "compare takes two runs, not 1"),
        (("check", "X", "--baseline", "nowhere.json"), "nowhere.json"),
        (("check", "X", "--budget", "nowhere.toml"), "nowhere.toml"),
        (("check", "X", "--baseline", "X/truth.json"), "not a baseline"),
        (("check", "X", "--budget", "b", "--report", "pdf=x"), "is not FORMAT=PATH"),
        (("check", "X", "--budget", "b", "--tolerance", "lots"), "is not a share"),
        (("baseline", "accept", "X", "--baseline", "b", "--metric", "m", "--reason", " "), "--reason is empty"),
        (("baseline", "show", "X/truth.json"), "not a baseline"),
    ],
)
def test_wrong_use_is_one_line_and_exit_code_2(sample_traces: Path, args: tuple[str, ...], said: str) -> None:
    found = call(*(a.replace("X", str(sample_traces / "tp4")) for a in args))
    assert (found.exit_code, found.stdout) == (2, "")
    assert len(found.stderr.splitlines()) == 1
    assert said in found.stderr


def test_every_option_of_the_gate_has_an_example_that_is_run() -> None:
    from analyzer.commands import baseline, check, compare

    text = (ROOT / "docs" / "ci.md").read_text(encoding="utf-8")
    runs = [line for line in text.splitlines() if line.startswith("<!-- run: analyze ")]
    shared = {
        "--kernel-table",
        "--debug",
        "--dask",
        "--cache",
        "--cluster",
        "--memory-limit",
        "--max-expansion",
        "--max-unpacked",
    }  # of every command, shown where they belong
    commands = {"check": check.command, "compare": compare.command} | {
        f"baseline {name}": command for name, command in baseline.command.commands.items()
    }
    missing = set()
    for command in commands.values():
        for param in command.params:
            names = [*param.opts, *param.secondary_opts]
            if names[0].startswith("-") and not any(
                re.search(rf" {re.escape(n)}[ =]", run) for n in names for run in runs
            ):
                missing.add(next(n for n in names if n.startswith("--")))
    assert missing - shared == set()


def test_action_and_workflow_are_yaml_and_use_real_options() -> None:
    action = yaml.safe_load((ROOT / "action.yml").read_text(encoding="utf-8"))
    assert action["runs"]["using"] == "composite"
    script = action["runs"]["steps"][-1]["run"]
    assert "${{" not in script  # inputs reach the shell through the environment only
    helped = call("check", "--help").stdout
    for option in re.findall(r"--[a-z]+", script):
        assert option in helped
    workflow = yaml.safe_load((ROOT / "examples" / "ci" / "workflow.yml").read_text(encoding="utf-8"))
    step = next(s for s in workflow["jobs"]["gate"]["steps"] if s.get("id") == "gate")
    assert set(step["with"]) <= set(action["inputs"])
