"""Plain PyTorch: DDP or FSDP2 around every block, DTensor tensor parallelism, torch.distributed.pipelining."""

from __future__ import annotations

from types import MappingProxyType

from ledger.profiles.base import Profile
from ledger.rules.context import ContextParallel
from ledger.rules.expert import AllToAll
from ledger.rules.fsdp import ShardedUnits, blocks_and_root
from ledger.rules.pipeline import StageBoundary
from ledger.rules.tensor import GatheredLogits, LayerActivations, Vocabulary, norm_gradients_each

CONTEXT = ContextParallel(
    "torch",
    source=MappingProxyType(
        {
            "ring": "torch/distributed/tensor/experimental/_context_parallel/_attention.py, _AllGatherRotater",
            "all_gather": "torch/distributed/tensor/experimental/_context_parallel/_attention.py, flex attention",
            "ulysses": "Jacobs et al. 2023 (DeepSpeed-Ulysses)",
            "hierarchical": "Jacobs et al. 2023 over cp_inner, ring over the rest",
        }
    ),
)
ACTIVATIONS = LayerActivations("torch", backward_overlap="no", reduce_backward_overlap="no", mixture="sublayer")
VOCABULARY = Vocabulary(
    "torch", source="torch/distributed/tensor/parallel/style.py, RowwiseParallel and ColwiseParallel"
)
STAGES = StageBoundary(source="torch/distributed/pipelining/schedules.py", overlap="partial", interleaved_overlap="yes")

TORCH = Profile(
    name="torch",
    title="plain PyTorch: DDP or fully_shard per block and root, DTensor",
    rules=(
        ACTIVATIONS,
        VOCABULARY,
        GatheredLogits(
            source="torch/distributed/tensor/parallel/style.py, ColwiseParallel(output_layouts=Replicate())"
        ),
        norm_gradients_each,
        CONTEXT,
        STAGES,
        ShardedUnits(blocks_and_root),
        AllToAll(source="torch.distributed.all_to_all_single", counts="all_to_all"),
    ),
    expert_tp=1,
)
