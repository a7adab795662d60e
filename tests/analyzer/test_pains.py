"""Reported faults of other tools, as small traces with the right answer beside them (`data/pains`)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from analyzer.model import Analysis, Exposure
from analyzer.pipeline import analyze


@pytest.fixture(scope="module")
def expect(shared: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((shared / "data" / "pains" / "EXPECT.json").read_text())
    return found


def analysed(shared: Path, name: str) -> Analysis:
    return analyze(shared / "data" / "pains" / name)


def step(analysis: Analysis) -> Exposure:
    assert analysis.exposure is not None
    return analysis.exposure


def causes(analysis: Analysis) -> dict[str, float | None]:
    assert analysis.exposure is not None
    return {f"cause.{c.cause}": c.exposed_us for c in analysis.exposure.causes}


def detail(analysis: Analysis, kind: str) -> str:
    (found,) = (f for f in analysis.findings if f.id == kind)
    return found.detail


def test_raw_characters_in_names_are_repaired(shared: Path, expect: dict[str, Any]) -> None:
    said = expect["01_invalid_escape"]
    found = analysed(shared, "01_invalid_escape")
    assert ([item.events for item in found.inputs], found.trust.events_repaired) == ([said["events"]], said["repaired"])
    assert {"lone backslashes: 1", "quotes inside strings: 1", "raw control characters: 1"} <= set(found.trust.warnings)
    assert "first damage at byte 336" in found.trust.warnings


def test_a_cut_gzip_gives_every_event_it_holds(shared: Path, expect: dict[str, Any]) -> None:
    said = expect["03_cut_gzip"]
    found = analysed(shared, "03_cut_gzip")
    (item,) = found.inputs
    assert item.complete is said["complete"]
    assert item.events >= said["min_events"]
    assert any(warning.startswith("the last event read begins at ") for warning in found.trust.warnings)


def test_two_writers_in_one_file_are_a_finding(shared: Path, expect: dict[str, Any]) -> None:
    found = analysed(shared, "05_two_writers")
    titles = [f.title for f in found.findings if f.id == "trace.two_writers"]
    assert titles == [expect["05_two_writers"]["finding"] + " in one file"] * 2
    assert any("a second header begins at byte 5001" in warning for warning in found.trust.warnings)


def test_missing_values_are_never_summed(shared: Path, expect: dict[str, Any]) -> None:
    said = expect["02_inf_nan"]
    found = analysed(shared, "02_inf_nan")
    assert found.trust.events_repaired == said["missing_values"]
    assert sum(row.time_us_per_step for row in found.collectives) == said["comm_us_per_step"]


def test_a_cut_file_measures_the_steps_that_are_whole(shared: Path, expect: dict[str, Any]) -> None:
    found = analysed(shared, "04_cut_json")
    assert len(found.trust.steps.complete) == expect["04_cut_json"]["complete_steps"]
    assert [i.complete for i in found.inputs] == [False]
    assert "trace.cut" in {f.id for f in found.findings}
    assert step(found).step_us == 6000


def test_ranks_that_are_missing_or_there_twice(shared: Path, expect: dict[str, Any]) -> None:
    said = expect["06_rank_identity"]
    found = analysed(shared, "06_rank_identity")
    assert sorted(i.rank for i in found.inputs if i.rank is not None) == said["ranks"]
    assert found.trust.ranks_duplicated == said["duplicate"]
    assert found.trust.ranks_missing == said["missing"]


def test_steps_that_nobody_marked_are_found(shared: Path, expect: dict[str, Any]) -> None:
    said = expect["07_no_profiler_step"]
    found = analysed(shared, "07_no_profiler_step")
    assert (found.trust.steps.source == "inferred") is said["inferred"]
    assert len(found.trust.steps.complete) == said["steps"]
    assert step(found).step_us == said["step_us"]


def test_impossible_times_do_not_stretch_the_step(shared: Path, expect: dict[str, Any]) -> None:
    said = expect["08_zero_negative_time"]
    found = analysed(shared, "08_zero_negative_time")
    assert found.trust.events_quarantined == said["quarantined"]
    assert step(found).step_us == said["step_us"]
    assert step(found).compute_us == 4000


def test_durations_that_outlast_their_stream_are_cut(shared: Path, expect: dict[str, Any]) -> None:
    said = expect["09_impossible_duration"]
    found = analysed(shared, "09_impossible_duration")
    assert found.trust.events_clipped == said["impossible"]
    busy = step(found).compute_us + step(found).memcpy_us
    assert 19_000 <= busy <= said["gpu_busy_us_max"]


def test_the_display_unit_is_not_the_unit_of_time(shared: Path, expect: dict[str, Any]) -> None:
    folder = shared / "data" / "pains" / "10_display_time_unit"
    in_ms, in_ns = (analyze(folder / name) for name in ("ms.json", "ns.json"))
    assert in_ms.exposure == in_ns.exposure
    assert in_ms.collectives == in_ns.collectives
    assert step(in_ms).step_us == expect["10_display_time_unit"]["step_us"]


def test_waiting_for_a_late_rank_is_not_transfer(shared: Path, expect: dict[str, Any]) -> None:
    said = expect["11_wait_not_transfer"]
    found = analysed(shared, "11_wait_not_transfer")
    offsets = {str(rank): float(us) for rank, us in enumerate(said["clock_offsets_us"])}
    assert found.trust.clock.offset_us == offsets
    assert [(s.rank, s.late_us_per_step) for s in found.stragglers] == [(said["late_rank"], said["wait_us_others"])]
    for rank in step(found).by_rank:
        (time,) = rank.by_dimension.values()
        assert time.transfer_us == said["transfer_us"]
        assert time.wait_us == (0 if rank.rank == said["late_rank"] else said["wait_us_others"])


def test_two_ranks_with_the_same_identifiers_stay_two_ranks(shared: Path, expect: dict[str, Any]) -> None:
    found = analysed(shared, "12_id_collision")
    assert found.trust.ranks_present == expect["12_id_collision"]["ranks"]
    assert [rank.exposed_us for rank in step(found).by_rank] == [400, 400]


def test_operations_are_believed_and_kernel_names_are_not(shared: Path, expect: dict[str, Any]) -> None:
    found = analysed(shared, "13_name_lies")
    calls: dict[str, float] = {}
    for row in found.collectives:
        calls[row.primitive] = calls.get(row.primitive, 0) + row.calls_per_step
    assert calls == expect["13_name_lies"]["by_op"]
    assert "comm.name_conflict" in {f.id for f in found.findings}


def test_expert_kernels_are_communication(shared: Path, expect: dict[str, Any]) -> None:
    said = expect["14_deepep"]
    found = analysed(shared, "14_deepep")
    assert sum(row.calls_per_step for row in found.collectives if row.dim == "ep") == said["ep_kernels"]
    ep = step(found).by_dimension["ep"]
    assert (ep.busy_us, ep.exposed_us) == (said["comm_us"], said["exposed_us"])


def test_gathering_again_in_backward_is_explained(shared: Path, expect: dict[str, Any]) -> None:
    said = expect["18_tp_sp_regather"]
    found = analysed(shared, "18_tp_sp_regather")
    calls = {row.primitive: 0.0 for row in found.collectives}
    for row in found.collectives:
        calls[row.primitive] += row.calls_per_step
    assert calls == {"all_gather": said["all_gather"], "reduce_scatter": said["reduce_scatter"]}
    assert "tp.regather" in {f.id for f in found.findings}


def test_a_step_whose_kernels_were_dropped_is_not_complete(shared: Path, expect: dict[str, Any]) -> None:
    found = analysed(shared, "19_dropped_kernels")
    said = expect["19_dropped_kernels"]
    assert found.trust.steps.incomplete == said["incomplete_steps"]
    assert f"{said['launches_without_kernel']} launches left nothing on the GPU" in found.trust.warnings


def test_gathers_without_prefetch_are_exposed_whole(shared: Path, expect: dict[str, Any]) -> None:
    found = analysed(shared, "20_fsdp_no_prefetch")
    said = expect["20_fsdp_no_prefetch"]
    assert (step(found).exposed_us, step(found).overlapped_us) == (said["exposed_us_per_step"], said["overlapped_us"])
    assert causes(found) == {"cause.no_prefetch": said["exposed_us_per_step"]}
    assert "after the previous layer's compute" in detail(found, "cause.no_prefetch")


def test_only_the_last_bucket_is_exposed(shared: Path, expect: dict[str, Any]) -> None:
    analysis = analysed(shared, "21_last_bucket")
    found, said = step(analysis), expect["21_last_bucket"]
    assert causes(analysis) == {"cause.last_bucket": said["exposed_us_per_step"]}
    assert (found.exposed_us, found.overlapped_us) == (said["exposed_us_per_step"], said["overlapped_us_per_step"])
    assert 100 * found.exposed_us / found.step_us == pytest.approx(said["exposed_pct"], abs=0.01)


def test_nccl_on_the_compute_stream_is_found(shared: Path, expect: dict[str, Any]) -> None:
    found = analysed(shared, "22_nccl_on_compute_stream")
    said = expect["22_nccl_on_compute_stream"]
    assert (step(found).compute_us, step(found).exposed_us) == (said["compute_us"], said["exposed_us"])
    assert said["finding"] in {f.title for f in found.findings}


def test_the_same_kernel_is_slower_beside_communication(shared: Path, expect: dict[str, Any]) -> None:
    said = expect["23_overlap_tax"]
    (tax,) = (f for f in analysed(shared, "23_overlap_tax").findings if f.id == "overlap.tax")
    assert tax.cost_us == said["tax_us"]
    assert f"{said['slowdown']:.3f} times" in tax.detail


def test_the_late_rank_waits_least_and_what_held_it_up_is_named(shared: Path, expect: dict[str, Any]) -> None:
    said = expect["24_late_rank"]
    found = analysed(shared, "24_late_rank")
    (late,) = found.stragglers
    assert (late.rank, late.late_us_per_step) == (said["culprit"], said["wait_us_others"])
    assert late.cause is not None
    assert said["cause_cpu_op"] in late.cause
    for rank in step(found).by_rank:
        (time,) = rank.by_dimension.values()
        assert time.transfer_us is not None
        assert time.transfer_us <= said["transfer_us_max"]
        assert time.wait_us == (0 if rank.rank == said["culprit"] else said["wait_us_others"])


def test_receives_that_wait_are_bubble_and_not_communication(shared: Path, expect: dict[str, Any]) -> None:
    said = expect["25_bubble_as_recv"]
    found = analysed(shared, "25_bubble_as_recv")
    assert found.pipeline is not None
    assert found.pipeline.bubble_fraction.observed == pytest.approx(said["bubble_fraction"], rel=0.005)
    assert len(found.pipeline.stage_of_rank) == said["pp"]
    assert {r.size_bytes.max for r in found.collectives if r.size_bytes} == {said["transfer_bytes"]}
    assert set(causes(found)) == {"cause.bubble"}
