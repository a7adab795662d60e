"""How many collectives a step has on each process group of a hung job, as the ledger predicts them from its layout."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from heuristics.hang_dumps import Dumps, GroupOfJob, OfDump
from heuristics.hints import hint

if TYPE_CHECKING:
    from ledger.report import Prediction


def expected_calls(traces: Iterable[OfDump], predicted: Prediction) -> dict[str, int]:
    """Collectives per step by group name, for `heuristics.hang.hang_report`.

    A group's description says which dimension it serves; the pipeline groups say on which stage its ranks are. Groups
    of which the ledger does not know the exact number (gradient buckets are cut as the framework likes) are left out,
    and so is a name that stands for groups with different numbers.

    Args:
        traces: dumps of the job.
        predicted: the ledger of its model and layout.
    """
    dumps = Dumps.of(traces)
    stages = _stages(dumps.groups)
    last = predicted.config.pp - 1
    found: dict[str, set[int | None]] = {}
    for group in dumps.groups:
        dim = hint(group.desc or "")
        if dim is None or dim == "pp" or not group.ranks:
            continue
        places = {stages.get(rank) for rank in group.ranks}
        kind = _kind(places.pop() if len(places) == 1 else None, last)
        found.setdefault(group.name, set()).add(_calls(predicted, dim, len(group.ranks), kind))
    single = {name: calls.pop() for name, calls in found.items() if len(calls) == 1}
    return {name: calls for name, calls in single.items() if calls}


def _stages(groups: Iterable[GroupOfJob]) -> Mapping[int, int]:
    """The pipeline stage of each rank: its place in the group that is described so."""
    return {
        rank: stage
        for group in groups
        if group.ranks and (group.desc or "").upper().startswith(("PIPELINE_MODEL", "MESH_PP", "PP"))
        for stage, rank in enumerate(group.ranks)
    }


def _kind(stage: int | None, last: int) -> str | None:
    if last == 0:
        return "all"
    if stage is None:
        return None
    return "first" if stage == 0 else "last" if stage == last else "middle"


def _calls(predicted: Prediction, dim: str, size: int, kind: str | None) -> int | None:
    rows = [
        row
        for row in (*predicted.rows, *predicted.noise)
        if row.dim == dim and row.group_size == size and row.primitive != "send_recv"
    ]
    if kind is None and any(row.stage != "all" for row in rows):
        return None
    mine = [row for row in rows if row.stage in ("all", kind)]
    total = sum(row.calls_per_step for row in mine)
    exact = bool(mine) and not any(row.bucketed for row in mine) and total == int(total)
    return int(total) if exact else None
