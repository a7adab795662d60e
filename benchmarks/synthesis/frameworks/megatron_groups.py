"""The process groups of Megatron-LM, in the order of `initialize_model_parallel` (megatron/core/parallel_state.py)."""

from __future__ import annotations

from dataclasses import dataclass

from benchmarks.synthesis.groups import Group, Mesh, Registry
from benchmarks.synthesis.spec import Spec


@dataclass(frozen=True)
class Groups:
    """The groups that calls go to."""

    data: Group
    data_cp: Group
    intra: Group  # the ranks of one optimizer instance
    inter: Group | None  # the same place in all instances
    cp: Group
    levels: tuple[Group, Group] | None  # of hierarchical context parallelism: inner, outer
    model: Group
    tp: Group
    pp: Group
    embedding: Group | None
    amax: Group
    tp_cp: Group
    ep: Group
    etp: Group
    tp_ep: Group
    expert_data: Group
    optimizer: Group
    world: Group


def groups(registry: Registry, spec: Spec) -> Groups:
    """Create all groups of a rank, in the order of `initialize_model_parallel`."""
    dense = Mesh({"tp": spec.tp, "cp": spec.cp, "dp": spec.dp, "pp": spec.pp})
    rest = spec.world // (spec.etp * spec.ep * spec.pp)
    expert = Mesh({"tp": spec.etp, "ep": spec.ep, "dp": rest, "pp": spec.pp})
    if spec.option("order", None) == "tp-pp-dp":
        dense = Mesh({"tp": spec.tp, "cp": spec.cp, "pp": spec.pp, "dp": spec.dp})
        expert = Mesh({"tp": spec.etp, "ep": spec.ep, "pp": spec.pp, "dp": rest})
    data_cp = _with_gloo(registry, dense, ("dp", "cp"), "DATA_PARALLEL_GROUP_WITH_CP")
    intra, inter = _instances(registry, spec, data_cp)
    data = _with_gloo(registry, dense, ("dp",), "DATA_PARALLEL_GROUP")
    cp = registry.along(dense, ("cp",), "CONTEXT_PARALLEL_GROUP")
    levels = _levels(registry, spec, cp)
    model = registry.along(dense, ("tp", "pp"), "MODEL_PARALLEL_GROUP")
    tp = registry.along(dense, ("tp",), "TENSOR_MODEL_PARALLEL_GROUP")
    pp, embedding = _pipeline_groups(registry, dense)
    amax = registry.along(dense, ("tp", "dp", "cp"), "TENSOR_AND_DATA_PARALLEL_GROUP_WITH_CP")
    registry.along(dense, ("tp", "dp"), "TENSOR_AND_DATA_PARALLEL_GROUP")
    tp_cp = registry.along(dense, ("tp", "cp"), "TENSOR_AND_CONTEXT_PARALLEL_GROUP")
    ep = registry.along(expert, ("ep",), "EXPERT_MODEL_PARALLEL_GROUP")
    etp = registry.along(expert, ("tp",), "EXPERT_TENSOR_PARALLEL_GROUP")
    tp_ep = registry.along(expert, ("tp", "ep"), "EXPERT_TENSOR_AND_MODEL_PARALLEL_GROUP")
    registry.along(expert, ("tp", "ep", "pp"), "EXPERT_TENSOR_MODEL_PIPELINE_PARALLEL_GROUP")
    expert_data = _with_gloo(registry, expert, ("dp",), "EXPERT_DATA_PARALLEL_GROUP")
    optimizer = registry.next("INTRA_DISTRIBUTED_OPTIMIZER_INSTANCE_GROUP", range(spec.world))
    return Groups(
        data=data,
        data_cp=data_cp,
        intra=intra,
        inter=inter,
        cp=cp,
        levels=levels,
        model=model,
        tp=tp,
        pp=pp,
        embedding=embedding,
        amax=amax,
        tp_cp=tp_cp,
        ep=ep,
        etp=etp,
        tp_ep=tp_ep,
        expert_data=expert_data,
        optimizer=optimizer,
        world=registry.default,
    )


def _levels(registry: Registry, spec: Spec, cp: Group) -> tuple[Group, Group] | None:
    """`hierarchical_context_parallel_sizes`: pairs of neighbours, and the same place in all pairs."""
    if spec.cp_kind != "hierarchical" or spec.cp < 4:
        return None
    ranks, place = list(cp.ranks), list(cp.ranks).index(registry.rank)
    name = "HIERARCHICAL_CONTEXT_PARALLEL_GROUP_L{}"
    inner = registry.next(name.format(0), tuple(ranks[place // 2 * 2 :][:2]), place // 2, registry.world // 2)
    outer = tuple(ranks[place % 2 :: 2])
    return inner, registry.next(name.format(1), outer, place % 2, registry.world // len(outer))


def _instances(registry: Registry, spec: Spec, data_cp: Group) -> tuple[Group, Group | None]:
    """With several optimizer instances (`num_distributed_optimizer_instances`): inside one, and across them."""
    count = spec.dp_replicate
    if count == 1:
        return data_cp, None
    size = data_cp.size // count
    place = list(data_cp.ranks).index(registry.rank)
    inside = tuple(data_cp.ranks[place // size * size :][:size])
    across = tuple(data_cp.ranks[place % size :: size])
    total = registry.world // data_cp.size
    number = registry.rank % spec.tp + spec.tp * (registry.rank // (spec.world // spec.pp))
    name = "INTRA_PARTIAL_DATA_PARALLEL_GROUP_WITH_CP"
    intra = registry.next(name, inside, number * count + place // size, total * count)
    name = "INTER_PARTIAL_DATA_PARALLEL_GROUP_WITH_CP"
    return intra, registry.next(name, across, number * size + place % size, total * size)


def _with_gloo(registry: Registry, mesh: Mesh, dims: tuple[str, ...], desc: str) -> Group:
    """A family where each group is followed by its Gloo twin."""
    ranks, index, total = mesh.members(registry.rank, dims), mesh.index(registry.rank, dims), mesh.count(dims)
    base = registry.count
    group = Group(str(base + 2 * index), desc, ranks, "cpu:gloo,cuda:nccl")
    twin = Group(str(base + 2 * index + 1), f"{desc}_GLOO", ranks, "cpu:gloo,cuda:gloo")
    registry.own += [group, twin]
    registry.skip(2 * total)
    return group


def _pipeline_groups(registry: Registry, mesh: Mesh) -> tuple[Group, Group | None]:
    """Each pipeline group with the groups of its ends."""
    ranks, index = mesh.members(registry.rank, ("pp",)), mesh.index(registry.rank, ("pp",))
    base = registry.count + 3 * index
    pp = Group(str(base), "PIPELINE_MODEL_PARALLEL_GROUP", ranks, registry.backend)
    ends = ranks if len(ranks) == 1 else (ranks[0], ranks[-1])
    own = [pp]
    embedding = None
    if registry.rank in ends:
        embedding = Group(str(base + 1), "EMBEDDING_GROUP", ends, registry.backend)
        own.append(embedding)
    if registry.rank == ranks[0]:
        own.append(Group(str(base + 2), "POSITION_EMBEDDING_GROUP", ranks[:1], registry.backend))
    registry.own += own
    registry.skip(3 * mesh.count(("pp",)))
    return pp, embedding
