"""The JSON document has every key of the contract, on a job that has everything and on one that has nothing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from analyzer.model import to_json
from analyzer.pipeline import analyze
from tests.analyzer.kineto_files import ddp_trace, write_job

DEGREES = {"tp", "cp", "pp", "dp", "ep"}
TIMES = {"busy_us", "exposed_us", "overlapped_us", "wait_us", "transfer_us"}
STEP = {"step_us", "compute_us", "exposed_us", "overlapped_us", "memcpy_us", "idle_us", "by_dimension"}

CONTRACT: dict[str, set[str]] = {
    "": {
        "schema_version",
        "tool",
        "inputs",
        "trust",
        "world_size",
        "gpus_per_node",
        "layout",
        "collectives",
        "exposure",
        "pipeline",
        "experts",
        "ledger",
        "stragglers",
        "findings",
    },
    "tool": {"name", "version"},
    "inputs[]": {"path", "format", "rank", "host", "bytes", "events", "complete"},
    "trust": {
        "ranks_present",
        "ranks_missing",
        "ranks_duplicated",
        "events_repaired",
        "events_quarantined",
        "events_clipped",
        "steps",
        "comm_time_classified",
        "comm_time_with_group",
        "comm_calls_with_bytes",
        "clock",
        "warnings",
    },
    "trust.steps": {"source", "complete", "incomplete"},
    "trust.clock": {"aligned", "residual_us", "offset_us"},
    "layout": DEGREES
    | {
        "sequence_parallel",
        "data_parallel",
        "zero_stage",
        "dp_shard",
        "dp_replicate",
        "cp_kind",
        "pp_schedule",
        "virtual_stages",
        "microbatches",
        "rank_order",
        "recompute",
        "grad_reduce_dtype",
        "confidence",
        "source",
        "dimensions",
        "alternatives",
    },
    "layout.dimensions": DEGREES,
    "layout.dimensions.tp": {"degree", "confidence", "groups", "evidence", "against"},
    "layout.alternatives[]": DEGREES | {"zero_stage", "confidence", "why_less"},
    "collectives[]": {
        "dim",
        "primitive",
        "op",
        "group_size",
        "link",
        "link_type",
        "dtype",
        "phase",
        "calls_per_step",
        "size_bytes",
        "sent_bytes_per_step",
        "time_us_per_step",
        "wait_us_per_step",
        "transfer_us_per_step",
        "exposed_us_per_step",
        "overlapped_us_per_step",
        "algbw_gbps",
        "busbw_gbps",
        "classified_by",
    },
    "collectives[].size_bytes": {"min", "p50", "max"},
    "exposure": STEP | {"by_rank"},
    "exposure.by_dimension.*": TIMES,
    "exposure.by_rank[]": STEP | {"rank"},
    "exposure.by_rank[].by_dimension.*": TIMES,
    "pipeline": {"bubble_fraction", "stage_of_rank"},
    "pipeline.bubble_fraction": {"observed", "predicted"},
    "ledger": {"profile", "model", "rows", "residual_bytes", "exposure"},
    "ledger.model": {"name", "layers", "hidden"},
    "ledger.rows[]": {
        "dim",
        "primitive",
        "link",
        "predicted_bytes",
        "observed_bytes",
        "ratio",
        "verdict",
        "explanation",
    },
    "ledger.exposure[]": {"dim", "predicted", "observed_exposed_fraction", "verdict"},
    "stragglers[]": {"rank", "late_us_per_step", "share_of_waits", "cause"},
    "findings[]": {"id", "severity", "title", "detail", "dim", "ranks", "cost_us"},
}
"""Every object of analysis.json (schema_version 1) and the keys it must have."""


def parts(document: Any, path: str) -> list[Any]:
    """All objects that a path of `CONTRACT` means."""
    found = [document]
    for step in path.split(".") if path else []:
        name = step.removesuffix("[]")
        found = [value for item in found for value in (item.values() if name == "*" else [item[name]])]
        found = [item for item in found if item is not None]
        if step.endswith("[]"):
            found = [item for items in found for item in items]
    return found


def document(folder: Path, **options: Any) -> Any:
    return json.loads(to_json(analyze(folder, **options)))


@pytest.mark.parametrize("path", CONTRACT)
def test_every_key_of_the_contract_is_written(path: str, whole: Any, empty: Any) -> None:
    for each in (whole, empty):
        for item in parts(each, path):
            assert CONTRACT[path] <= set(item)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return document(write_job(tmp_path_factory.mktemp("whole")))


@pytest.fixture(scope="module")
def empty(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("empty")
    (folder / "rank0.json").write_text(json.dumps(ddp_trace(0, 1, comm=False)))
    return document(folder)


def test_the_job_exercises_the_parts_that_are_not_null(whole: Any) -> None:
    seen = {path for path in CONTRACT if parts(whole, path)}
    # Nothing is a pipeline or late enough here, and no other layout comes near.
    assert set(CONTRACT) - seen <= {
        "layout.alternatives[]",
        "pipeline",
        "pipeline.bubble_fraction",
        "ledger.exposure[]",
        "stragglers[]",
    }


def test_a_job_without_communication_has_the_same_shape(empty: Any) -> None:
    assert empty["collectives"] == []
    assert empty["trust"]["comm_time_classified"] is None
    assert empty["ledger"] is None


def test_pipelines_and_models_fill_their_parts(shared: Path) -> None:
    found = document(shared / "data" / "captures" / "pp2_dp2_1f1b", model="llama2-7b")
    assert found["pipeline"]["bubble_fraction"]["predicted"] == pytest.approx(1 / 5, abs=1e-6)
    assert found["pipeline"]["stage_of_rank"].keys() == {"0", "1", "2", "3"}
    for path, keys in CONTRACT.items():
        for item in parts(found, path):
            assert keys <= set(item)
