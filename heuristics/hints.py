"""What group descriptions suggest. A hint raises the confidence of a reading that behaviour supports; it makes none.

Sources: megatron/core/parallel_state.py (group_desc), torch DeviceMesh (``mesh_<dim>``), torchtitan parallel_dims.py,
accelerate ParallelismConfig.
"""

from __future__ import annotations

import re

_HINTS: tuple[tuple[str, str], ...] = (
    (r"EXPERT_DATA_PARALLEL|mesh_(efsdp|edp|edp_\w+)$", "dp"),
    (r"EXPERT_(MODEL|TENSOR_AND_MODEL)_PARALLEL|mesh_ep$|^ep$", "ep"),
    (r"DATA_PARALLEL_GROUP|INTRA_PARTIAL_DATA_PARALLEL|INTER_DISTRIBUTED_OPTIMIZER", "dp"),
    (r"mesh_(dp|dp_\w+|fsdp|data_parallel|dp_replicate|dp_shard|replicate|shard)$|^(dp|fsdp)$", "dp"),
    (r"^(HIERARCHICAL_)?CONTEXT_PARALLEL_GROUP|mesh_(cp|sequence_parallel|sp)$|^cp$", "cp"),
    (r"^TENSOR_MODEL_PARALLEL_GROUP|mesh_tp$|^tp$", "tp"),
    (r"^PIPELINE_MODEL_PARALLEL_GROUP|^(POSITION_)?EMBEDDING_GROUP|mesh_pp$|^pp$", "pp"),
)
_COMPILED = tuple((re.compile(pattern), dim) for pattern, dim in _HINTS)


def hint(description: str) -> str | None:
    """The dimension that a group description suggests, if any."""
    return next((dim for pattern, dim in _COMPILED if pattern.search(description)), None)
