"""The jobs that accuracy is measured on: bundled and captured ones, published ones, generated ones."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.scoring.answers import DEGREES, Truth, truth_of
from benchmarks.synthesis.matrix import Entry
from benchmarks.synthesis.published import BRIDGE, MLPERF, bridge, mlperf

ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Case:
    """One job: its traces and what is known of it.

    Attributes:
        name: of the job.
        source: ``bundled``, ``captured``, ``ablated``, ``published``, ``generated`` or ``layouts``.
        folder: of its traces; None for one that has yet to be generated.
        truth: what is right, where the folder does not say it.
        entry: how to generate it.
    """

    name: str
    source: str
    folder: Path | None = None
    truth: Truth | None = None
    entry: Entry | None = None


PUBLISHED: dict[str, dict[str, Any]] = {
    "megatron_tp8_2024": {"tp": 8, "cp": 1, "pp": 1, "dp": 1, "ep": 1, "sp": False},
    "megatron_tp2_2024": {"tp": 2, "cp": 1, "pp": 1, "dp": 1, "ep": 1, "sp": False},
    "torchtitan_fsdp4_2026": {"tp": 1, "cp": 1, "pp": 1, "dp": 4, "ep": 1, "zero": 3},
    "nanogpt_overlap_before": {"tp": 1, "cp": 1, "pp": 1, "dp": 8, "ep": 1},
    "nanogpt_overlap_after": {"tp": 1, "cp": 1, "pp": 1, "dp": 8, "ep": 1},
    "ao_ep2_nccl": {"tp": 1, "cp": 1, "pp": 1, "ep": 2},
    "ao_ep2_symmetric": {"tp": 1, "cp": 1, "pp": 1, "ep": 2},
    "lightllm_ep8_decode": {"tp": 1, "cp": 1, "pp": 1, "ep": 8},
    "lightllm_tp8_decode": {"tp": 8, "cp": 1, "pp": 1, "dp": 1, "ep": 1},
    "vllm_tp8_b200": {"tp": 8, "cp": 1, "pp": 1, "dp": 1, "ep": (1, 8)},
    "rccl_ddp8_mi300": {"tp": 1, "cp": 1, "pp": 1, "dp": 8, "ep": 1, "zero": 0},
    "torchrec_resnet_dp2": {"tp": 1, "cp": 1, "pp": 1, "dp": 2, "ep": 1, "zero": 0},
    "torchrec_mp4": {"tp": 1, "cp": 1, "pp": 1},
    "sglang_tp1_decode": {"tp": 1, "cp": 1, "pp": 1, "dp": 1, "ep": 1},
    "vllm_tp1_graphs": {"tp": 1, "cp": 1, "pp": 1, "dp": 1, "ep": 1},
    "hta/nccl_parser_config": {"tp": 1, "cp": 1, "pp": 1, "dp": 2, "ep": 1, "zero": 0},
    "hta/df_index_resolver": {"tp": 1, "cp": 1, "pp": 1, "dp": 2, "ep": 1, "zero": 0},
}
"""Real GPU traces from public repositories: what their repository says or their contents prove."""


def bundled() -> Iterator[Case]:
    """The captures in this repository."""
    yield from _folders(ROOT / "sample_traces", "bundled")


def captured(shared: Path | None) -> Iterator[Case]:
    """Captured jobs beside the checkout, where they are there."""
    if shared is not None:
        yield from _folders(shared / "data" / "captures", "captured")


def ablated(shared: Path | None) -> Iterator[Case]:
    """The same, bundled or beside the checkout, for traces that lack something (`benchmarks.scoring.ablation`)."""
    for case in (*bundled(), *captured(shared)):
        yield Case(f"{case.name} ({case.source})", "ablated", case.folder)


def published(shared: Path | None) -> Iterator[Case]:
    """Published traces beside the checkout, where they are there."""
    for name, known in PUBLISHED.items() if shared is not None else ():
        assert shared is not None
        folder = shared / "data" / "real" / name
        if folder.is_dir():
            truth = {field: frozenset(v if isinstance(v, tuple) else (v,)) for field, v in known.items()}
            yield Case(name, "published", folder, truth)


def generated(entries: Iterator[Entry]) -> Iterator[Case]:
    """Jobs to simulate."""
    for entry in entries:
        yield Case(entry.spec.name(), "generated", entry=entry)


def layouts(shared: Path | None) -> Iterator[Case]:
    """Published configurations to simulate, where their tables are there: a few ranks of each."""
    if shared is None:
        return
    tables, seen = shared / "data" / "tables", set()
    for table, read in ((MLPERF, mlperf), *((name, bridge) for name in BRIDGE)):
        for spec in read(tables / table) if (tables / table).is_file() else ():
            if spec.name() in seen:
                continue
            seen.add(spec.name())
            yield Case(spec.name(), "layouts", entry=Entry(spec, ("a", "b", "c"), "published"))


def _folders(parent: Path, source: str) -> Iterator[Case]:
    for path in sorted(parent.glob("*/truth.json")):
        yield Case(path.parent.name, source, path.parent)


def truth(case: Case, folder: Path) -> Truth:
    """What is right for a case whose traces are in a folder."""
    return case.truth if case.truth is not None else truth_of(folder)


def degrees_text(truth: Truth) -> str:
    """The degrees that are known and not 1, for a table."""
    parts = [
        f"{dim}{'/'.join(str(v) for v in sorted(truth[dim]))}" for dim in DEGREES if dim in truth and truth[dim] != {1}
    ]
    stages = sorted(str(v) for v in truth.get("zero", frozenset()) if v)
    return " ".join([*parts, *(["zero" + "/".join(stages)] if stages else [])]) or "1"
