"""Budgets: absolute limits, levels and tolerances, from a TOML file.

layout = "tp8-pp16-dp128"          # equality
missing_collectives = 0
step_us = "<= 850 ms"              # an operator, a number, a unit
exposed.tp = "<= 1.2 x ledger"     # a multiple of what the ledger, the baseline or the whole step says
rules = ["exposed.dp <= 0.05 x step"]

[levels]                           # off | warn | error; patterns as in a shell
"wait.*" = "off"
[tolerance]                        # of noisy metrics against the baseline
exposed.ep = "10 %"
[links]                            # GB/s that one GPU sends, for times from the ledger
intra_node = 450
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from analyzer.rows import DIM_ORDER
from parsers.errors import InputError

LEVELS = ("off", "warn", "error")
REFERENCES = ("ledger", "baseline", "step")
UNITS = {
    "": 1.0, "us": 1.0, "µs": 1.0, "ms": 1e3, "s": 1e6, "%": 0.01,
    "B": 1.0, "kB": 1e3, "MB": 1e6, "GB": 1e9, "GB/s": 1.0,
}  # fmt: skip
"""Factor to the unit of the metric: microseconds, bytes, shares of one, GB/s."""

_PLAIN = (
    "step_us", "step_us.p90", "compute_us", "exposed_us", "idle_us", "launch_gap_us", "bubble_us",
    "layout", "world_size", "missing_collectives", "extra_collectives", "ledger_residual_bytes",
)  # fmt: skip
_OF_DIM = ("exposed", "wait", "transfer", "overlap", "busbw")
_OF_ROW = ("calls", "bytes", "dtype", "groups")

_RULE = re.compile(r"\s*(?P<metric>[^\s<>=!]+)\s*(?P<limit>(?:<=|>=|==|!=|<|>|=).+)", re.DOTALL)
_LIMIT = re.compile(r"\s*(?P<op><=|>=|==|!=|<|>|=)?\s*(?P<rest>.+?)\s*", re.DOTALL)
_AMOUNT = re.compile(
    r"(?P<number>[-+]?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?)\s*(?:[x×*]\s*(?P<ref>\w+)|(?P<unit>[A-Za-zµ/%]*))"
)


@dataclass(frozen=True)
class Rule:
    """A limit.

    Attributes:
        metric: what is limited.
        op: one of <=, <, >=, >, ==, !=.
        value: the limit in the metric's unit, a factor of ``reference``, or a text to be equal to.
        reference: ledger | baseline | step | None.
        said: operator and limit as the user wrote them.
    """

    metric: str
    op: str
    value: float | str
    reference: str | None = None
    said: str = ""

    def __str__(self) -> str:
        return f"{self.metric} {self.said or f'{self.op} {self.value}'}"

    def holds(self, value: float | str, limit: float | str) -> bool:
        """Whether a value keeps the limit.

        Raises:
            InputError: a text is to be ordered.
        """
        if self.op in ("==", "!="):
            return (value == limit) == (self.op == "==")
        if isinstance(value, str) or isinstance(limit, str):
            raise InputError(f"{self}: only = and != compare words")
        return {"<=": value <= limit, "<": value < limit, ">=": value >= limit, ">": value > limit}[self.op]


@dataclass(frozen=True)
class Budget:
    """Limits, levels and tolerances.

    Attributes:
        rules: in the order of the file.
        levels: level by pattern; the last pattern that fits decides.
        tolerance: share by pattern, likewise.
        links: GB/s that one GPU sends, by kind of link.
    """

    rules: tuple[Rule, ...] = ()
    levels: Mapping[str, str] = field(default_factory=dict)
    tolerance: Mapping[str, float] = field(default_factory=dict)
    links: Mapping[str, float] = field(default_factory=dict)

    def level_of(self, metric: str, default: str) -> str:
        """What a failure of a metric means."""
        return next((level for p, level in list(self.levels.items())[::-1] if fnmatchcase(metric, p)), default)

    def tolerance_of(self, metric: str, default: float) -> float:
        """By how much a noisy metric may be worse than the baseline."""
        return next((share for p, share in list(self.tolerance.items())[::-1] if fnmatchcase(metric, p)), default)


def load_budget(path: str) -> Budget:
    """Read a budget.

    Raises:
        InputError: it is no budget; the message names the key.
        OSError: it cannot be read.
    """
    try:
        said = tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InputError(f"not TOML: {error}", path=path) from error
    try:
        return _budget(said)
    except InputError as error:
        raise InputError(error.message, path=path, hint=error.hint) from error


def _budget(said: Mapping[str, Any]) -> Budget:
    tables = {name: _table(said, name) for name in ("levels", "tolerance", "links")}
    rules = said.get("rules", [])
    if not isinstance(rules, list) or not all(isinstance(rule, str) for rule in rules):
        raise InputError("rules must be a list of texts such as 'exposed.tp <= 1.2 x ledger'")
    limits = {k: v for k, v in said.items() if k not in (*tables, "rules")}
    levels = dict(_flat(tables["levels"]))
    for name, level in levels.items():
        if level not in LEVELS:
            raise InputError(f"levels.{name}: {level!r} is none of {', '.join(LEVELS)}")
    return Budget(
        rules=(*(_limit(name, value) for name, value in _flat(limits)), *(parse_rule(rule) for rule in rules)),
        levels=levels,
        tolerance={name: parse_share(value, f"tolerance.{name}") for name, value in _flat(tables["tolerance"])},
        links={name: _speed(value, f"links.{name}") for name, value in _flat(tables["links"])},
    )


def _table(said: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    table = said.get(name, {})
    if not isinstance(table, dict):
        raise InputError(f"{name} must be a table: [{name}]")
    return table


def _flat(table: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Dotted keys without quotes are tables to TOML."""
    for name, value in table.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{prefix}{name}.")
        else:
            yield prefix + name, value


def parse_rule(text: str) -> Rule:
    """``METRIC OPERATOR VALUE``.

    Raises:
        InputError: it is none.
    """
    match = _RULE.fullmatch(text)
    if match is None:
        raise InputError(f"{text!r} is not a rule such as 'exposed.tp <= 1.2 x ledger'")
    return _limit(match["metric"], match["limit"])


def _limit(metric: str, said: object) -> Rule:
    if not _known(metric):
        raise InputError(f"{metric}: no such metric", hint="docs/ci.md lists them")
    if isinstance(said, bool):
        said = str(said).lower()
    if isinstance(said, (int, float)):
        return Rule(metric, "==", float(said), said=f"= {said}")
    match = _LIMIT.fullmatch(said) if isinstance(said, str) else None
    if match is None:
        raise InputError(f"{metric}: {said!r} is not a limit such as '<= 1.2 x ledger'")
    op = {"=": "==", None: "=="}.get(match["op"], match["op"])
    amount = _AMOUNT.fullmatch(match["rest"])
    if amount is None:
        word = match["rest"].strip("\"'")
        return Rule(metric, op, word, said=f"{match['op'] or '='} {word}")
    shown = f"{match['op'] or '='} {match['rest']}"
    if amount["ref"] is not None:
        if amount["ref"] not in REFERENCES:
            raise InputError(f"{metric}: {amount['ref']!r} is none of {', '.join(REFERENCES)}")
        return Rule(metric, op, float(amount["number"]), amount["ref"], shown)
    if amount["unit"] not in UNITS:
        raise InputError(f"{metric}: {amount['unit']!r} is no unit; there are {', '.join(u for u in UNITS if u)}")
    return Rule(metric, op, float(amount["number"]) * UNITS[amount["unit"]], said=shown)


def _known(metric: str) -> bool:
    if metric in _PLAIN or metric.startswith("layout."):
        return True
    head, _, rest = metric.partition(".")
    dim, _, primitive = rest.partition(".")
    if dim not in DIM_ORDER:
        return False
    return (head in _OF_DIM and primitive in ("", "p90")) or (head in _OF_ROW and bool(primitive))


def parse_share(said: object, what: str) -> float:
    """``3 %``, ``"3%"`` or ``0.03`` as a share of one.

    Raises:
        InputError: it is none.
    """
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*(%?)\s*", str(said))
    if isinstance(said, bool) or match is None:
        raise InputError(f"{what}: {said!r} is not a share such as '3 %'")
    return float(match[1]) / (100 if match[2] else 1)


def _speed(said: object, what: str) -> float:
    if isinstance(said, bool) or not isinstance(said, (int, float)) or said <= 0:
        raise InputError(f"{what}: {said!r} is not a speed in GB/s")
    return float(said)
