"""Published layouts as jobs: the configurations submitted to MLPerf Training, and Megatron-Bridge's performance tables.

Degrees, schedule and world are those of a row; widths are small and layers few (as many as there are stages), because
what is at stake is which ranks talk to which, how often, not how long it takes.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

from benchmarks.synthesis.matrix import sampled
from benchmarks.synthesis.spec import MODELS, Spec

MLPERF = "mlperf_training_parallel_configs.csv"
BRIDGE = ("megatron_bridge_perf_archive.csv", "megatron_bridge_perf_2608.csv")


def _number(row: Mapping[str, str], key: str) -> int | None:
    """The first number of a cell (some give a second one for another precision), or None."""
    found = re.match(r"\s*(\d+)", row.get(key) or "")
    return int(found.group(1)) if found else None


def mlperf(table: Path) -> Iterator[Spec]:
    """Each distinct layout of the MLPerf table once; rows without a world or a tensor-parallel degree say none."""
    seen: set[tuple[int, ...]] = set()
    for row in _rows(table):
        world, tp = _number(row, "world"), _number(row, "tp")
        if world is None or tp is None:
            continue
        pp, cp, vp = (_number(row, key) or 1 for key in ("pp", "cp", "vp"))
        key = (world, tp, pp, vp, cp)
        if key in seen or world % (tp * pp * cp):
            continue
        seen.add(key)
        micro = (_number(row, "minibs") or 1) // (_number(row, "mbs") or 1)
        yield _spec(world, tp, pp, cp, vp, 1, micro)


def bridge(table: Path) -> Iterator[Spec]:
    """Each distinct layout of a Megatron-Bridge table once; rows that run Megatron-FSDP are another framework's."""
    seen: set[tuple[int, ...]] = set()
    for row in _rows(table):
        world, tp, pp = (_number(row, key) for key in ("#-GPUs", "TP", "PP"))
        if world is None or tp is None or pp is None or (_number(row, "FSDP") or 0) > 0:
            continue
        cp, vp, ep = (_number(row, key) or 1 for key in ("CP", "VP", "EP"))
        key = (world, tp, pp, cp, vp, ep)
        if key in seen or world % (tp * pp * cp) or world % (pp * ep):
            continue
        seen.add(key)
        replicas = world // (tp * pp * cp)
        micro = (_number(row, "GBS") or 1) // (replicas * (_number(row, "MBS") or 1))
        yield _spec(world, tp, pp, cp, vp, ep, micro)


def _rows(table: Path) -> Iterator[dict[str, str]]:
    with table.open(newline="", encoding="utf-8") as lines:
        yield from csv.DictReader(lines)


def _spec(world: int, tp: int, pp: int, cp: int, vp: int, ep: int, microbatches: int) -> Spec:
    """A job of a layout, microbatches at most twice the stages."""
    layers = max(4, pp * vp) if pp > 1 else 4
    v = vp if pp > 1 else 1
    most = (pp if v > 1 else 2 * pp) if pp > 1 else 4
    micro = max(1, min(microbatches, most))
    if v > 1:
        micro = max(pp, micro // pp * pp)
    model = replace(MODELS["moe" if ep > 1 else "small"], layers=layers)
    model = replace(model, experts=max(ep, 8)) if ep > 1 else model
    layout = f"tp{tp}-cp{cp}-pp{pp}-dp{world // (tp * pp * cp)}-ep{ep}"
    spec = Spec.parse("megatron", layout, virtual=v, microbatches=micro, model=model, steps=2)
    return replace(spec, ranks=(0, world // pp, world - 1) if pp > 1 else sampled(spec)) if world > 8 else spec
