"""Forward, backward or optimizer."""

from __future__ import annotations

from heuristics.label import label
from tests.heuristics.traces import AUTOGRAD, MAIN, TraceMaker

BACKWARD = "autograd::engine::evaluate_function: MmBackward0"


def _call(make: TraceMaker, at: float, tid: int = MAIN, collective: str = "allreduce") -> None:
    make.metadata(collective, at, 5, tid, in_nelems=4, out_nelems=4, dtype="Float", group_size=2)


def _phases(make: TraceMaker, threads: dict[int, str] | None = None) -> list[str]:
    phases: list[str] = label(make.done(metadata={"threads": threads or {}})).collectives["phase"].to_pylist()
    return phases


def test_marks_around_a_call_decide() -> None:
    make = TraceMaker()
    make.step(0, 0, 1000)
    make.mark("autograd", BACKWARD, 100, 50)
    make.mark("optimizer", "Optimizer.step#AdamW.step", 300, 50)
    make.mark("annotation", "FSDP::pre_backward (layers.0)", 200, 50)
    make.mark("annotation", "FSDP::pre_forward (layers.0)", 20, 20)
    for at in (25, 110, 210, 310):
        _call(make, at)
    assert _phases(make) == ["forward", "backward", "backward", "optimizer"]


def test_what_precedes_backward_is_forward_and_what_follows_it_is_the_optimizers() -> None:
    make = TraceMaker()
    for k in range(2):
        make.step(k, 1000 * k, 1000)
        make.mark("autograd", BACKWARD, 1000 * k + 300, 50)
        make.mark("autograd", BACKWARD, 1000 * k + 500, 50)
        for at in (100, 400, 600, 900):
            _call(make, 1000 * k + at)
    assert _phases(make) == ["forward", "forward", "optimizer", "optimizer"] * 2


def test_messages_between_stages_are_left_open() -> None:
    make = TraceMaker()
    make.mark("autograd", BACKWARD, 300, 50)
    _call(make, 100, collective="send")
    _call(make, 310, collective="recv")
    _call(make, 400, collective="send")
    assert _phases(make) == ["unknown", "backward", "unknown"]


def test_autograds_own_thread_is_backward() -> None:
    make = TraceMaker()
    make.step(0, 0, 1000)
    make.mark("autograd", BACKWARD, 300, 50, AUTOGRAD)
    _call(make, 400, AUTOGRAD)
    _call(make, 200)
    assert _phases(make) == ["forward", "backward"]
    named = TraceMaker()
    _call(named, 400, AUTOGRAD)
    _call(named, 500)
    assert _phases(named, {AUTOGRAD: "thread 200 (pt_autograd_0)"}) == ["backward", "unknown"]


def test_pipeline_actions_are_phases() -> None:
    make = TraceMaker()
    for i, action in enumerate(("PP:0F1", "PP:0SEND_F1", "PP:3B2", "PP:3W2")):
        make.mark("annotation", action, 100 * i, 50)
        _call(make, 100 * i + 10)
    assert _phases(make) == ["forward", "forward", "backward", "backward"]


def test_without_any_backward_nothing_is_said() -> None:
    make = TraceMaker()
    make.step(0, 0, 1000)
    _call(make, 100)
    assert _phases(make) == ["unknown"]
