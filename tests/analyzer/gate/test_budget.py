"""Budget files: what they may say, and the one line they get when they are wrong."""

from __future__ import annotations

from pathlib import Path

import pytest

from analyzer.gate.budget import Rule, load_budget, parse_rule, parse_share
from parsers.errors import InputError


def written(tmp_path: Path, text: str) -> str:
    path = tmp_path / "budget.toml"
    path.write_text(text, encoding="utf-8")
    return str(path)


def test_every_part_of_a_budget(tmp_path: Path) -> None:
    budget = load_budget(
        written(
            tmp_path,
            """
            layout = "tp8-pp16-dp128"
            missing_collectives = 0
            step_us = "<= 850 ms"
            exposed.tp = "<= 1.2 x ledger"
            "exposed.dp" = "< 5%"
            rules = ["bytes.dp.all_gather <= 3 GB"]
            [levels]
            "exposed.*" = "warn"
            exposed.tp = "error"
            [tolerance]
            exposed.ep = "10 %"
            step_us = 0.05
            [links]
            intra_node = 450
            """,
        )
    )
    assert [(r.metric, r.op, r.value, r.reference) for r in budget.rules] == [
        ("layout", "==", "tp8-pp16-dp128", None),
        ("missing_collectives", "==", 0.0, None),
        ("step_us", "<=", 850_000.0, None),
        ("exposed.tp", "<=", 1.2, "ledger"),
        ("exposed.dp", "<", 0.05, None),
        ("bytes.dp.all_gather", "<=", 3e9, None),
    ]
    assert (budget.level_of("exposed.tp", "off"), budget.level_of("exposed.dp", "off")) == ("error", "warn")
    assert budget.level_of("step_us", "off") == "off"
    assert (budget.tolerance_of("exposed.ep", 0.03), budget.tolerance_of("step_us", 0.03)) == (0.1, 0.05)
    assert budget.links == {"intra_node": 450.0}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("step_us <= 3", "not TOML"),
        ('steptime = "<= 3 s"', "steptime: no such metric"),
        ('exposed.xy = "<= 3 s"', "exposed.xy: no such metric"),
        ('step_us = "<= 3 parsecs"', "'parsecs' is no unit"),
        ('step_us = "<= 3 x yesterday"', "'yesterday' is none of ledger, baseline, step"),
        ("step_us = [1]", "is not a limit"),
        ("rules = 3", "rules must be a list"),
        ('rules = ["step_us is good"]', "is not a rule"),
        ("levels = 3", "levels must be a table"),
        ('[levels]\nstep_us = "fatal"', "'fatal' is none of off, warn, error"),
        ('[tolerance]\nstep_us = "a lot"', "is not a share"),
        ("[links]\nintra_node = 0", "is not a speed"),
    ],
)
def test_wrong_budget_is_one_line_that_names_file_and_key(tmp_path: Path, text: str, said: str) -> None:
    path = written(tmp_path, text)
    with pytest.raises(InputError) as caught:
        load_budget(path)
    assert said in str(caught.value)
    assert str(caught.value).startswith(path)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("text", ["a.b == 3", "step_us == 3 x"])
def test_rules_that_are_none(text: str) -> None:
    with pytest.raises(InputError):
        parse_rule(text)


def test_rule_keeps_the_words_of_the_user() -> None:
    assert str(parse_rule("step_us<=850 ms")) == "step_us <= 850 ms"
    assert str(parse_rule("layout = tp8")) == "layout = tp8"


def test_words_have_no_order() -> None:
    with pytest.raises(InputError, match="only = and !="):
        Rule("layout", "<=", "tp8").holds("tp8", "tp8")


@pytest.mark.parametrize(("said", "share"), [("3%", 0.03), ("3 %", 0.03), ("0.03", 0.03), (0.5, 0.5), ("120%", 1.2)])
def test_shares(said: object, share: float) -> None:
    assert parse_share(said, "x") == pytest.approx(share)
