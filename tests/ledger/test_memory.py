from dataclasses import replace

import pytest

from ledger.errors import LedgerError
from ledger.memory import activation_bytes, activation_bytes_per_layer, per_gpu_state, stage_state, state_bytes
from ledger.model import ModelSpec, MoESpec
from ledger.parallel import ParallelConfig
from ledger.presets import preset
from ledger.stages import pipeline_stage

N70 = 70_553_706_496


def gigabytes(state):
    parts = (state.params_bytes, state.grads_bytes, state.optim_bytes, state.total_bytes)
    return tuple(round(part / 1e9, 1) for part in parts)


def test_sixteen_bytes_per_parameter_in_either_precision():
    assert state_bytes(1).total_bytes == 16
    assert state_bytes(1, "fp32").total_bytes == 16
    assert (state_bytes(1).params_bytes, state_bytes(1).grads_bytes, state_bytes(1).optim_bytes) == (2, 2, 12)
    assert (state_bytes(1, "fp32").params_bytes, state_bytes(1, "fp32").optim_bytes) == (4, 8)
    assert state_bytes(1, grad_dtype="float32").total_bytes == 18
    assert state_bytes(1, optimizer="sgd").optim_bytes == 4


def test_whole_models_hold_terabytes():
    assert round(state_bytes(N70).total_bytes / 1e12, 2) == 1.13
    assert round(state_bytes(405_853_388_800).total_bytes / 1e12, 1) == 6.5


@pytest.mark.parametrize(
    ("zero", "expected"),
    [
        # (params, grads, optimizer, total) of 70.6 B parameters over 64 ranks
        (0, (141.1, 141.1, 846.6, 1128.9)),
        (1, (141.1, 141.1, 13.2, 295.4)),  # 4N + 12N/64
        (2, (141.1, 2.2, 13.2, 156.5)),  # 2N + 14N/64
        (3, (2.2, 2.2, 13.2, 17.6)),  # 16N/64
    ],
)
def test_the_70b_state_table(zero, expected):
    config = ParallelConfig(dp=64, zero_stage=zero)
    assert gigabytes(per_gpu_state(preset("llama3-70b"), config, state_bytes(N70))) == expected


def test_zero_1_alone_removes_74_per_cent():
    whole = state_bytes(N70).total_bytes
    left = per_gpu_state(preset("llama3-70b"), ParallelConfig(dp=64, zero_stage=1), state_bytes(N70)).total_bytes
    assert round(1 - left / whole, 2) == 0.74


def test_hsdp_saves_by_its_shard_group_only():
    model, whole = preset("llama3-70b"), state_bytes(N70)
    small = ParallelConfig(dp=1024, zero_stage=3, hsdp_shard=8)
    assert round(per_gpu_state(model, small, whole).total_bytes / 1e9) == 141
    large = replace(small, hsdp_shard=64)
    assert round(per_gpu_state(model, large, whole).total_bytes / 1e9, 1) == 17.6


def test_405b_holds_13_gigabytes_and_up_to_73_in_flight():
    model = preset("llama3-405b")
    config = ParallelConfig.parse("tp8-cp1-pp16-dp128", zero_stage=1, microbatches=16)
    state = per_gpu_state(model, config, state_bytes(model.parameters))
    assert round(state.total_bytes / 1e9) == 13
    assert round(activation_bytes(model, config, 0, layers=8) / 1e9) == 73


def test_experts_are_sharded_over_their_own_copies():
    model = ModelSpec(
        layers=2, hidden=64, ffn=256, heads=4, vocab=128, moe=MoESpec(experts=16, top_k=2, expert_ffn=256)
    )
    config = ParallelConfig(dp=8, ep=4, zero_stage=1)
    state = per_gpu_state(model, config, state_bytes(model.parameters))
    dense = model.parameters - model.expert_parameters
    assert state.params_bytes == 2 * (dense + model.expert_parameters // 4)
    # dense optimizer states over 8 ranks, the experts' over 8/4 = 2
    assert state.optim_bytes == 12 * dense // 8 + 12 * model.expert_parameters // 4 // 2


def test_a_stage_holds_its_own_weights():
    model = preset("llama3-8b")
    config = ParallelConfig.parse("tp2-pp2-dp4", zero_stage=1)
    first, last = (stage_state(pipeline_stage(model, config, index)) for index in (0, 1))
    embedding, layer = 128256 * 4096 // 2, (218_112_000 - 2 * 4096) // 2 + 2 * 4096
    assert first.params_bytes == 2 * (16 * layer + embedding)
    assert last.params_bytes == first.params_bytes + 2 * 4096  # the final norm
    assert first.optim_bytes == 12 * (16 * layer + embedding) // 4


def test_activations_of_a_layer():
    model = preset("llama3-70b")
    whole = ParallelConfig(seq_len=8192)
    assert round(activation_bytes_per_layer(model, whole) / 1e9, 1) == 2.3  # 34·s·b·h
    split = replace(whole, tp=8)
    assert activation_bytes_per_layer(model, split) == 34 * 8192 * 8192 // 8
    boundary_whole = replace(split, sequence_parallel=False)
    assert activation_bytes_per_layer(model, boundary_whole) == (10 + 24 // 8) * 8192 * 8192
    assert activation_bytes_per_layer(model, replace(split, recompute="full")) == 2 * 8192 * 8192 // 8
    scores = activation_bytes_per_layer(model, split, flash=False) - activation_bytes_per_layer(model, split)
    assert scores == 5 * 64 * 8192 * 8192 // 8
    assert (
        activation_bytes_per_layer(model, replace(split, recompute="selective"), flash=False) == 34 * 8192 * 8192 // 8
    )


def test_long_sequences_need_context_parallelism():
    model = preset("llama3-405b")
    long = ParallelConfig(tp=8, seq_len=131072)
    assert round(activation_bytes_per_layer(model, long) / 1e9) == 9
    assert activation_bytes_per_layer(model, replace(long, cp=16)) == activation_bytes_per_layer(model, long) // 16


def test_unknown_precisions_and_optimizers_are_refused():
    with pytest.raises(LedgerError, match="precision"):
        state_bytes(1, "fp4")
    with pytest.raises(LedgerError, match="optimizer"):
        state_bytes(1, optimizer="lion")
