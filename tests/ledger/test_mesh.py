import pytest

from ledger.errors import LedgerError
from ledger.mesh import group_axes, group_size, link, members
from ledger.parallel import ParallelConfig


def test_ranks_of_the_default_order():
    # rank = tp + 4·dp + 8·pp
    config = ParallelConfig(tp=4, dp=2, pp=2)
    assert members(group_axes(config, "tp")) == [0, 1, 2, 3]
    assert members(group_axes(config, "dp")) == [0, 4]
    assert members(group_axes(config, "pp")) == [0, 8]
    assert members(group_axes(config, "embedding")) == [0, 8]
    assert members(group_axes(config, "tp"), 12) == [12, 13, 14, 15]


def test_gradients_are_summed_over_context_and_data_parallel_ranks():
    config = ParallelConfig(tp=2, cp=2, dp=2, zero_stage=3)
    assert members(group_axes(config, "dp")) == [0, 2, 4, 6]
    assert group_size(config, "dp_shard") == 4


def test_hsdp_shards_neighbours_and_replicates_afar():
    config = ParallelConfig(dp=8, zero_stage=3, hsdp_shard=4)
    assert members(group_axes(config, "dp_shard")) == [0, 1, 2, 3]
    assert members(group_axes(config, "dp_replicate")) == [0, 4]


def test_experts_nest_on_their_own_mesh():
    config = ParallelConfig(dp=8, ep=4)
    assert members(group_axes(config, "ep")) == [0, 1, 2, 3]
    assert members(group_axes(config, "edp")) == [0, 4]
    spread = ParallelConfig(tp=2, pp=2, dp=2, ep=2, expert_tp=1)
    assert members(group_axes(spread, "ep")) == [0, 1]
    assert members(group_axes(spread, "edp")) == [0, 2]


def test_other_rank_orders():
    config = ParallelConfig(tp=2, pp=2, dp=2, rank_order="tp-cp-ep-pp-dp")
    assert members(group_axes(config, "pp")) == [0, 2]
    assert members(group_axes(config, "dp")) == [0, 4]


def test_links_follow_the_span_of_ranks():
    config = ParallelConfig.parse("tp8-pp16-dp128")
    assert [link(config, group) for group in ("tp", "pp", "dp")] == ["intra_node", "inter_node", "inter_node"]
    assert link(ParallelConfig(dp=1024), "dp") == "mixed"
    # a small data-parallel group stays inside the node
    assert link(ParallelConfig(tp=2, dp=4), "dp") == "intra_node"
    assert link(ParallelConfig(tp=2, dp=8), "dp") == "mixed"
    # six-way groups on eight-way nodes do not all fit
    assert link(ParallelConfig(tp=6, dp=4), "tp") == "mixed"
    assert link(ParallelConfig(tp=6, dp=4, gpus_per_node=6), "tp") == "intra_node"


def test_pipelines_and_rings_are_judged_by_neighbours():
    config = ParallelConfig(tp=2, pp=8, gpus_per_node=8)
    assert link(config, "pp") == "mixed"  # stages 0-1 share a node, 3-4 do not
    assert link(config, "embedding") == "inter_node"
    assert link(ParallelConfig(tp=8, cp=4), "cp_ring") == "inter_node"


def test_links_agree_with_a_check_of_every_group():
    for config in (
        ParallelConfig(tp=2, cp=2, pp=4, dp=6, ep=2, gpus_per_node=4),
        ParallelConfig(tp=3, pp=2, dp=4, gpus_per_node=8),
        ParallelConfig(dp=24, zero_stage=3, hsdp_shard=6, gpus_per_node=8),
    ):
        for group in ("tp", "cp", "dp", "dp_shard", "dp_replicate", "ep", "edp", "world"):
            assert link(config, group) == brute_force(config, group), (config, group)


def brute_force(config, group):
    axes = [axis for axis in group_axes(config, group) if axis[0] > 1]
    kinds = set()
    for base in range(config.world_size):
        if all((base // stride) % length == 0 for length, stride in axes):
            nodes = [rank // config.gpus_per_node for rank in members(tuple(axes), base)]
            distinct = len(set(nodes))
            kinds.add("intra_node" if distinct == 1 else "inter_node" if distinct == len(nodes) else "mixed")
    return kinds.pop() if len(kinds) == 1 else "mixed"


def test_unknown_groups_are_refused():
    with pytest.raises(LedgerError, match="sp"):
        group_axes(ParallelConfig(), "sp")
