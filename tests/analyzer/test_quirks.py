"""Single behaviours on which another tool's overlap goes wrong (`data/quirks`): half of communication is hidden."""

from __future__ import annotations

from pathlib import Path

import pytest

from analyzer.pipeline import analyze

HALF = (
    "q00_control",
    "q01_stream_wait_event",
    "q02_triton_cpu_op_stream0",
    *(f"q03_comm_name_{i:02d}" for i in range(10)),
    "q04_p2p_memcpy",
    "q05_compact_json",
    "q06_no_distinfo",
    "q07_single_step",
    "q08_no_steps",
    "q11_truncated",
    "q12_nan_inf",
    "q13_bad_utf8_ctrl",
    "q14_list_root",
    "q15_gpu_only_with_steps",
    "q17_dup_correlation",
    "q19_two_devices",
    "q20_str_stream",
    "q21_default_stream0",
    "q22_straggler_devkernel",
    "q23_straggler_oldname",
    "q24_nccl_meta",
    "q25_gpu_user_annot",
    "q26_base_time_differs",
    "q27_mixed_steps",
    "q29_distinfo_string",
    "q30_rank_elsewhere",
    "q31_batch_norm_sync",
    "q32_tma_dma",
    "q34_rccl_name",
    "q35_hip_compute",
    "q37_extra_json_in_dir",
    "q38_dup_rank_two_files",
)
OTHERS = {
    "q10_comm_only": 0.0,
    "q16_ns_short": 37.5,  # 0.6 of 1.6 µs
    "q28_tail_comm": 100 * 4000 / 13000,  # 4 ms twice, half hidden, and 5 ms that were launched last
    "q18_cuda_graph": 70.0,  # 400 + 200 of 800 µs four times, 400 of 800 once
}


@pytest.mark.parametrize(("name", "percent"), [*((name, 50.0) for name in HALF), *OTHERS.items()])
def test_overlap_is_what_the_events_say(shared: Path, name: str, percent: float) -> None:
    exposure = analyze(shared / "data" / "quirks" / name).exposure
    assert exposure is not None
    comm = exposure.exposed_us + exposure.overlapped_us
    assert 100 * exposure.overlapped_us / comm == pytest.approx(percent, abs=0.001)


@pytest.mark.parametrize("name", ["q09_no_comm", "q33_hipmemcpy", "q36_stream_sync_in_idle_gap"])
def test_nothing_is_taken_for_communication(shared: Path, name: str) -> None:
    found = analyze(shared / "data" / "quirks" / name)
    assert found.exposure is not None
    assert (found.exposure.exposed_us, found.exposure.overlapped_us) == (0, 0)
    assert found.collectives == []
    assert "comm.none" in {f.id for f in found.findings}
