"""The stages of a pipeline side by side: the section of a report."""

from __future__ import annotations

from analyzer.model import Pipeline
from analyzer.reporters import format as fmt
from analyzer.reporters.blocks import Column, Section, Table, without_empty

_RUNS = 3
"""Runs of ranks that a stage's cell names; what is beyond is counted."""


def stages_section(pipeline: Pipeline | None) -> Section | None:
    """How the step of each stage divides, with its bubble; None without a pipeline of two stages or more."""
    if pipeline is None or len(pipeline.by_stage) < 2:
        return None
    unit = fmt.time_unit(stage.step_us for stage in pipeline.by_stage)
    columns = [
        Column("stage", right=True),
        Column("ranks", spare=1),
        Column(f"step {unit.name}", right=True),
        Column("compute", right=True),
        Column("waiting", right=True),
        Column("transfer", right=True),
        Column("other exposed", right=True),
        Column("copies", right=True, spare=2),
        Column("idle", right=True),
        Column("bubble", right=True),
    ]
    rows = [
        [
            str(stage.stage),
            fmt.ranks(stage.ranks, _RUNS),
            *(
                fmt.number(us, unit)
                for us in (
                    stage.step_us,
                    stage.compute_us,
                    stage.waiting_us,
                    stage.transfer_us,
                    stage.other_exposed_us,
                    stage.memcpy_us,
                    stage.idle_us,
                )
            ),
            fmt.percent(stage.bubble_fraction),
        ]
        for stage in pipeline.by_stage
    ]
    told = any(stage.transfer_us is not None for stage in pipeline.by_stage)
    what = "waiting and transfer are" if told else "waiting is all that is exposed"
    lead = f"per step and rank; {what} in receives and sends"
    return Section("Stages", lead, [without_empty(Table(columns, rows), ("stage",), fmt.DASH)])
