"""The closed forms and worked answers of the two documents the ledger comes from, under the `textbook` profile."""

from collections import defaultdict
from dataclasses import replace

import pytest

from ledger.model import ModelSpec, MoESpec
from ledger.parallel import ParallelConfig, predict
from ledger.payloads import (
    capacity,
    cp_kv_elements,
    ep_dispatch_elements,
    expert_data_ranks,
    gradient_calls,
    imbalance,
    pp_boundary_elements,
    tp_boundary_elements,
    tp_calls_per_layer,
    ulysses_elements,
)
from ledger.presets import preset

LARGE = preset("llama3-405b")
SHORT = ParallelConfig.parse("tp8-cp1-pp16-dp128", zero_stage=1, microbatches=16)
LONG = ParallelConfig.parse("tp8-cp16-pp16-dp4", zero_stage=1, microbatches=32, seq_len=131072)
GIB = 2**30


def sent(model, config, profile="textbook"):
    """GiB per (dim, primitive)."""
    totals = defaultdict(int)
    for row in predict(model, config, profile):
        totals[row.dim, row.primitive] += row.sent_bytes_per_step
    return {key: round(value / GIB, 2) for key, value in totals.items()}


def test_volumes_in_units_of_the_parameters():
    # DP 2N; ZeRO-1 and 2 N + N; ZeRO-3 N + 2N
    volumes = {
        zero: sum(
            count * (2 if name == "all_reduce" else 1) for name, count in gradient_calls("textbook", zero, 8).items()
        )
        for zero in range(4)
    }
    assert volumes == {0: 2, 1: 2, 2: 2, 3: 3}
    assert gradient_calls("textbook", 3, 1) == {"reduce_scatter": 1, "all_gather": 2}


def test_zero_3_without_resharding_is_back_to_2n():
    config = ParallelConfig(dp=64, zero_stage=3)
    model = preset("llama3-8b")
    three = sum(row.sent_bytes_per_step for row in predict(model, config))
    two = sum(row.sent_bytes_per_step for row in predict(model, replace(config, reshard_after_forward=False)))
    assert (three, two) == (3 * (2 * model.parameters * 63 // 64), 2 * (2 * model.parameters * 63 // 64))


def test_hsdp_crosses_nodes_with_2n_over_shard_only():
    model = preset("llama3-70b")
    config = ParallelConfig(dp=1024, zero_stage=3, hsdp_shard=8)
    across = [row for row in predict(model, config) if row.primitive == "all_reduce"]
    (row,) = across
    assert (row.link, row.group_size) == ("inter_node", 128)
    assert row.payload_bytes == 2 * (model.parameters // 8)
    inside = [row.link for row in predict(model, config) if row.primitive != "all_reduce"]
    assert inside == ["intra_node"] * 3


def test_tensor_parallel_volumes_of_405b():
    payload = 2 * tp_boundary_elements(8192, 16384)
    assert round(payload / 1e6) == 268
    assert round(2 * 7 / 8 * payload / 1e6) == 470
    assert round(4 * 2 * 7 / 8 * payload / 1e9, 2) == 1.88


def test_sequence_parallelism_moves_the_same_bytes():
    with_sp = sent(LARGE, SHORT)
    without = sent(LARGE, replace(SHORT, sequence_parallel=False))
    assert with_sp["tp", "all_gather"] + with_sp["tp", "reduce_scatter"] == without["tp", "all_reduce"] == 220.5


def test_two_and_two_per_layer():
    assert tp_calls_per_layer("textbook", False)["all_reduce"].total == 4
    calls = tp_calls_per_layer("textbook", True)
    assert {name: (count.forward, count.backward) for name, count in calls.items()} == {
        "all_gather": (2, 2),
        "reduce_scatter": (2, 2),
    }


def test_the_short_405b_layout():
    assert sent(LARGE, SHORT) == {
        ("tp", "all_gather"): 110.25,
        ("tp", "reduce_scatter"): 110.25,
        ("pp", "send_recv"): 1.0,
        ("dp", "reduce_scatter"): 5.86,
        ("dp", "all_gather"): 5.86,
    }
    dp = sum(row.sent_bytes_per_step for row in predict(LARGE, SHORT) if row.dim == "dp")
    assert round(dp / 1e9, 1) == 12.6


def test_the_long_405b_layout():
    assert sent(LARGE, LONG)["cp", "send_recv"] == 44.3
    cp = sum(row.sent_bytes_per_step for row in predict(LARGE, LONG) if row.dim == "cp")
    assert round(cp / 1e9, 1) == 47.6  # the document says 47 GB
    # one block of keys and values: 4 MB
    assert 2 * cp_kv_elements(8192, 1024, 8) == 4 * 2**20


def test_a_ring_moves_the_whole_sequence_of_keys_and_values_however_it_is_cut():
    # 3(n-1)/n x 2·s·b·h_kv x 2 bytes, nearly 12·s·b·h_kv
    model = ModelSpec(layers=1, hidden=4096, ffn=4096, heads=32, vocab=8)
    volumes = [
        sum(row.sent_bytes_per_step for row in predict(model, ParallelConfig(cp=n, seq_len=65536)) if row.dim == "cp")
        for n in (8, 64)
    ]
    whole = 12 * 65536 * 4096
    assert volumes == [whole * 7 // 8, whole * 63 // 64]


def test_ulysses_shrinks_with_the_group():
    # 8 (n-1)/n x s/n·b·h x 2 bytes, nearly 16·s·b·h/n
    model = ModelSpec(layers=1, hidden=4096, ffn=4096, heads=32, vocab=8)
    config = ParallelConfig(cp=8, seq_len=65536, cp_kind="ulysses")
    volume = sum(row.sent_bytes_per_step for row in predict(model, config) if row.dim == "cp")
    assert volume == 16 * 65536 * 4096 // 8 * 7 // 8
    ring = sum(row.sent_bytes_per_step for row in predict(model, replace(config, cp_kind="ring")) if row.dim == "cp")
    assert ring / volume == 6  # with as many key heads as query heads, at n = 8


def test_grouped_heads_turn_the_comparison_round():
    # h_kv = h/16: the ring's 12·s·b·h_kv is 0.75·s·b·h
    model = replace(LARGE, layers=1)
    config = ParallelConfig(cp=1024, seq_len=1048576)
    ring = sum(row.sent_bytes_per_step for row in predict(model, config) if row.dim == "cp")
    assert ring / (1048576 * 16384) == pytest.approx(0.75, rel=0.002)


def test_pipeline_messages_are_the_smallest_volume():
    message = 2 * pp_boundary_elements(8192, 16384, 8)
    assert round(message / 1e6, 1) == 33.6
    volume = sum(row.sent_bytes_per_step for row in predict(LARGE, SHORT) if row.dim == "pp")
    assert volume == 2 * 16 * message
    tp = sum(row.sent_bytes_per_step for row in predict(LARGE, SHORT) if row.dim == "tp")
    assert round(tp / volume) == 220


def test_expert_volumes():
    # h 8192, bf16: a token is 16 KB, two copies 32 KB; 8192 tokens over 8 ranks: about 0.9 GB per layer
    assert 2 * ep_dispatch_elements(1, 8192, 2) == 32 * 1024
    model = ModelSpec(
        layers=1, hidden=8192, ffn=8192, heads=64, vocab=8, moe=MoESpec(experts=8, top_k=2, expert_ffn=8192)
    )
    config = ParallelConfig(dp=8, ep=8, seq_len=8192)
    rows = [row for row in predict(model, config) if row.dim == "ep"]
    volume = sum(row.sent_bytes_per_step for row in rows)
    assert volume == 4 * 7 * 8192 * 32 * 1024 // 8
    assert round(volume / 1e9, 1) == 0.9
    # with two experts per token as much as tensor parallelism: 8·s·b·h elements before the (n-1)/n
    tp = sum(row.sent_bytes_per_step for row in predict(model, ParallelConfig(tp=8, seq_len=8192)) if row.dim == "tp")
    assert volume == tp


def test_capacity_factor_multiplies_the_dispatch():
    model = ModelSpec(
        layers=1, hidden=64, ffn=64, heads=4, vocab=8,
        moe=MoESpec(experts=8, top_k=2, expert_ffn=64, capacity_factor=1.25),
    )  # fmt: skip
    (forward, _) = [row for row in predict(model, ParallelConfig(dp=4, ep=4, seq_len=128)) if row.dim == "ep"]
    assert forward.payload_bytes == 2 * 128 * 64 * 2 * 5 // 4


def test_capacity_and_imbalance_of_the_toy_mixture():
    loads = [21, 21, 19, 13, 12, 1, 19, 22]
    limit = capacity(64, 2, 8, 1.25)
    assert limit == 20
    assert [expert for expert, load in enumerate(loads) if load > limit] == [0, 1, 7]
    assert round(imbalance([42, 32, 13, 41]), 2) == 1.31
    assert imbalance([16] * 8) == 1


def test_expert_replicas():
    assert expert_data_ranks(tp=1, cp=1, dp=8, ep=4, etp=1) == 2


def test_the_three_70b_placements_on_1024_gpus():
    small = preset("llama3-70b")
    deep = ParallelConfig.parse("tp8-pp8-dp16", zero_stage=1, microbatches=32)
    wide = replace(deep, pp=4, dp=32, microbatches=16, virtual_stages=2, schedule="interleaved_1f1b")
    flat = ParallelConfig.parse("dp1024", zero_stage=3, hsdp_shard=64)
    nvlink = [
        sum(row.sent_bytes_per_step for row in predict(small, config) if row.link == "intra_node") / GIB
        for config in (deep, wide, flat)
    ]
    assert nvlink == [280, 280, 0]
    rest = [
        sum(row.sent_bytes_per_step for row in predict(small, config) if row.link != "intra_node") / GIB
        for config in (deep, wide, flat)
    ]
    assert [round(value, 2) for value in rest] == [4.85, 8.96, 391.94]
    assert rest[2] / rest[0] > 80
    assert rest[2] / rest[1] > 40


def test_a_single_gpu_sends_nothing():
    assert predict(LARGE, ParallelConfig()) == ()


def test_ulysses_payloads_know_widths():
    assert ulysses_elements(8192, 16384, 8) == 8192 * 2048
