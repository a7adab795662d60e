"""Plain PyTorch scripts (DDP, FSDP2 or HSDP, DTensor, pipelining on one mesh) and Hugging Face transformers.

One `init_device_mesh` with the dimensions that are larger than one, slowest first: pp, dp (or dp_replicate, dp_shard),
cp, tp; accelerate orders [dp_replicate, dp_shard, cp, sp, tp]. transformers shards with ``tp_plan="auto"``
(transformers/integrations/tensor_parallel.py): no sequence parallelism, an all-reduce per column-parallel weight in
backward, logits gathered.
"""

from __future__ import annotations

from benchmarks.synthesis import messages
from benchmarks.synthesis.frameworks.torch_job import Groups, TorchJob
from benchmarks.synthesis.groups import Group, Mesh, Registry
from benchmarks.synthesis.program import Program
from benchmarks.synthesis.spec import Spec


def groups(registry: Registry, spec: Spec) -> Groups:
    """The dimensions of one mesh, the last one fastest, and the flattened ones that reductions need."""
    hybrid = spec.zero > 0 and spec.dp_replicate > 1
    inner = {"tp": spec.tp, "cp": spec.cp}
    data = {"dp_shard": spec.dp_shard, "dp_replicate": spec.dp_replicate} if hybrid else {"dp": spec.dp}
    mesh = Mesh({name: size for name, size in {**inner, **data, "pp": spec.pp}.items() if size > 1} or {"dp": 1})
    made = {name: registry.device_mesh(mesh, name) for name in list(mesh.axes)[::-1]}
    none = Group("", "none", (registry.rank,))
    both = _flat(registry, mesh, tuple(d for d in ("cp", *data) if d in mesh.axes), "mesh_dp_cp", made)
    shard = _flat(registry, mesh, tuple(d for d in ("cp", "dp_shard") if d in mesh.axes), "mesh_dp_shard_cp", made)
    ep, rest = none, none
    if spec.ep > 1:
        experts = Mesh({"ep": spec.ep, "edp": spec.world // (spec.ep * spec.pp), "pp": spec.pp})
        ep, rest = registry.device_mesh(experts, "ep"), registry.device_mesh(experts, "edp")
    return Groups(
        pp=made.get("pp", none),
        cp=made.get("cp", none),
        tp=made.get("tp", none),
        loss=both or none,
        replicate=made.get("dp_replicate", none),
        shard=(shard if hybrid else both) or none,
        expert_shard=rest,
        ep=ep,
    )


def _flat(registry: Registry, mesh: Mesh, dims: tuple[str, ...], desc: str, made: dict[str, Group]) -> Group | None:
    """Several dimensions as one group; one that is there already where they are one, or span the world."""
    if not dims:
        return None
    if len(dims) == 1:
        return made[dims[0]]
    members = mesh.members(registry.rank, dims)
    if len(members) == registry.world:
        return registry.default
    return registry.next(desc, members, mesh.index(registry.rank, dims), mesh.count(dims))


class Script(TorchJob):
    """A training script of its own: clips, and reduces the loss now and then."""

    def clip(self) -> None:
        """`clip_grad_norm_` on DTensors."""
        if self.fsdp is not None and self.spec.option("clip", True):
            count = 9 * sum(len(c.layers) for c in self.chunks) + 3
            self.p.collective(messages.all_reduce(self.g.shard, count, "Float", functional=True))

    def log(self) -> None:
        """The loss of the step, where it is logged."""
        if self.spec.option("log", False) and self.g.loss.size > 1:
            self.p.collective(messages.all_reduce(self.g.loss, 1, "Float"))


class HuggingFace(Script):
    """transformers: embedding and head sharded by vocabulary, logits gathered whole."""

    def _loss(self) -> None:
        if self.spec.tp > 1:
            shard = self.spec.tokens * self.spec.model.vocab // self.spec.tp
            message = messages.all_gather(self.g.tp, shard, self.spec.dtype, functional=True)
            self.p.wait(self.p.collective(message, is_async=True))
        self.compute.loss()


def program(spec: Spec, rank: int) -> Program:
    """All steps of one rank."""
    registry = Registry(rank, spec.world)
    found = groups(registry, spec)
    kind = HuggingFace if spec.framework == "hf" else Script
    job = kind(spec, rank, found, registry.own, registry.count)
    for step in range(spec.steps):
        job.step(step)
    return job.p
