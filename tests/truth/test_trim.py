"""Making a trace small must not change what it says about communication and about the time spent computing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from sample_traces.capture.trim import NEGLIGIBLE, trim
from sample_traces.capture.truth import readme

PID = 7


def event(name: str, ts: float, dur: float, *, tid: int = 1, cat: str = "cpu_op") -> dict[str, Any]:
    return {"ph": "X", "cat": cat, "name": name, "pid": PID, "tid": tid, "ts": ts, "dur": dur, "args": {"Ev Idx": 1}}


def trimmed(*events: dict[str, Any]) -> list[str]:
    return [kept["name"] for kept in trim(trace(*events), rank=3)["traceEvents"]]


def trace(*events: dict[str, Any]) -> dict[str, Any]:
    group = {"pg_name": "0", "backend_config": "cpu:recorded_gloo", "ranks": [0, 1]}
    return {
        "schemaVersion": 1,
        "host_name": "some-machine",
        "traceName": "/home/someone/rank3.json",
        "distributedInfo": {"backend": "recorded_gloo", "rank": 3, "world_size": 4, "pg_config": [group]},
        "traceEvents": list(events),
    }


def test_an_operator_stands_for_those_inside_it() -> None:
    assert trimmed(event("aten::linear", 0, 100), event("aten::mm", 10, 80)) == ["aten::linear"]


def test_an_operator_around_communication_gives_way_to_its_parts() -> None:
    outer, mm = event("Redistribute", 0, 100), event("aten::cat", 5, 20)
    call, record = event("c10d::allreduce_", 30, 60), event("record_param_comms", 35, 50)
    assert trimmed(outer, mm, call, record) == ["aten::cat", "c10d::allreduce_", "record_param_comms"]


def test_operators_that_carry_out_communication_are_not_compute() -> None:
    gloo = event("gloo:all_reduce", 0, 100, tid=2, cat="user_annotation")
    assert trimmed(gloo, event("aten::copy_", 10, 50, tid=2)) == ["gloo:all_reduce"]


def test_compute_beside_a_message_in_flight_stays() -> None:
    flight = event("gloo:recv", 0, 100, cat="user_annotation")
    assert trimmed(flight, event("aten::mm", 10, 50)) == ["gloo:recv", "aten::mm"]


def test_backward_nodes_stay_around_what_is_kept() -> None:
    node = event("autograd::engine::evaluate_function: MmBackward0", 0, 100)
    empty = event("autograd::engine::evaluate_function: TBackward0", 200, 1)
    assert trimmed(node, event("MmBackward0", 1, 98), event("aten::mm", 2, 90), empty) == [node["name"], "MmBackward0"]


def test_the_shortest_operators_go_up_to_the_negligible_share() -> None:
    long = [event("aten::mm", 1000 * i, 100) for i in range(9)]
    short = [event("aten::view", 1000 * i + 500, 1) for i in range(30)]
    kept = trimmed(*long, *short)
    lost = len(short) - kept.count("aten::view")
    assert kept.count("aten::mm") == len(long)
    assert lost == int(NEGLIGIBLE * (9 * 100 + 30))


def test_attention_inside_another_operator_stays() -> None:
    whole, part = event("aten::scaled_dot_product_attention", 0, 100), event("aten::_scaled_dot_product_flash", 1, 90)
    assert trimmed(whole, part) == [whole["name"], part["name"]]


def test_times_and_groups_stay_and_the_machine_is_forgotten() -> None:
    before = trace(event("c10d::allreduce_", 1.25, 3.5))
    after = trim(before, rank=3)
    assert {key: after["traceEvents"][0][key] for key in ("ts", "dur", "tid")} == {"ts": 1.25, "dur": 3.5, "tid": 1}
    assert (after["host_name"], after["traceName"]) == ("node0", "rank3.json")
    assert after["distributedInfo"]["backend"] == "gloo"
    assert after["distributedInfo"]["pg_config"][0]["ranks"] == [0, 1]
    assert before["host_name"] == "some-machine"


def test_the_table_of_samples_is_the_one_that_the_truth_files_give(sample_traces: Path) -> None:
    assert (sample_traces / "README.md").read_text(encoding="utf-8") == readme(sample_traces)
