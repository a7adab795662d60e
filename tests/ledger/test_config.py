from dataclasses import replace

import pytest

from ledger.errors import LedgerError
from ledger.parallel import ParallelConfig


def test_parse_reads_dimensions_in_any_order_and_defaults_the_rest():
    config = ParallelConfig.parse("pp16-tp8-dp128", zero_stage=1)
    assert (config.tp, config.cp, config.pp, config.dp, config.ep, config.zero_stage) == (8, 1, 16, 128, 1, 1)
    assert config.world_size == 16384


def test_text_form_round_trips():
    for text in ("tp8-cp1-pp16-dp128", "tp1-cp2-pp1-dp8-ep4"):
        assert str(ParallelConfig.parse(text)) == text


@pytest.mark.parametrize("text", ["", "tp8_pp2", "tp8-xx2", "tp-pp2", "tp8-tp4", "8", "tp0"])
def test_a_layout_that_cannot_be_read_is_named(text):
    with pytest.raises(LedgerError):
        ParallelConfig.parse(text)


@pytest.mark.parametrize(
    ("fields", "key"),
    [
        ({"tp": 0}, "tp"),
        ({"zero_stage": 4}, "zero_stage"),
        ({"dp": 8, "hsdp_shard": 4}, "hsdp_shard"),
        ({"dp": 8, "zero_stage": 3, "hsdp_shard": 3}, "hsdp_shard"),
        ({"dp": 8, "zero_stage": 3, "reshard_after_forward": 3}, "reshard_after_forward"),
        ({"ep": 4, "dp": 2}, "ep"),
        ({"ep": 2, "dp": 2, "expert_tp": 0}, "expert_tp"),
        ({"cp_kind": "spiral"}, "cp_kind"),
        ({"schedule": "fifo"}, "schedule"),
        ({"recompute": "some"}, "recompute"),
        ({"schedule": "zbv", "pp": 4}, "virtual_stages"),
        ({"pp": 2, "layers_per_stage": (4,)}, "layers_per_stage"),
        ({"rank_order": "tp-cp-dp-pp"}, "rank_order"),
        ({"act_dtype": "bf16"}, "dtype"),
        ({"cp": 3, "seq_len": 8}, "seq_len"),
        ({"cp": 4, "cp_inner": 3}, "cp_inner"),
    ],
)
def test_contradictions_are_refused_and_the_field_is_named(fields, key):
    with pytest.raises(LedgerError) as caught:
        ParallelConfig(**fields)
    assert caught.value.key == key


def test_sharding_and_replication_factor_the_data_parallel_dimension():
    plain = ParallelConfig(dp=16)
    assert (plain.dp_shard, plain.dp_replicate, plain.shard_ranks) == (1, 16, 1)
    zero = replace(plain, zero_stage=3)
    assert (zero.dp_shard, zero.dp_replicate) == (16, 1)
    hybrid = replace(zero, hsdp_shard=8)
    assert (hybrid.dp_shard, hybrid.dp_replicate) == (8, 2)


def test_context_parallel_ranks_hold_copies_of_the_same_parameters():
    config = ParallelConfig(tp=8, cp=16, pp=16, dp=4, zero_stage=1, seq_len=131072)
    assert (config.grad_ranks, config.shard_ranks, config.tokens) == (64, 64, 8192)


def test_the_four_dimensions_of_llama3_multiply_to_the_jobs_it_names():
    assert ParallelConfig.parse("tp8-cp1-pp16-dp128").world_size == 16384
    assert ParallelConfig.parse("tp8-cp16-pp16-dp4").world_size == 8192
    assert ParallelConfig.parse("tp8-cp16-pp16-dp128").world_size == 262144
    assert ParallelConfig.parse("tp8-pp4-dp64").world_size == 2048


def test_experts_are_copied_over_what_their_own_mesh_leaves():
    # dp 8 holds ep 4: expert parameters have two copies
    assert ParallelConfig(dp=8, ep=4).expert_grad_ranks == 2
    # experts not split themselves reach over the tensor-parallel ranks
    assert ParallelConfig(tp=2, pp=2, dp=2, ep=2, expert_tp=1).expert_grad_ranks == 2
    assert ParallelConfig(tp=2, dp=4, ep=4).expert_grad_ranks == 1
