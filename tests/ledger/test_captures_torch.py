"""PyTorch, torchtitan, DeepSpeed and transformers jobs whose every call is known, against their profiles."""

from collections import Counter

import pytest

from ledger.model import MLASpec, ModelSpec, MoESpec
from ledger.parallel import ParallelConfig, predict_stage
from ledger.payloads import ring_variants, tp_calls_per_layer
from ledger.profiles.deepspeed import deepspeed
from tests.ledger.observed import (
    FLOAT32,
    INPUT,
    LLAMA_DEBUG,
    TOY,
    TOY_MODEL,
    differing,
    elements,
    observed,
    predicted,
)

EIGHT_LAYERS = ModelSpec(**{**TOY, "layers": 8})
NORM_VECTOR = 64


def layout(text, **fields):
    return ParallelConfig.parse(text, **{**INPUT, **FLOAT32, **fields})


def payload(rows):
    return predicted(tuple(row for row in rows if not row.noise))


def without_norms(calls):
    """Leave out the vector of gradient norms that clipping reduces (one number per tensor)."""
    return Counter({key: count for key, count in calls.items() if not (key[0] == "all_reduce" and key[3] < 64)})


@pytest.mark.parametrize(
    ("case", "config", "rank", "stage"),
    [
        ("ddp4", layout("dp4"), 0, 0),
        ("zero1_hand", layout("dp4", zero_stage=1), 0, 0),
        ("fsdp2_4", layout("dp4", zero_stage=3), 0, 0),
        ("fsdp2_4_noreshard", layout("dp4", zero_stage=2), 0, 0),
        ("fsdp1_4", layout("dp4", zero_stage=3), 0, 0),
        ("hsdp_2x4", layout("dp8", zero_stage=3, hsdp_shard=4), 0, 0),
        ("tp2_fsdp4", layout("tp2-dp4", zero_stage=3), 0, 0),
        ("f_tp8_fsdp_w64", layout("tp8-dp8", zero_stage=3), 0, 0),
        ("cp4_torch_allgather", layout("cp4"), 0, 0),
        ("ulysses4", layout("cp4", cp_kind="ulysses"), 0, 0),
    ],
)
def test_every_payload_call_of_plain_pytorch(shared, case, config, rank, stage):
    ledger = payload(predict_stage(TOY_MODEL, config, stage, "torch"))
    assert differing(without_norms(observed(shared, case, rank)), ledger) == {}


@pytest.mark.parametrize(("rank", "stage"), [(0, 0), (77, 0), (200, 1), (511, 3)])
def test_one_rank_of_512_with_padded_shards(shared, rank, stage):
    # 8 rows per rank after tp 8 are padded to the 16 sharding ranks: units grow from 6,400 to 7,936 elements
    config = layout("tp8-pp4-dp16", zero_stage=3, microbatches=8)
    ledger = payload(predict_stage(EIGHT_LAYERS, config, stage, "torch"))
    assert differing(observed(shared, "f_tp8pp4_w512", rank), ledger) == {}


def test_norm_gradients_without_fsdp_are_reduced_when_the_optimizer_uses_them(shared):
    # AdamW without foreach reads each gradient three times, and each read reduces it
    seen = observed(shared, "tp4_sp", 0)
    ledger = payload(predict_stage(TOY_MODEL, layout("tp4"), 0, "torch"))
    key = ("all_reduce", 4, "float32", NORM_VECTOR)
    assert differing(seen, ledger) == {key: (54, 18)}


def test_calls_per_layer_follow_the_number_of_column_linears(shared):
    key = ("all_reduce", 4, "float32", 6144)
    separate = tp_calls_per_layer("torch", False, column_linears=4)["all_reduce"].total  # q, k, v, fc1
    assert observed(shared, "tp4", 0)[key] == 4 * separate == 24
    prepared = tp_calls_per_layer("torch", False, column_linears=2)["all_reduce"].total
    assert observed(shared, "tp4_prep", 0)[key] == 4 * prepared == 16
    # with a vocabulary-parallel embedding and head: one more in each direction
    assert observed(shared, "tp4_vocab", 0)[key] == 4 * prepared + 2


def test_a_hand_written_ring_sends_k_and_v_apart_and_gradients_all_the_way_home(shared):
    sends = sum(call.calls for call in ring_variants(4)["separate"])
    assert observed(shared, "cp4_ring", 0)["send_recv", 4, "float32", 1536] == 4 * sends == 80


def test_experts_and_dense_parameters_have_their_own_replicas(shared):
    model = ModelSpec(**TOY, moe=MoESpec(experts=8, top_k=2, expert_ffn=256))
    ledger = predicted(predict_stage(model, layout("dp8-ep4"), 0, "torch"))
    seen = observed(shared, "ep4_dp8", 0)
    for key in (
        ("all_reduce", 8, "float32", 85120),
        ("all_reduce", 2, "float32", 262144),
        ("all_to_all", 4, "int64", 8),
    ):
        assert ledger[key] == seen[key]


TITAN = {"seq_len": 64, "micro_batch_size": 2, "sequence_parallel": False, "zero_stage": 3}


def big(calls):
    """Leave out all-reduces of fewer than 64 elements: norms, losses, and chunks of the loss."""
    return Counter({key: count for key, count in calls.items() if key[0] != "all_reduce" or key[3] >= 64})


@pytest.mark.parametrize(
    ("case", "fields"), [("tt4_fsdp", {}), ("ttf_fsdp_w4", {}), ("tt4_hsdp2x2", {"hsdp_shard": 2})]
)
def test_every_payload_call_of_torchtitan(shared, case, fields):
    config = ParallelConfig.parse("dp4", **{**TITAN, **fields})
    ledger = payload(predict_stage(LLAMA_DEBUG, config, 0, "torchtitan_0_3"))
    assert differing(big(observed(shared, case, 0)), ledger) == {}


def test_every_payload_call_of_torchtitan_with_tensor_parallelism(shared):
    config = ParallelConfig.parse("tp2-dp2", **{**TITAN, "sequence_parallel": True})
    ledger = payload(predict_stage(LLAMA_DEBUG, config, 0, "torchtitan_0_3"))
    seen = observed(shared, "tt4_tp2_fsdp2_dtensor", 0)
    whole_loss = ("all_reduce", 2, "float32", 128)
    assert differing(big(seen), ledger) == {whole_loss: (0, 3)}
    # the loss runs in eight chunks of 16 tokens: its three reductions come as 24, and add up
    assert seen["all_reduce", 2, "float32", 16] * 16 == ledger[whole_loss] * 128


def test_torchtitan_under_a_pipeline_gathers_once(shared):
    config = ParallelConfig.parse("pp4-dp16", **{**TITAN, "micro_batch_size": 1}, microbatches=8)
    ledger = payload(predict_stage(LLAMA_DEBUG, config, 2, "torchtitan"))
    seen = observed(shared, "ttf_pp4_fsdp16_w64", 37)
    rest = Counter({key: count for key, count in seen.items() if key[0] != "all_reduce"})
    assert differing(rest, ledger) == {}


def test_torchtitan_deepseek_with_experts_over_all_ranks(shared):
    model = ModelSpec(
        layers=6,
        hidden=256,
        ffn=1024,
        heads=16,
        vocab=2048,
        mla=MLASpec(q_rank=None, kv_rank=512, nope_dim=128, rope_dim=64, value_dim=128),
        moe=MoESpec(experts=8, top_k=3, expert_ffn=256, shared_ffn=512, first_dense_layers=1),
    )
    config = ParallelConfig.parse("dp4-ep4", **TITAN)
    ledger = predicted(predict_stage(model, config, 0, "torchtitan_0_3"))
    seen = observed(shared, "tt4_ep4_dsv3", 0)
    exchanges = sum(count for key, count in seen.items() if key[0] == "all_to_all" and key[2] == "bfloat16")
    assert round(exchanges) == ledger["all_to_all", 4, "bfloat16", 98304] == 20
    exact = {"all_gather", "reduce_scatter"}
    assert {key for key in differing(seen, ledger) if key[0] in exact or (key[2] == "int64" and key[3] > 1)} == set()


@pytest.mark.parametrize(
    ("case", "config", "profile", "rank", "stage"),
    [
        ("ds4_zero0_bf16", ParallelConfig.parse("dp4", microbatches=2, **INPUT), "deepspeed", 0, 0),
        ("ds4_zero1", layout("dp4", zero_stage=1), "deepspeed", 0, 0),
        ("ds4_zero2", layout("dp4", zero_stage=2), "deepspeed", 0, 0),
        # small models stay gathered between forward and backward: N, not 2N
        ("ds4_zero3", layout("dp4", zero_stage=3), deepspeed(persistence_threshold=0), 0, 0),
    ],
)
def test_every_call_of_deepspeed(shared, case, config, profile, rank, stage):
    ledger = predicted(predict_stage(TOY_MODEL, config, stage, profile))
    assert differing(observed(shared, case, rank), ledger) == {}


def test_deepspeed_stage_2_reduces_in_every_microbatch(shared):
    config = ParallelConfig.parse("dp4", zero_stage=2, microbatches=2, **INPUT)
    seen = observed(shared, "ds4_zero2_bf16", 0)
    ledger = predicted(predict_stage(TOY_MODEL, config, 0, "deepspeed"))
    assert elements(seen, "all_reduce", "bfloat16") == elements(ledger, "all_reduce", "bfloat16") == 2 * 214144
    assert elements(seen, "all_gather", "bfloat16") == elements(ledger, "all_gather", "bfloat16") == 214144


@pytest.mark.parametrize("case", ["ds4_zero3_bf16", "ds4_ulysses4_zero3"])
def test_deepspeed_stage_3_adds_up_over_its_fetches(shared, case):
    ulysses = case == "ds4_ulysses4_zero3"
    dtype = "float32" if ulysses else "bfloat16"
    fields = {**INPUT, "zero_stage": 3, **(FLOAT32 if ulysses else {})}
    config = ParallelConfig.parse("cp4" if ulysses else "dp4", **fields, cp_kind="ulysses")
    seen = observed(shared, case, 0)
    ledger = predicted(predict_stage(TOY_MODEL, config, 0, deepspeed(persistence_threshold=0)))
    for primitive in ("all_gather", "reduce_scatter"):
        assert elements(seen, primitive, dtype) == elements(ledger, primitive, dtype) == 214144
    assert elements(seen, "all_to_all", dtype) == elements(ledger, "all_to_all", dtype)


@pytest.mark.parametrize(("rank", "stage", "parameters"), [(0, 0, 107008), (2, 1, 107136)])
def test_deepspeed_pipeline_stages(shared, rank, stage, parameters):
    config = layout("pp2-dp2", zero_stage=1, microbatches=4)
    seen = observed(shared, "ds4_pp2_dp2_zero1", rank)
    ledger = predicted(predict_stage(TOY_MODEL, config, stage, "deepspeed"))
    for primitive in ("all_reduce", "all_gather"):
        assert ledger[primitive, 2, "float32", parameters] == seen[primitive, 2, "float32", parameters] == 1
    # DeepSpeed sends on the world group; the ledger names the pipeline
    assert ledger["send_recv", 2, "float32", 6144] == seen["send_recv", 4, "float32", 6144] == 4


def test_deepspeed_experts_send_their_whole_capacity(shared):
    model = ModelSpec(**TOY, moe=MoESpec(experts=8, top_k=2, expert_ffn=256))
    config = ParallelConfig.parse("dp4-ep4", zero_stage=1, **INPUT)
    ledger = predicted(predict_stage(model, config, 0, "deepspeed"))
    seen = observed(shared, "ds4_moe_ep4", 0)
    for key in (
        ("all_to_all", 4, "bfloat16", 12288),
        ("all_reduce", 4, "bfloat16", 85120),
        ("all_gather", 4, "bfloat16", 85120),
    ):
        assert ledger[key] == seen[key] > 0


def test_every_call_of_transformers_tensor_parallelism(shared):
    model = ModelSpec(layers=4, hidden=64, ffn=256, heads=8, kv_heads=4, vocab=128)
    assert model.parameters == 262720
    config = layout("tp4", sequence_parallel=False)
    assert differing(observed(shared, "hf4_tp", 0), predicted(predict_stage(model, config, 0, "hf"))) == {}
