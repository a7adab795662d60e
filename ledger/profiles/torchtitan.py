"""torchtitan, by release: what changed is how FSDP units are cut."""

from __future__ import annotations

from dataclasses import replace

from ledger.profiles.base import Profile
from ledger.profiles.torch import ACTIVATIONS, CONTEXT, STAGES, VOCABULARY
from ledger.rules import control
from ledger.rules.expert import AllToAll
from ledger.rules.flow import Rule
from ledger.rules.fsdp import (
    ShardedUnits,
    UnitPlan,
    embedding_blocks_chunked_output,
    embedding_blocks_output,
    kept_last_block_and_root,
)
from ledger.rules.tensor import CrossEntropy, norm_gradients_each


def _rules(plan: UnitPlan) -> tuple[Rule, ...]:
    return (
        ACTIVATIONS,
        VOCABULARY,
        CrossEntropy(source="torch/distributed/tensor/parallel/loss.py"),
        norm_gradients_each,
        CONTEXT,
        STAGES,
        ShardedUnits(plan),
        AllToAll(source="torchtitan/distributed/expert_parallel.py", counts="all_to_all"),
        *control.TORCHTITAN,
    )


TORCHTITAN = Profile(
    name="torchtitan",
    title="torchtitan v0.2: FSDP2 units for embedding, blocks and output; DTensor; float32 gradients",
    rules=_rules(embedding_blocks_output),
    grad_dtype="float32",
    expert_tp=1,
    weighted_layers=True,
    precision="fp32",
)
TORCHTITAN_0_1 = replace(
    TORCHTITAN,
    name="torchtitan_0_1",
    title="torchtitan v0.1: embedding and output in the root unit, last block kept",
    rules=_rules(kept_last_block_and_root),
    weighted_layers=False,
)
TORCHTITAN_0_3 = replace(
    TORCHTITAN,
    name="torchtitan_0_3",
    title="torchtitan v0.3: chunked loss gathers the output unit three times",
    rules=_rules(embedding_blocks_chunked_output),
)
