"""What words mean, and what is behind findings."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from analyzer.cli import main
from analyzer.glossary import entries, lookup
from tests.analyzer.kineto_files import write_job

ROOT = Path(__file__).resolve().parents[2]


def run(*arguments: object) -> Result:
    return CliRunner().invoke(main, [str(a) for a in arguments])


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_job(tmp_path_factory.mktemp("job"))


def test_every_finding_has_an_entry() -> None:
    text = "".join(path.read_text() for path in (ROOT / "analyzer" / "findings").glob("*.py"))
    kinds = {kind.replace("{", "").partition(".") for kind in re.findall(r'f?"([a-z]+\.[a-z_{]+)', text)}
    known = {"layout", "trace", "ranks", "events", "comm", "exposed", "step", "steps", "tp", "dtype", "ledger"}
    known |= {"cause", "rank", "link", "wait", "overlap", "pipeline", "sources"}
    identifiers = {f"{family}.{name}" for family, _, name in kinds if family in known}
    assert len(identifiers) >= 30
    assert [kind for kind in sorted(identifiers) if lookup(kind) is None] == []


def test_entries_are_whole_and_their_pages_exist() -> None:
    names = [name for entry in entries() for name in entry.names]
    assert len(names) == len(set(names))
    for entry in entries():
        assert (ROOT / "docs" / entry.see).exists(), entry.see
        for text in (entry.means, entry.computed, entry.events):
            assert text.endswith("."), entry.title


@pytest.mark.parametrize(
    ("term", "said"),
    [
        ("tp", "the weights of each layer are split"),
        ("TP", "the weights of each layer are split"),
        ("busbw", "2(n-1)/n for all-reduce"),
        ("cause.late_launch", "the host is the bottleneck"),
        ("exposed.dp", "no compute kernel does"),
        ("ledger.differs", "match: equal"),
        ("null", "It is an answer"),
    ],
)
def test_terms_are_explained(term: str, said: str) -> None:
    result = run("explain", term)
    assert result.exit_code == 0
    assert said in " ".join(result.stdout.split())


def test_an_unknown_term_names_the_nearest() -> None:
    result = run("explain", "stragler")
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr == (
        "analyze: no term or finding 'stragler'; did you mean 'straggler'?; analyze explain --list names them all\n"
    )
    assert run("explain").exit_code == 2


def test_the_list_names_them_all() -> None:
    listed = run("explain", "--list").stdout
    assert all(entry.title in listed for entry in entries())
    assert len(json.loads(run("explain", "--all", "--format", "json").stdout)["terms"]) == len(entries())


def test_a_finding_comes_with_its_numbers_and_calls(job: Path) -> None:
    findings = json.loads(run(job, "--format", "json", "-q").stdout)["findings"]
    chosen = next(f for f in findings if f["dim"] == "dp" and f["cost_us"])
    result = run("explain", chosen["id"], job, "-q")
    said = " ".join(result.stdout.split())
    assert f"{chosen['cost_us']:.1f} µs a step" in said
    assert "dp a step busy 1.40 ms, exposed 350.0 µs" in said
    assert "shows in the call that costs most" in said
    assert f"analyze export TRACE... --slice {chosen['id']} -o" in said
    document = json.loads(run("explain", chosen["id"], job, "-q", "--format", "json").stdout)
    assert document["finding"]["id"] == chosen["id"]
    assert document["moment"]["calls"]
    assert document["term"]["names"]


def test_a_finding_that_is_not_there_names_those_that_are(job: Path) -> None:
    result = run("explain", "rank.latte", job, "-q")
    assert result.exit_code == 2
    assert result.stderr.startswith("analyze: no finding 'rank.latte'; ")
