"""Where practice departs from the closed forms, one test per departure; GiB figures are Llama 3 405B's.

tp8 pp16 dp128, 8,192 tokens, 16 microbatches, unless a test says otherwise.
"""

from collections import defaultdict
from dataclasses import replace

import pytest

from ledger.model import ModelSpec, MoESpec
from ledger.parallel import ParallelConfig, predict, predict_stage
from ledger.payloads import cp_calls_per_layer, expert_data_ranks, fsdp_counts, gradient_calls, tp_calls_per_layer
from ledger.presets import preset

LARGE = preset("llama3-405b")
SHORT = ParallelConfig.parse("tp8-cp1-pp16-dp128", zero_stage=1, microbatches=16)
LONG = ParallelConfig.parse("tp8-cp16-pp16-dp4", zero_stage=1, microbatches=32, seq_len=131072)
MIXTURE = ModelSpec(layers=4, hidden=64, ffn=256, heads=8, vocab=128, moe=MoESpec(experts=8, top_k=2, expert_ffn=256))
GIB = 2**30


def mean_gib(config, profile, *, dim, part, model=LARGE):
    """GiB per rank, averaged over the stages."""
    total = sum(
        row.sent_bytes_per_step
        for stage in range(config.pp)
        for row in predict_stage(model, config, stage, profile)
        if row.dim == dim and row.part == part
    )
    return round(total / config.pp / GIB, 1)


def gib(rows, **fields):
    return round(
        sum(row.sent_bytes_per_step for row in rows if all(getattr(row, key) == value for key, value in fields.items()))
        / GIB,
        3,
    )


def by_phase(rows, dim):
    calls = defaultdict(float)
    for row in rows:
        if row.dim == dim:
            calls[row.primitive, row.phase] += row.calls_per_step
    return dict(calls)


def test_01_megatron_gathers_column_inputs_again():
    assert mean_gib(SHORT, "megatron", dim="tp", part="layer activations") == 275.6
    calls = tp_calls_per_layer("megatron", True)
    assert (calls["all_gather"].total, calls["reduce_scatter"].total) == (6, 4)
    assert tp_calls_per_layer("torchtitan", True)["all_gather"].total == 4


def test_02_recomputation_repeats_forward_collectives():
    full = replace(SHORT, recompute="full")
    assert mean_gib(full, "megatron", dim="tp", part="layer activations") == 385.9
    no_sp = replace(full, sequence_parallel=False)
    assert mean_gib(no_sp, "megatron", dim="tp", part="layer activations") == 330.8
    selective = replace(SHORT, recompute="selective")
    assert mean_gib(selective, "megatron", dim="tp", part="layer activations") == 275.6
    repeated = {
        (recompute, name): count.recompute
        for recompute in ("full", "selective")
        for name, count in tp_calls_per_layer("torchtitan", True, recompute).items()
    }
    assert repeated == {
        ("full", "all_gather"): 2,
        ("full", "reduce_scatter"): 1,  # stops before the layer's last one
        ("selective", "all_gather"): 2,
        ("selective", "reduce_scatter"): 0,  # its output was saved
    }


def test_03_unfused_linears_reduce_one_by_one():
    for profile in ("torchtitan", "hf"):
        calls = tp_calls_per_layer(profile, False)["all_reduce"]
        assert (calls.forward, calls.backward) == (2, 5)
    assert tp_calls_per_layer("megatron", False)["all_reduce"].total == 4


def test_04_vocabulary_and_loss_on_the_end_stages():
    rows = predict(LARGE, SHORT, "megatron")
    assert gib(rows, part="embedding", stage="first") == 7.0
    assert gib(rows, part="lm_head", stage="last") == 10.5
    assert gib(rows, part="cross entropy", stage="last") == 0.003
    assert {row.stage for row in rows if row.part == "embedding"} == {"first"}
    titan = predict(LARGE, SHORT, "torchtitan")
    assert gib(titan, part="lm_head") == 7.0  # its input is kept, not gathered again


def test_05_gradients_are_reduced_in_float32():
    rows = predict_stage(LARGE, replace(SHORT, layers_per_stage=(7, *[8] * 14, 7)), 5, "megatron")
    reduced, gathered = gib(rows, part="gradients"), gib(rows, part="parameters")
    assert reduced == pytest.approx(2 * gathered, abs=0.002)
    total = sum(
        row.sent_bytes_per_step
        for stage in range(16)
        for row in predict_stage(LARGE, SHORT, stage, "megatron")
        if row.dim == "dp"
    )
    assert total / 16 / GIB == pytest.approx(17.57, abs=0.02)  # 11.7 in bf16
    assert {row.dtype for row in rows if row.part == "gradients"} == {"float32"}


def test_06_deepspeed_stages_1_and_2_all_reduce():
    assert gradient_calls("deepspeed", 1, 8) == {"all_reduce": 1, "all_gather": 1}
    assert gradient_calls("deepspeed", 2, 8) == {"all_reduce": 8, "all_gather": 1}


def test_07_per_microbatch_reductions():
    assert fsdp_counts(True, 8).scatter_backward == 8
    assert fsdp_counts(True, 8).gather == 16
    assert fsdp_counts(False, 8).gather == 8
    pipelined = fsdp_counts(True, 8, pipelined=True)
    assert (pipelined.gather, pipelined.scatter_backward) == (1, 1)
    assert gradient_calls("torchtitan", 3, 8) == {"reduce_scatter": 8, "all_gather": 16}
    assert gradient_calls("torchtitan", 3, 8, pipelined=True) == {"reduce_scatter": 1, "all_gather": 1}
    assert gradient_calls("megatron", 1, 8) == {"reduce_scatter": 1, "all_gather": 1}
    # accelerate scatters in the last microbatch only
    config = ParallelConfig(dp=8, zero_stage=3, microbatches=4)
    calls = by_phase(predict(preset("llama3-8b"), config, "hf"), "dp")
    assert calls["reduce_scatter", "backward"] == 33
    assert calls["all_gather", "forward"] == 4 * 33


def test_08_zero_3_is_not_quite_3n():
    model, config = preset("llama3-8b"), ParallelConfig(dp=8, zero_stage=3)
    root = 2 * 128256 * 4096 + 4096
    share = 7 * 2

    def gathered(profile):
        return sum(row.sent_bytes_per_step for row in predict(model, config, profile) if row.primitive == "all_gather")

    assert gathered("torch") == (2 * model.parameters - root) * share // 8
    layer = (model.parameters - root) // 32
    assert gathered("torchtitan_0_1") == (2 * model.parameters - root - layer) * share // 8
    # only norm and output stay; the embedding is a unit of its own
    assert gathered("torchtitan") == (2 * model.parameters - 128256 * 4096 - 4096) * share // 8
    # DeepSpeed keeps the norms (65 x 4096) whole and gathers them once after the step
    deepspeed = predict(model, config, "deepspeed")
    assert gib(deepspeed, part="persistent parameters") == round(65 * 4096 * 2 * 7 / 8 / GIB, 3)
    forward = next(row for row in deepspeed if row.part == "parameters" and row.phase == "forward")
    assert forward.payload_bytes == 2 * (model.parameters - 65 * 4096)
    backward = next(row for row in deepspeed if row.part == "parameters" and row.phase == "backward")
    assert forward.payload_bytes / 2 < backward.payload_bytes < forward.payload_bytes


def test_09_hsdp_replicas_reduce_in_the_reduce_dtype():
    config = ParallelConfig(dp=16, zero_stage=3, hsdp_shard=8)
    rows = [row for row in predict(preset("llama3-8b"), config, "torchtitan") if row.primitive == "all_reduce"]
    assert {row.dtype for row in rows if not row.noise} == {"float32"}
    bf16 = [row for row in predict(preset("llama3-8b"), config) if row.primitive == "all_reduce"]
    assert sum(row.sent_bytes_per_step for row in rows if not row.noise) == 2 * bf16[0].sent_bytes_per_step


def test_10_resharding_to_a_smaller_group_splits_the_links():
    config = ParallelConfig(dp=32, zero_stage=3, reshard_after_forward=8)
    rows = [row for row in predict(preset("llama3-8b"), config, "torchtitan") if row.part == "layer parameters"]
    seen = {(row.phase, row.group_size, row.link, row.payload_bytes) for row in rows}
    unit = 2 * 218112000
    assert seen == {("forward", 32, "mixed", unit), ("backward", 8, "intra_node", unit)}


def test_11_torchs_ring_returns_gradients_in_float32_over_n_hops():
    assert gib(predict(LARGE, LONG), dim="cp") == 44.297
    calls = cp_calls_per_layer("torchtitan", "ring", 16)
    assert [(call.primitive, call.phase, call.calls) for call in calls] == [
        ("all_gather", "forward", 1),
        ("all_gather", "backward", 1),
        ("all_to_all", "backward", 16),
    ]
    # 2·15 blocks in bf16 and 16 in float32 against 45: x 62/45
    assert mean_gib(LONG, "torchtitan", dim="cp", part="ring attention") == 61.0
    assert mean_gib(LONG, "megatron", dim="cp", part="ring attention") == 44.3


def test_12_all_gather_context_parallelism_moves_the_same_bytes_in_the_open():
    gathered = replace(LONG, cp_kind="all_gather")
    assert mean_gib(gathered, "megatron", dim="cp", part="all_gather attention") == 44.3
    rows = [row for row in predict(LARGE, gathered, "megatron") if row.dim == "cp"]
    assert {row.primitive for row in rows} == {"all_gather", "reduce_scatter"}
    assert {row.overlap for row in rows} == {"no"}


def test_13_ulysses_carries_grouped_keys_and_values_at_their_width():
    # over 8 ranks, as many as there are key heads: 4h + 4h_kv instead of 8h
    config = ParallelConfig.parse("cp8-pp2-dp1", seq_len=131072, cp_kind="ulysses")
    whole = gib(predict(LARGE, config), dim="cp")
    narrow = mean_gib(config, "megatron", dim="cp", part="ulysses attention")
    assert narrow / whole == pytest.approx(17 / 32, rel=0.001)
    assert round(59.1 * 17 / 32, 1) == 31.4
    # 16 ranks after tp 8 have fewer heads than ranks: keys are copied until they are as wide as queries
    copied = replace(LONG, cp_kind="ulysses")
    assert gib(predict(LARGE, copied), dim="cp") == 59.062
    assert mean_gib(copied, "megatron", dim="cp", part="ulysses attention") == 59.1


def test_14_link_and_overlap_depend_on_variant_and_place():
    inside = ParallelConfig(tp=2, cp=4)
    (row, _) = [row for row in predict(LARGE, inside, "megatron") if row.dim == "cp"]
    assert (row.link, row.overlap) == ("intra_node", "yes")
    (row, *_) = [row for row in predict(LARGE, replace(inside, cp_kind="ulysses"), "megatron") if row.dim == "cp"]
    assert row.overlap == "no"


def test_15_end_stages_send_less():
    config = ParallelConfig(pp=4, microbatches=8)
    calls = {
        row.stage: row.calls_per_step
        for row in predict(preset("llama3-8b"), config, "megatron")
        if row.dim == "pp" and row.phase == "forward"
    }
    assert calls == {"first": 8, "middle": 8}
    textbook = [row for row in predict(preset("llama3-8b"), config) if row.dim == "pp"]
    assert sum(row.calls_per_step for row in textbook) == 16
    assert {row.stage for row in textbook} == {"all"}


def test_16_tied_embeddings_are_added_up_over_the_ends():
    tied = replace(LARGE, tied=True)
    rows = [row for row in predict(tied, SHORT, "megatron") if row.part == "embedding tie"]
    assert {row.stage for row in rows} == {"first", "last"}
    assert round(rows[0].sent_bytes_per_step / GIB, 2) == 0.98
    assert rows[0].group_size == 2
    assert not [row for row in predict(LARGE, SHORT, "megatron") if row.part == "embedding tie"]


def test_16_servers_send_hidden_and_residual():
    config = ParallelConfig(tp=8, pp=2, seq_len=64, sequence_parallel=False)
    rows = [row for row in predict(preset("llama3-70b"), config, "inference") if row.part == "hidden and residual"]
    assert {(row.stage, row.primitive, row.payload_bytes, row.calls_per_step) for row in rows} == {
        ("first", "send_recv", 2 * 64 * 8192 // 8, 2),
        ("last", "all_gather", 2 * 64 * 8192, 2),
    }


def test_17_experts_exchange_sequence_parallel_tokens_weights_and_counts():
    config = ParallelConfig(tp=2, dp=4, ep=4, expert_tp=1, seq_len=128)
    rows = {(row.part, row.phase): row for row in predict(MIXTURE, config, "megatron") if row.dim == "ep"}
    assert rows["dispatch and combine", "forward"].payload_bytes == 2 * (128 // 2) * 2 * 64
    assert rows["routing weights", "forward"].payload_bytes == 2 * (128 // 2) * 2
    assert rows["tokens per expert", "forward"].noise
    textbook = next(row for row in predict(MIXTURE, config) if row.dim == "ep")
    assert textbook.payload_bytes == 2 * rows["dispatch and combine", "forward"].payload_bytes


def test_17_split_experts_gather_and_scatter_tokens():
    config = ParallelConfig(tp=2, dp=4, ep=4, seq_len=128)  # expert_tp defaults to tp
    rows = [row for row in predict(MIXTURE, config, "megatron") if row.part == "tokens of split experts"]
    assert {(row.primitive, row.group_size, row.payload_bytes) for row in rows} == {
        ("all_gather", 2, 2 * 2 * 64 * 2 * 64),
        ("reduce_scatter", 2, 2 * 2 * 64 * 2 * 64),
    }


def test_17_deepspeed_pads_to_capacity():
    padded = replace(MIXTURE, moe=replace(MIXTURE.moe, capacity_factor=1.5))
    config = ParallelConfig(dp=4, ep=4, seq_len=128)
    (row, _) = [row for row in predict(padded, config, "deepspeed") if row.dim == "ep"]
    assert row.payload_bytes == 2 * 8 * 48 * 64  # C = ceil(1.5 x 128 x 2 / 8)


def test_18_experts_may_spread_over_tensor_parallel_ranks():
    config = ParallelConfig(tp=8, ep=8, expert_tp=1)
    (row, *_) = [row for row in predict(MIXTURE, config, "megatron") if row.dim == "ep" and not row.noise]
    assert (row.group_size, row.link) == (8, "intra_node")


def test_19_dense_and_expert_gradients_have_their_own_groups():
    config = ParallelConfig(tp=2, cp=2, dp=8, ep=4, expert_tp=1, zero_stage=1)
    rows = {
        row.part: row
        for row in predict(MIXTURE, config, "megatron")
        if row.primitive == "reduce_scatter" and row.dim == "dp"
    }
    assert rows["gradients"].group_size == 16
    assert rows["expert gradients"].group_size == expert_data_ranks(2, 2, 8, 4, 1) == 8
    assert rows["expert gradients"].payload_bytes == 4 * MIXTURE.expert_parameters // 4
    routers = next(row for row in predict(MIXTURE, config, "megatron") if row.part == "replicated gradients")
    # norms 2 x 64 and a router of 8 x 64 per layer, one final norm
    assert routers.payload_bytes == 4 * (4 * (128 + 512) + 64)


def test_20_expert_gradients_need_no_reduction_within_their_own_group_only():
    alone = ParallelConfig(dp=4, ep=4, zero_stage=1)
    assert not [row for row in predict(MIXTURE, alone, "megatron") if row.part == "expert gradients"]
    twice = ParallelConfig(dp=8, ep=4, zero_stage=1)
    assert [row for row in predict(MIXTURE, twice, "megatron") if row.part == "expert gradients"]


def test_21_overlap_depends_on_framework_and_phase():
    rows = predict(LARGE, SHORT, "megatron")
    overlap = {(row.part, row.phase): row.overlap for row in rows}
    assert overlap["layer activations", "forward"] == "no"
    assert overlap["layer activations", "backward"] == "partial"
    assert overlap["stage boundary", "forward"] == "no"
    interleaved = replace(SHORT, virtual_stages=2, schedule="interleaved_1f1b")
    assert {row.overlap for row in predict(LARGE, interleaved, "megatron") if row.dim == "pp"} == {"yes"}


def test_22_a_small_data_parallel_group_stays_in_the_node():
    (row, *_) = [row for row in predict(preset("llama3-8b"), ParallelConfig(tp=2, dp=4)) if row.dim == "dp"]
    assert row.link == "intra_node"


def test_23_stages_have_their_own_layers():
    calls = {
        row.stage: row.calls_per_step
        for row in predict(LARGE, SHORT, "megatron")
        if row.part == "layer activations" and row.primitive == "reduce_scatter" and row.phase == "forward"
    }
    assert calls == {"first": 2 * 7 * 16, "middle": 2 * 8 * 16, "last": 2 * 7 * 16}
    config = ParallelConfig(tp=4, pp=4, dp=2, microbatches=8)
    rows = predict(preset("deepseek-v3"), config, "megatron")
    loss = next(row for row in rows if row.part == "cross entropy")
    assert (loss.stage, loss.calls_per_step) == ("last", 3 * 2 * 8)  # main head and MTP head


def test_24_both_bubble_conventions_are_labelled():
    from ledger.pipeline import bubble

    idle = bubble("1f1b", 4, 4)
    assert (round(idle.relative_to_ideal, 2), round(idle.share_of_total, 2)) == (0.75, 0.43)


def test_25_zero_3_is_two_gathers_and_a_scatter():
    assert gradient_calls("textbook", 3, 1) == {"reduce_scatter": 1, "all_gather": 2}


def test_26_fp8_halves_gathers_but_not_scatters():
    rows = {
        (row.part, row.primitive, row.dtype)
        for row in predict(LARGE, SHORT, "megatron_fp8")
        if row.dim in ("tp", "dp") and row.stage == "middle"
    }
    assert ("layer activations", "all_gather", "uint8") in rows
    assert ("layer activations", "reduce_scatter", "bfloat16") in rows
    assert ("parameters", "all_gather", "uint8") in rows
    assert ("gradients", "reduce_scatter", "float32") in rows
    bf16 = gib(predict_stage(LARGE, SHORT, 5, "megatron"), part="layer activations", primitive="all_gather")
    fp8 = gib(predict_stage(LARGE, SHORT, 5, "megatron_fp8"), part="layer activations", primitive="all_gather")
    assert fp8 == bf16 / 2


def test_27_noise_is_kept_apart_and_negligible():
    for profile in ("megatron", "torchtitan", "deepspeed"):
        layout = ParallelConfig.parse("tp8-pp16-dp128", zero_stage=1, microbatches=16)
        rows = predict(LARGE, layout, profile)
        noise = [row for row in rows if row.noise]
        assert noise
        assert all(row.dim == "control" for row in noise)
        quiet = sum(row.sent_bytes_per_step for row in noise)
        assert quiet < sum(row.sent_bytes_per_step for row in rows if not row.noise) / 1000
    assert not [row for row in predict(LARGE, SHORT) if row.noise]


def test_latent_attention_gathers_ranks_instead_of_its_input():
    model = replace(preset("deepseek-v3"), layers=3, mtp_layers=0)  # dense layers only
    rows = predict(model, ParallelConfig(tp=8, seq_len=4096), "megatron")
    forward = {
        row.payload_bytes // 2 // 4096: row.calls_per_step
        for row in rows
        if row.part == "latent attention" and row.primitive == "all_gather" and row.phase == "forward"
    }
    assert forward == {1536: 3, 512: 3, 64: 3}


def test_transformers_sums_masked_experts_instead_of_moving_tokens():
    rows = predict(MIXTURE, ParallelConfig(tp=4, sequence_parallel=False, seq_len=128), "hf")
    assert {row.primitive for row in rows} == {"all_reduce", "all_gather"}
    experts = {(row.part, row.phase): row.calls_per_step for row in rows if row.dim == "ep"}
    assert experts == {
        ("expert outputs", "forward"): 4,
        ("expert input gradients", "backward"): 4,
        ("routing weight gradients", "backward"): 4,
    }


def test_servers_have_no_backward_and_no_gradients():
    rows = predict(preset("llama3-70b"), ParallelConfig(tp=8, seq_len=64, sequence_parallel=False), "inference")
    assert {row.phase for row in rows} == {"forward"}
    reductions = sum(row.calls_per_step for row in rows if row.primitive == "all_reduce")
    assert reductions == 2 * 80 + 1  # and one after the embedding
    (logits,) = [row for row in rows if row.part == "logits"]
    assert logits.payload_bytes == 2 * 64 * 128256


def test_servers_with_data_parallel_attention_gather_tokens():
    config = ParallelConfig(dp=8, ep=8, seq_len=16)
    rows = predict(MIXTURE, config, "inference")
    assert {(row.part, row.primitive) for row in rows} == {
        ("tokens", "all_gather"),
        ("router logits", "all_gather"),
        ("expert outputs", "reduce_scatter"),
    }
    assert rows[0].payload_bytes == 2 * 8 * 16 * 64


def test_every_row_says_where_it_comes_from():
    from ledger.profiles import PROFILES

    config = ParallelConfig(tp=2, cp=2, pp=2, dp=2, ep=2, zero_stage=3, microbatches=4, seq_len=64)
    for name in PROFILES:
        rows = predict(MIXTURE, config, name)
        assert rows
        assert all(row.formula and row.source for row in rows)
