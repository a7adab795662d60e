"""Real GPU traces: every one gives a result whose parts add up, and what is known of it is asserted."""

from __future__ import annotations

from pathlib import Path

import pytest

from analyzer.model import Analysis
from analyzer.pipeline import analyze
from parsers.errors import InputError

REAL = (
    "ao_ep2_nccl",
    "ao_ep2_symmetric",
    "lightllm_ep8_decode",
    "lightllm_tp8_decode",
    "megatron_tp2_2024",
    "megatron_tp8_2024",
    "nanogpt_overlap_after",
    "nanogpt_overlap_before",
    "rccl_ddp8_mi300",
    "sglang_tp1_decode",
    "torchrec_mp4",
    "torchrec_resnet_dp2",
    "torchtitan_fsdp4_2026",
    "vllm_tp1_graphs",
    "vllm_tp8_b200",
    "hta/cpu_only_gloo300",
    "hta/df_index_resolver",
    "hta/distributed_info_unavailable",
    "hta/dlrm_8rank_v100",
    "hta/large_integer",
    "hta/nccl_parser_config",
    "hta/negative_queue_length",
    "hta/rank_non_gpu",
    "hta/rank_unavailable",
    "hta/trace_diff_control",
    "hta/trace_diff_test",
    "hta/trace_filter_2rank",
)


def analysed(shared: Path, name: str) -> Analysis:
    return analyze(shared / "data" / "real" / name)


@pytest.mark.parametrize("name", REAL)
def test_the_parts_of_every_result_add_up(shared: Path, name: str) -> None:
    found = analysed(shared, name)
    assert found.exposure is not None
    for part in (found.exposure, *found.exposure.by_rank):
        assert part.step_us > 0
        assert part.compute_us + part.exposed_us + part.memcpy_us + part.idle_us == pytest.approx(
            part.step_us, abs=1e-6
        )
        assert sum(d.exposed_us for d in part.by_dimension.values()) == pytest.approx(part.exposed_us, abs=1e-6)
        assert part.overlapped_us <= part.compute_us + 1e-6
        for time in part.by_dimension.values():
            assert min(time.busy_us, time.exposed_us, time.overlapped_us) >= 0
            assert time.exposed_us + time.overlapped_us == pytest.approx(time.busy_us, abs=1e-6)
    for row in found.collectives:
        if row.wait_us_per_step is not None and row.transfer_us_per_step is not None:
            assert row.wait_us_per_step + row.transfer_us_per_step == pytest.approx(row.time_us_per_step, abs=0.002)
        assert row.exposed_us_per_step >= 0
        assert (row.busbw_gbps is None) or (row.wait_us_per_step is not None)


def test_two_jobs_in_one_directory_are_told_apart(shared: Path) -> None:
    with pytest.raises(InputError, match=r"2 different jobs \(world size 1: .*rank0.*; world size 4: .*rank1"):
        analysed(shared, "torchtitan_mixed_runs_2026")


def test_the_ranks_of_the_older_job_alone_are_a_job(shared: Path) -> None:
    folder = shared / "data" / "real" / "torchtitan_mixed_runs_2026"
    found = analyze([folder / f"rank{r}.json.gz" for r in (1, 2, 3)])
    assert found.trust.ranks_missing == [0]
    assert found.world_size == 4


def test_fsdp_on_four_h100_waits_far_more_than_it_transfers(shared: Path) -> None:
    found = analysed(shared, "torchtitan_fsdp4_2026")
    assert found.trust.clock.aligned
    assert found.trust.clock.residual_us is not None
    assert found.trust.clock.residual_us < 10
    sent = {
        (r.primitive, r.dtype): (r.calls_per_step, r.sent_bytes_per_step) for r in found.collectives if r.dim == "dp"
    }
    # 15 gathers in bf16; 8 scatters of 6,163,712 float32 gradients over four ranks.
    assert sum(r.calls_per_step for r in found.collectives if (r.dim, r.primitive) == ("dp", "all_gather")) == 15
    assert sent["reduce_scatter", "float32"] == (8, 6_163_712 * 4 * 3 // 4)
    dp = next(iter(found.exposure.by_dimension.values())) if found.exposure else None
    assert dp is not None
    assert dp.wait_us is not None
    assert dp.transfer_us is not None
    assert dp.wait_us > 10 * dp.transfer_us


def test_the_late_rank_of_that_job_costs_the_others_what_they_waited(shared: Path) -> None:
    """Rank 2 never waits: what it is late by is the exposed waiting of each of the other three."""
    found = analysed(shared, "torchtitan_fsdp4_2026")
    (late,) = found.stragglers
    assert found.exposure is not None
    waiting = sum(cause.exposed_us for cause in found.exposure.causes if cause.cause == "waiting")
    assert late.rank == 2
    assert late.late_us_per_step == pytest.approx(waiting * 4 / 3, rel=0.02)
    assert late.cause == "host gap before launch"


def test_every_collective_of_dlrm_is_waiting_plus_transfer(shared: Path) -> None:
    found = analysed(shared, "hta/dlrm_8rank_v100")
    assert found.trust.clock.aligned
    assert found.trust.clock.residual_us is not None
    assert found.trust.clock.residual_us < 5
    assert len(found.trust.clock.offset_us) == 8
    for row in found.collectives:
        assert row.wait_us_per_step is not None
        assert row.transfer_us_per_step is not None
        assert row.wait_us_per_step + row.transfer_us_per_step == pytest.approx(row.time_us_per_step, abs=0.002)


def test_tensor_parallel_inference_sends_what_its_activations_say(shared: Path) -> None:
    found = analysed(shared, "megatron_tp8_2024")
    (row,) = (r for r in found.collectives if r.dtype == "float16")
    # 81 all-reduces of 4 x 2048 x 4096 float16 over eight ranks: 2·7/8 of each.
    assert (row.dim, row.calls_per_step) == ("tp", 81)
    assert row.sent_bytes_per_step == 81 * 2 * 7 * (4 * 2048 * 4096 * 2) // 8
    assert row.link_type == "nvlink"


def test_a_cpu_only_profile_of_a_gpu_job_says_so(shared: Path) -> None:
    found = analysed(shared, "hta/rank_non_gpu")
    assert any("no GPU ran" in warning for warning in found.trust.warnings)
