"""Megatron-core jobs whose every call is known, against the `megatron` profile."""

from collections import Counter

import pytest

from ledger.parallel import ParallelConfig, predict_stage
from tests.ledger.observed import (
    INPUT,
    MEGATRON_MIXTURE,
    MEGATRON_MODEL,
    TOY,
    differing,
    elements,
    observed,
    predicted,
)


def layout(text, **fields):
    return ParallelConfig.parse(text, **INPUT, **fields)


def without_batches(calls):
    """These jobs make their batches themselves; training scripts broadcast them."""
    return Counter({key: count for key, count in calls.items() if key[0] != "broadcast"})


@pytest.mark.parametrize(
    ("case", "config"),
    [
        ("mc4_tp4", layout("tp4", sequence_parallel=False)),
        ("mc4_tp4_sp", layout("tp4")),
        ("mc4_dp4", layout("dp4", microbatches=2)),
    ],
)
def test_every_call_of_one_stage(shared, case, config):
    ledger = without_batches(predicted(predict_stage(MEGATRON_MODEL, config, 0, "megatron")))
    assert differing(observed(shared, case, 0), ledger) == {}


@pytest.mark.parametrize("stage", range(4))
def test_every_call_of_a_pipeline(shared, stage):
    config = layout("pp4", zero_stage=1, microbatches=8)
    ledger = predicted(predict_stage(MEGATRON_MODEL, config, stage, "megatron"))
    assert differing(observed(shared, "mc4_pp4", stage), ledger) == {}


def test_every_call_of_one_rank_of_1024(shared):
    from ledger.model import BIASES, ModelSpec

    model = ModelSpec(**{**TOY, "layers": 8}, tied=True, biases=BIASES)
    config = layout("tp8-pp8-dp16", zero_stage=1, microbatches=8)
    ledger = predicted(predict_stage(model, config, 4, "megatron"))
    assert differing(observed(shared, "mcf_tp8pp8_w1024", 517), ledger) == {}


@pytest.mark.parametrize(
    ("case", "config", "ranks"),
    [
        ("mc4_dp4_distopt", layout("dp4", zero_stage=1, microbatches=2), {0: 0}),
        ("mc4_pp2_dp2", layout("pp2-dp2", zero_stage=1, microbatches=4), {0: 0, 2: 1}),
        (
            "mc4_pp2_vp2_dp2",
            layout("pp2-dp2", zero_stage=1, microbatches=4, virtual_stages=2, schedule="interleaved_1f1b"),
            {0: 0, 2: 1},
        ),
    ],
)
def test_buckets_add_up_to_the_buffer_and_the_rest_is_exact(shared, case, config, ranks):
    for rank, stage in ranks.items():
        seen = observed(shared, case, rank)
        ledger = predicted(predict_stage(MEGATRON_MODEL, config, stage, "megatron"))
        for primitive, dtype in (("reduce_scatter", "float32"), ("all_gather", "bfloat16")):
            buckets = sum(count for key, count in seen.items() if key[0] == primitive)
            excess = elements(seen, primitive, dtype) - elements(ledger, primitive, dtype)
            # each bucket's end is padded to a multiple of 128
            assert 0 <= excess < 128 * buckets
        rest = {key for key in differing(seen, ledger) if key[0] not in ("reduce_scatter", "all_gather")}
        assert rest == set()


@pytest.mark.parametrize(("rank", "stage"), [(3, 0), (7, 1)])
def test_a_mixture_of_experts_over_tp_ep_pp_and_dp(shared, rank, stage):
    config = layout("tp2-pp2-dp2-ep2", zero_stage=1, microbatches=4, expert_tp=1)
    seen = observed(shared, "mc8_tp2ep2pp2_moe", rank)
    ledger = without_batches(predicted(predict_stage(MEGATRON_MIXTURE, config, stage, "megatron")))
    for primitive, dtype in (("reduce_scatter", "float32"), ("all_gather", "bfloat16"), ("all_gather", "int64")):
        assert elements(seen, primitive, dtype) == elements(ledger, primitive, dtype)
    # expert buffers and dense buffers are reduced apart
    assert ledger["reduce_scatter", 2, "float32", 262144] == 1
    # six exchanges per layer and microbatch, four of tokens and two of routing weights; dispatch is T·k·h and T·k
    exchanges = {key: count for key, count in seen.items() if key[0] == "all_to_all"}
    tokens = sum(count for key, count in exchanges.items() if key[3] > 1000)
    assert round(tokens) == ledger["all_to_all", 2, "bfloat16", 6144] == 32
    assert round(sum(exchanges.values()) - tokens) == ledger["all_to_all", 2, "bfloat16", 96] == 16
    rest = {key for key in differing(seen, ledger) if key[0] not in ("reduce_scatter", "all_gather", "all_to_all")}
    assert rest == set()
