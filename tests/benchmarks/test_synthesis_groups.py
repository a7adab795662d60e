"""Groups get the ranks and the numbers that frameworks give them.

Numbers from captured jobs: Megatron-core 0.16.1 with tp2 ep2 pp2 dp2 (etp 1), torchtitan 0.3.0 with pp4 fsdp16.
"""

from __future__ import annotations

from benchmarks.synthesis.frameworks import megatron_groups, torchtitan
from benchmarks.synthesis.groups import Group, Mesh, Registry
from benchmarks.synthesis.spec import MODELS, Spec


def named(registry: Registry) -> dict[str, tuple[str, int]]:
    return {group.name: (group.desc, group.size) for group in registry.own}


def test_megatron_groups_are_numbered_in_order_of_creation() -> None:
    registry = Registry(0, 8)
    megatron_groups.groups(registry, Spec.parse("megatron", "tp2-ep2-pp2-dp2-etp1"))
    assert {name: desc for name, (desc, _) in named(registry).items() if not desc.endswith("_GLOO")} == {
        "0": "default_pg",
        "1": "DATA_PARALLEL_GROUP_WITH_CP",
        "9": "DATA_PARALLEL_GROUP",
        "17": "CONTEXT_PARALLEL_GROUP",
        "25": "MODEL_PARALLEL_GROUP",
        "27": "TENSOR_MODEL_PARALLEL_GROUP",
        "31": "PIPELINE_MODEL_PARALLEL_GROUP",
        "32": "EMBEDDING_GROUP",
        "33": "POSITION_EMBEDDING_GROUP",
        "43": "TENSOR_AND_DATA_PARALLEL_GROUP_WITH_CP",
        "45": "TENSOR_AND_DATA_PARALLEL_GROUP",
        "47": "TENSOR_AND_CONTEXT_PARALLEL_GROUP",
        "51": "EXPERT_MODEL_PARALLEL_GROUP",
        "55": "EXPERT_TENSOR_PARALLEL_GROUP",
        "63": "EXPERT_TENSOR_AND_MODEL_PARALLEL_GROUP",
        "67": "EXPERT_TENSOR_MODEL_PIPELINE_PARALLEL_GROUP",
        "69": "EXPERT_DATA_PARALLEL_GROUP",
        "77": "INTRA_DISTRIBUTED_OPTIMIZER_INSTANCE_GROUP",
    }
    assert registry.count == 78


def test_megatron_dense_and_expert_meshes_divide_the_same_ranks() -> None:
    found = megatron_groups.groups(Registry(5, 8), Spec.parse("megatron", "tp2-ep2-pp2-dp2-etp1"))
    assert (found.tp.ranks, found.pp.ranks, found.data.ranks) == ((4, 5), (1, 5), (5, 7))
    assert (found.ep.ranks, found.expert_data.ranks) == ((4, 5), (5, 7))
    assert found.embedding is not None
    assert found.embedding.ranks == (1, 5)


def test_torchtitan_meshes_are_numbered_as_device_mesh_numbers_them() -> None:
    registry = Registry(37, 64)
    torchtitan.groups(registry, Spec.parse("torchtitan", "pp4-dp16"))
    assert [(g.name, g.desc, g.size) for g in registry.own] == [
        ("0", "default_pg", 64),
        ("6", "mesh_pp", 4),
        ("19", "mesh_batch", 16),
        ("58", "mesh_cp", 1),
        ("122", "mesh_tp", 1),
        ("151", "mesh_loss_mesh", 16),
        ("158", "mesh_pp", 4),
        ("206", "mesh_dp_replicate", 1),
        ("235", "mesh_fsdp", 16),
        ("274", "mesh_tp", 1),
        ("306", "mesh_pp", 4),
        ("354", "mesh_dp_replicate", 1),
        ("383", "mesh_efsdp", 16),
        ("422", "mesh_ep", 1),
    ]
    assert registry.count == 449


def test_a_dimension_that_spans_the_world_is_the_default_group() -> None:
    registry = Registry(3, 4)
    found = torchtitan.groups(registry, Spec.parse("torchtitan", "dp4-ep4", model=MODELS["moe"]))
    assert found.shard is registry.default
    assert found.ep is registry.default


def test_members_of_a_mesh() -> None:
    mesh = Mesh({"tp": 2, "cp": 2, "dp": 3, "pp": 2})
    assert mesh.world == 24
    assert mesh.members(0, ("dp",)) == (0, 4, 8)
    assert mesh.members(13, ("pp",)) == (1, 13)
    assert mesh.members(5, ("tp", "dp")) == (0, 1, 4, 5, 8, 9)
    assert all(mesh.rank(mesh.coordinates(rank)) == rank for rank in range(24))
    assert [mesh.index(rank, ("tp",)) for rank in (0, 1, 2, 23)] == [0, 0, 1, 11]


def test_irregular_groups_have_no_stride() -> None:
    assert Group("1", "", (0, 1, 4, 5)).stride is None
    assert Group("1", "", (1, 5, 9)).stride == 4
    assert Group("1", "", (7,)).stride == 0
