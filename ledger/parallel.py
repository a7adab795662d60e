"""The ledger's front door: layouts, bytes per call, and the rows a layout should send.

``python -m ledger.parallel`` prints six worked examples (Llama 3 405B and 70B).
"""

from __future__ import annotations

from ledger.collectives import PRIMITIVES, collective_bytes
from ledger.config import CP_KINDS, DIMS, RECOMPUTE, SCHEDULES, ParallelConfig
from ledger.model import ModelSpec
from ledger.profiles import Profile
from ledger.profiles import profile as named
from ledger.rows import CommRow, merge_stages, stage_rows

__all__ = [
    "CP_KINDS",
    "DIMS",
    "PRIMITIVES",
    "RECOMPUTE",
    "SCHEDULES",
    "CommRow",
    "ParallelConfig",
    "collective_bytes",
    "predict",
    "predict_stage",
]


def predict(model: ModelSpec, config: ParallelConfig, profile: str | Profile = "textbook") -> tuple[CommRow, ...]:
    """Everything one rank of each kind (first, middle, last stage) should send in a step.

    Rows with ``noise`` set are listed too. For one pipeline rank exactly, see `predict_stage`.

    Raises:
        LedgerError: unknown profile, or a model that does not fit the layout.
    """
    chosen = named(profile) if isinstance(profile, str) else profile
    resolved = chosen.resolve(config)
    per_stage = [stage_rows(stage, chosen.flows(stage)) for stage in chosen.stages(model, resolved)]
    return merge_stages(per_stage, resolved)


def predict_stage(
    model: ModelSpec, config: ParallelConfig, index: int, profile: str | Profile = "textbook"
) -> tuple[CommRow, ...]:
    """Everything a rank of pipeline stage ``index`` should send in a step.

    Raises:
        LedgerError: unknown profile, no such stage, or a model that does not fit the layout.
    """
    chosen = named(profile) if isinstance(profile, str) else profile
    resolved = chosen.resolve(config)
    stage = chosen.stage(model, resolved, index)
    return stage_rows(stage, chosen.flows(stage))


if __name__ == "__main__":
    from ledger.worked_examples import main

    main()
