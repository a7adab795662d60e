"""What CONTRIBUTING.md says of tests holds for every one of them: it asserts something."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from benchmarks.docs import ROOT

ASSERTING = frozenset({"raises", "warns", "fail"})
"""Calls of pytest that can fail a test by themselves."""

Function = ast.FunctionDef | ast.AsyncFunctionDef


def functions(text: str) -> Iterator[Function]:
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, Function):
            yield node


def called(function: Function) -> set[str]:
    calls = [node.func for node in ast.walk(function) if isinstance(node, ast.Call)]
    return {call.attr if isinstance(call, ast.Attribute) else getattr(call, "id", "") for call in calls}


def asserts(function: Function) -> bool:
    """Whether there is an assertion of more than a constant, or a call that is one."""
    tests = [node.test for node in ast.walk(function) if isinstance(node, ast.Assert)]
    return any(not isinstance(test, ast.Constant) for test in tests) or not ASSERTING.isdisjoint(called(function))


def silent(texts: dict[str, str]) -> list[str]:
    """Tests that neither assert anything nor call a function of the tests that does."""
    every = [(name, function) for name, text in texts.items() for function in functions(text)]
    loud = {function.name for _, function in every if asserts(function)}
    while more := {f.name for _, f in every if f.name not in loud and not loud.isdisjoint(called(f))}:
        loud |= more
    return sorted(f"{name}: {f.name}" for name, f in every if f.name.startswith("test_") and f.name not in loud)


def test_what_is_silent_is_told_from_what_asserts() -> None:
    text = """
def helper(x): assert x == 1
def by_helper(x): helper(x)
def test_a(): assert f() == 2
def test_b(): by_helper(1)
def test_c():
    with pytest.raises(ValueError): f()
def test_d(): f()
def test_e(): assert True
"""
    assert silent({"x.py": text}) == ["x.py: test_d", "x.py: test_e"]


def test_no_test_only_sees_that_nothing_was_raised() -> None:
    paths = sorted(Path(ROOT / "tests").rglob("*.py"))
    assert len(paths) > 150
    assert silent({str(path.relative_to(ROOT)): path.read_text(encoding="utf-8") for path in paths}) == []
