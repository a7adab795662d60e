"""torchtitan: distributed/parallel_dims.py for the meshes, models/llama3/parallelize.py and train.py for the step.

Meshes are laid out [pp, dp_replicate, dp_shard, cp, tp] with tensor parallelism fastest; parameters are sharded over
dp_shard x cp, experts over what is left of it by expert parallelism.
"""

from __future__ import annotations

from benchmarks.synthesis import messages
from benchmarks.synthesis.frameworks.torch_job import Groups, TorchJob
from benchmarks.synthesis.groups import Group, Mesh, Registry
from benchmarks.synthesis.program import Program
from benchmarks.synthesis.spec import Spec

FAKE = "cpu:fake,cuda:fake"


def groups(registry: Registry, spec: Spec) -> Groups:
    """All meshes, in the order of `ParallelDims.build_mesh` (torchtitan v0.2.2)."""
    shard = spec.dp_shard * spec.cp
    rest = shard * spec.tp // (spec.ep * spec.etp)
    data = Mesh({"tp": spec.tp, "cp": spec.cp, "batch": spec.dp, "pp": spec.pp})
    dense = Mesh({"tp": spec.tp, "fsdp": shard, "dp_replicate": spec.dp_replicate, "pp": spec.pp})
    sparse = Mesh({"etp": spec.etp, "ep": spec.ep, "efsdp": rest, "dp_replicate": spec.dp_replicate, "pp": spec.pp})

    def make(mesh: Mesh, dim: str, fake: bool = False) -> Group:
        return registry.device_mesh(mesh, dim, backend=FAKE if fake or mesh.axes[dim] == 1 else None)

    pp, _batch, cp, tp = (make(data, dim, fake=dim == "batch") for dim in ("pp", "batch", "cp", "tp"))
    flat = Mesh({"tp": spec.tp, "loss_mesh": spec.cp * spec.dp, "pp": spec.pp})
    loss = make(flat, "loss_mesh")
    make(dense, "pp")
    replicate, fsdp = make(dense, "dp_replicate"), make(dense, "fsdp")
    make(dense, "tp")
    make(sparse, "pp")
    make(sparse, "dp_replicate")
    efsdp, ep = make(sparse, "efsdp", fake=spec.ep == 1), make(sparse, "ep")
    small = _small(registry, spec, fsdp)
    return Groups(pp, cp, tp, loss, replicate, fsdp, efsdp, ep, small)


def _small(registry: Registry, spec: Spec, fsdp: Group) -> Group | None:
    """The inner mesh of ``reshard_after_forward=<int>``."""
    n = spec.option("reshard", None)
    if not isinstance(n, int) or isinstance(n, bool):
        return None
    me = list(fsdp.ranks).index(registry.rank)
    start = me // n * n
    return registry.next("mesh_dim_1", tuple(fsdp.ranks[start : start + n]), index=me // n, total=spec.world // n)


class TorchTitan(TorchJob):
    """torchtitan/train.py: counts valid tokens before, clips and logs after."""

    def begin(self) -> None:
        """The number of valid tokens of the step."""
        self.p.collective(messages.all_reduce(self.g.loss, 1, "Long", functional=True))

    def clip(self) -> None:
        """Norms of all parameters, once per mesh dimension (torchtitan/distributed/utils.py `clip_grad_norm_`)."""
        count = 9 * sum(len(c.layers) for c in self.chunks) + 3
        for group in (self.g.shard, self.g.tp):
            if group.size > 1 and (group is self.g.tp or self.fsdp is not None):
                self.p.collective(messages.all_reduce(group, count, "Float", functional=True))
        if self.spec.pp > 1:
            self.p.collective(messages.all_reduce(self.g.pp, 1, "Float", functional=True))

    def log(self) -> None:
        """Mean and maximum of the loss, tokens seen."""
        for dtype in ("Float", "Float", "Long"):
            self.p.collective(messages.all_reduce(self.g.loss, 1, dtype, functional=True))


def program(spec: Spec, rank: int) -> Program:
    """All steps of one rank."""
    registry = Registry(rank, spec.world)
    found = groups(registry, spec)
    job = TorchTitan(spec, rank, found, registry.own, registry.count)
    for step in range(spec.steps):
        job.step(step)
    return job.p
