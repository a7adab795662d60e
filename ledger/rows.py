"""`CommRow`: one predicted line of the ledger, and how a stage's flows become rows."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

from ledger.collectives import collective_bytes
from ledger.config import ParallelConfig
from ledger.dtypes import dtype_bytes
from ledger.mesh import group_size, link, most_on_a_node
from ledger.rules.flow import Flow
from ledger.stages import Stage


@dataclass(frozen=True)
class CommRow:
    """Calls of one kind that one rank makes in a step.

    Attributes:
        dim: tp | cp | pp | dp | ep | control.
        part: what travels.
        primitive: a name of `ledger.collectives.PRIMITIVES`.
        phase: forward | backward | optimizer.
        link: intra_node | inter_node | mixed.
        group_size: ranks that take part.
        per_node: the most of them that share a node; of messages, of the two that exchange one.
        payload_bytes: S of one call, as nccl-tests counts it; the mean where sizes differ.
        calls_per_step: a fraction only where stages are averaged.
        sent_bytes_per_step: what the rank sends, over all calls.
        dtype: normalised name of what travels.
        overlap: yes | partial | no.
        stage: first | middle | last | all: pipeline ranks the row holds for.
        formula: calls; elements of one call.
        source: paper or framework file.
        bucketed: the payload may be cut into more calls; their sum is exact, ``calls_per_step`` the least.
        noise: small and latency-bound, kept apart from the payload.
    """

    dim: str
    part: str
    primitive: str
    phase: str
    link: str
    group_size: int
    payload_bytes: int
    calls_per_step: float
    sent_bytes_per_step: int
    dtype: str
    overlap: str
    stage: str
    formula: str
    source: str
    bucketed: bool = False
    noise: bool = False
    per_node: int = 1


def stage_rows(stage: Stage, flows: Iterable[Flow]) -> tuple[CommRow, ...]:
    """Rows of one stage; groups of one rank and empty calls make none."""
    config = stage.config
    links: dict[str, tuple[str, int]] = {}
    rows: list[CommRow] = []
    for flow in flows:
        n = group_size(config, flow.group)
        if n == 1 or not flow.calls or not flow.elements:
            continue
        if flow.group not in links:
            links[flow.group] = link(config, flow.group), most_on_a_node(config, flow.group)
        rows.append(_row(stage.kind, flow, n, links[flow.group]))
    return _joined(rows)


def _row(kind: str, flow: Flow, n: int, where: tuple[str, int]) -> CommRow:
    payload = int(flow.elements * dtype_bytes(flow.dtype))
    per_call = payload if flow.whole_payload else collective_bytes(flow.primitive, n, payload)
    return CommRow(
        dim=flow.dim,
        part=flow.part,
        primitive=flow.primitive,
        phase=flow.phase,
        link=where[0],
        per_node=where[1],
        group_size=n,
        payload_bytes=payload,
        calls_per_step=_plain(flow.calls),
        sent_bytes_per_step=int(flow.calls * per_call),
        dtype=flow.dtype,
        overlap=flow.overlap,
        stage=kind,
        formula=flow.formula,
        source=flow.source,
        bucketed=flow.bucketed,
        noise=flow.noise,
    )


def _plain(calls: int | Fraction) -> float:
    return int(calls) if Fraction(calls).denominator == 1 else float(calls)


def _joined(rows: Sequence[CommRow]) -> tuple[CommRow, ...]:
    """Rows that differ in nothing but their number of calls become one."""
    merged: dict[CommRow, tuple[float, int]] = {}
    for row in rows:
        key = replace(row, calls_per_step=0, sent_bytes_per_step=0)
        calls, sent = merged.get(key, (0, 0))
        merged[key] = (calls + row.calls_per_step, sent + row.sent_bytes_per_step)
    return tuple(replace(key, calls_per_step=calls, sent_bytes_per_step=sent) for key, (calls, sent) in merged.items())


def merge_stages(per_stage: Sequence[tuple[CommRow, ...]], config: ParallelConfig) -> tuple[CommRow, ...]:
    """Rows of all pipeline ranks told apart as first, middle and last; what is the same on every one is ``all``.

    Middle ranks that differ among themselves (layers that do not divide) are shown by the one that sends most.
    """
    if len(per_stage) == 1:
        return per_stage[0]
    first, last = per_stage[0], per_stage[-1]
    middles = per_stage[1:-1]
    middle = max(middles, key=lambda rows: sum(row.sent_bytes_per_step for row in rows), default=())
    shown = [rows for rows in (first, middle, last) if rows is not middle or config.pp > 2]
    unstaged = [[replace(row, stage="all") for row in rows] for rows in shown]
    everywhere = [row for row in unstaged[0] if all(row in rows for rows in unstaged[1:])]
    merged = list(everywhere)
    for rows, plain in zip(shown, unstaged, strict=True):
        merged += [row for row, same in zip(rows, plain, strict=True) if same not in everywhere]
    order = {dim: place for place, dim in enumerate(("tp", "cp", "pp", "dp", "ep", "control"))}
    return tuple(sorted(merged, key=lambda row: order[row.dim]))
