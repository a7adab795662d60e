"""DeepSpeed's ZeRO stages as they communicate."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ledger.payloads import gradient_calls
from ledger.rules.data import Copies, dp_flow, dtypes, held
from ledger.rules.flow import Flow
from ledger.stages import Stage
from ledger.weights import Weight, elements

_STAGE_1_2 = "deepspeed/runtime/zero/stage_1_and_2.py"
_STAGE_3 = "deepspeed/runtime/zero/partitioned_param_coordinator.py; stage3.py"


@dataclass(frozen=True)
class DeepSpeedZero:
    """Stages 1 and 2 all-reduce gradients and gather parameters after the step; stage 3 does both as it goes.

    Attributes:
        persistence_threshold: stage 3 keeps tensors of up to this many elements whole
            (stage3_param_persistence_threshold).
        reuse_distance: stage 3 keeps what is used again within so many elements (stage3_max_reuse_distance); judged
            here layer by layer.
    """

    persistence_threshold: int = 100_000
    reuse_distance: int = 10**9

    def __call__(self, stage: Stage) -> Iterator[Flow]:
        """The stage's reductions and gathers."""
        zero = stage.config.zero_stage
        for copies, weights in held(stage):
            yield from self._partitioned(stage, copies, weights) if zero == 3 else self._flat(stage, copies, weights)

    def _flat(self, stage: Stage, copies: Copies, weights: tuple[Weight, ...]) -> Iterator[Flow]:
        params, grads = dtypes(stage)
        size = elements(weights)
        calls = gradient_calls("deepspeed", stage.config.zero_stage, stage.runs)
        yield dp_flow(
            f"{copies.name}gradients",
            "all_reduce",
            "backward",
            copies.whole,
            size,
            grads,
            source=_STAGE_1_2,
            calls=calls["all_reduce"],
            formula="1 (m in stage 2); N of the stage",
            bucketed=True,
        )
        if "all_gather" in calls:
            yield dp_flow(
                f"{copies.name}parameters",
                "all_gather",
                "optimizer",
                copies.shard,
                size,
                params,
                source=_STAGE_1_2,
                overlap="no",
                bucketed=True,
            )

    def _partitioned(self, stage: Stage, copies: Copies, weights: tuple[Weight, ...]) -> Iterator[Flow]:
        params, grads = dtypes(stage)
        ranks, m, name = copies.shard_ranks(stage), stage.runs, copies.name
        fetched = self._fetched(weights, ranks)
        small = _padded(weights, ranks) - fetched
        large = "m; tensors above the persistence threshold"
        for part, primitive, phase, size, dtype, calls, formula in (
            ("parameters", "all_gather", "forward", fetched, params, m, large),
            (
                "parameters",
                "all_gather",
                "backward",
                fetched - self._kept(stage, copies),
                params,
                m,
                f"{large}, not kept",
            ),
            ("gradients", "reduce_scatter", "backward", _padded(weights, ranks), grads, m, "m; N of the stage"),
            ("persistent parameters", "all_gather", "optimizer", small, params, 1, "1; tensors up to the threshold"),
        ):
            yield dp_flow(
                name + part,
                primitive,
                phase,
                copies.shard,
                size,
                dtype,
                source=_STAGE_3,
                calls=calls,
                formula=formula,
                bucketed=True,
            )

    def _persists(self, weight: Weight) -> bool:
        return weight.rows * weight.cols <= self.persistence_threshold

    def _fetched(self, weights: tuple[Weight, ...], ranks: int) -> int:
        return _padded(tuple(weight for weight in weights if not self._persists(weight)), ranks)

    def _kept(self, stage: Stage, copies: Copies) -> int:
        """Elements still gathered when backward returns to them: twice what follows a layer lies between its uses."""
        ends = stage.ends_local
        embedding = tuple(weight for weight in ends if weight.part == "embedding")
        output = tuple(weight for weight in ends if weight.part != "embedding")
        after = kept = 0
        for unit in reversed((embedding, *stage.layer_local, output)):
            if 2 * after < self.reuse_distance:
                mine = tuple(weight for weight in unit if (weight.split == "expert") == copies.expert)
                kept += self._fetched(mine, copies.shard_ranks(stage))
            after += elements(unit)
        return kept


def _padded(weights: tuple[Weight, ...], ranks: int) -> int:
    """Every tensor rounded up to a multiple of the sharding ranks."""
    return sum(-(-weight.rows * weight.cols // ranks) * ranks * weight.copies for weight in weights)
