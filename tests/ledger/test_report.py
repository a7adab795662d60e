import pytest

from ledger.errors import LedgerError
from ledger.parallel import ParallelConfig, collective_bytes, predict, predict_stage
from ledger.presets import preset
from ledger.profiles import PROFILES, profile
from ledger.report import prediction

SHORT = ParallelConfig.parse("tp8-cp1-pp16-dp128", zero_stage=1, microbatches=16)


def test_the_whole_ledger_of_the_405b_layout():
    whole = prediction(preset("llama3-405b"), SHORT)
    assert (whole.profile, whole.parameters, whole.active_parameters) == ("textbook", 405_853_388_800, 405_853_388_800)
    assert round(whole.bubble.share_of_total, 3) == 0.484
    (stage,) = whole.memory
    assert (stage.stage, stage.layers, stage.microbatches_in_flight) == ("all", 7.875, 16)
    assert stage.activation_bytes_per_layer == 544 * 2**20
    assert round(stage.state.total_bytes / 2**30, 2) == 12.09
    assert round(whole.sent_bytes(link="intra_node") / 2**30, 2) == 220.5
    assert round(whole.sent_bytes(link="inter_node") / 2**30, 2) == 12.72
    assert round(whole.sent_bytes() / 2**30, 2) == 233.22
    assert whole.noise == ()


def test_stages_are_told_apart_and_totals_add_up():
    whole = prediction(preset("llama3-405b"), SHORT, "megatron")
    assert [(stage.stage, stage.layers) for stage in whole.memory] == [("first", 7), ("middle", 8), ("last", 7)]
    assert [stage.microbatches_in_flight for stage in whole.memory] == [16, 15, 1]
    for stage in whole.memory:
        by_row = sum(row.sent_bytes_per_step for row in whole.rows if row.stage in ("all", stage.stage))
        by_dim = sum(whole.sent_bytes(stage.stage, dim=dim) for dim in ("tp", "cp", "pp", "dp", "ep"))
        assert by_row == by_dim == whole.sent_bytes(stage.stage)
    assert whole.sent_bytes() == whole.sent_bytes("middle")
    # float32 gradients: 2 + 4 bytes held whole, 12 sharded
    middle = whole.memory[1]
    assert middle.state.grads_bytes == 4 * middle.parameters == 2 * middle.state.params_bytes
    assert whole.config.grad_dtype == "float32"
    assert {row.noise for row in whole.noise} == {True}


def test_one_stage_is_what_the_merged_rows_say():
    merged = predict(preset("llama3-405b"), SHORT, "megatron")
    for index, kind in ((0, "first"), (5, "middle"), (15, "last")):
        exact = predict_stage(preset("llama3-405b"), SHORT, index, "megatron")
        listed = [row for row in merged if row.stage in ("all", kind)]
        assert sum(row.sent_bytes_per_step for row in exact) == sum(row.sent_bytes_per_step for row in listed)
        assert len(exact) == len(listed)


def test_two_stages_have_no_middle():
    rows = predict(preset("llama3-8b"), ParallelConfig(pp=2, microbatches=4), "megatron")
    assert {row.stage for row in rows} <= {"all", "first", "last"}


def test_servers_hold_weights_only():
    whole = prediction(preset("llama3-70b"), ParallelConfig(tp=8, seq_len=16), "inference")
    (stage,) = whole.memory
    assert (stage.state.grads_bytes, stage.state.optim_bytes, stage.activation_bytes) == (0, 0, 0)
    # norms are whole on every rank
    norms = 161 * 8192
    assert stage.state.params_bytes == 2 * ((70_553_706_496 - norms) // 8 + norms)


def test_torchtitan_stores_float32_parameters_sharded():
    (stage,) = prediction(preset("llama3-8b"), ParallelConfig(dp=8, zero_stage=3), "torchtitan").memory
    assert stage.state.params_bytes == stage.state.grads_bytes == 4 * 8_030_261_248 // 8
    assert stage.state.total_bytes == 16 * 8_030_261_248 // 8


def test_profiles_are_found_by_name():
    assert {"textbook", "megatron", "torchtitan", "deepspeed", "hf", "inference"} <= set(PROFILES)
    assert all(PROFILES[name].name == name and PROFILES[name].title for name in PROFILES)
    with pytest.raises(LedgerError, match="did you mean megatron"):
        profile("megatrn")
    with pytest.raises(LedgerError, match="known: textbook"):
        profile("zzz")


def test_a_model_that_does_not_fill_the_pipeline_is_refused():
    with pytest.raises(LedgerError, match="32 layers cannot fill 64"):
        prediction(preset("llama3-8b"), ParallelConfig(pp=64), "megatron")


def test_frameworks_without_sequence_parallelism_do_not_assume_it():
    config = ParallelConfig(tp=8, seq_len=64)
    for name, split in (
        ("textbook", True),
        ("megatron", True),
        ("hf", False),
        ("deepspeed", False),
        ("inference", False),
    ):
        assert profile(name).resolve(config).sequence_parallel is split
        said = profile(name).resolve(ParallelConfig(tp=8, seq_len=64, sequence_parallel=not split))
        assert said.sequence_parallel is not split


@pytest.mark.parametrize("name", PROFILES)
@pytest.mark.parametrize("zero", [0, 1, 2, 3])
@pytest.mark.parametrize("recompute", ["none", "selective", "full"])
def test_bytes_are_calls_times_what_one_call_sends(name, zero, recompute):
    config = ParallelConfig(
        tp=2, cp=2, pp=2, dp=4, ep=2, zero_stage=zero, microbatches=4, seq_len=64, recompute=recompute,
        hsdp_shard=2 if zero else None,
    )  # fmt: skip
    rows = predict(preset("qwen3-30b-a3b"), config, name)
    assert rows
    for row in rows:
        one_call = collective_bytes(row.primitive, row.group_size, row.payload_bytes)
        if row.part == "ring attention" and row.primitive == "all_to_all":  # all of it goes to one peer
            one_call = row.payload_bytes
        assert row.sent_bytes_per_step == row.calls_per_step * one_call > 0
