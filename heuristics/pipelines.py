"""The pipelines of a job whose operations are known, but not who exchanges with whom: from which ends coincide."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from heuristics.arrays import codes
from parsers.assemble import table
from parsers.straggler_parquet import COLLECTIVES, MESSAGES, OF_ALL, OF_STAGE, Operations

if TYPE_CHECKING:
    import numpy.typing as npt
    import pyarrow as pa

    from parsers.tables import RankTrace


_DESCRIBED = {
    **dict.fromkeys(MESSAGES, "PIPELINE_MODEL_PARALLEL_GROUP"),
    "grads-reduce-scatter": "DATA_PARALLEL_GROUP",
    "params-all-gather": "DATA_PARALLEL_GROUP",
    "embedding-grads-all-reduce": "EMBEDDING_GROUP",
}
"""What the name of an operation says of its group, in Megatron's words (megatron/core/parallel_state.py)."""


def pipelines(operations: Operations) -> dict[int, tuple[int, int]]:
    """Pipeline and stage per rank: a send and its receive end together, and only in one pair of ranks."""
    following: dict[int, int] = {}
    ends = operations.start_ns + operations.dur_ns
    sends, receives = _times(operations, ends, "forward-send"), _times(operations, ends, "forward-recv")
    for rank, mine in sends.items():
        off = {}
        for other, theirs in receives.items():
            common = sorted(mine.keys() & theirs.keys()) if other != rank else []
            if common:
                off[other] = float(np.median([abs(mine[key] - theirs[key]) for key in common]))
        if off:
            following[rank] = min(off, key=lambda other: off[other])
    firsts = sorted(set(np.unique(operations.rank).tolist()) - set(following.values()))
    place = {}
    for pipeline, rank in enumerate(firsts):
        stage, at = 0, rank
        while at not in place:
            place[at] = (pipeline, stage)
            if at not in following:
                break
            stage, at = stage + 1, following[at]
    return place


def _times(operations: Operations, ends: npt.NDArray[np.int64], kind: str) -> dict[int, dict[tuple[int, int], int]]:
    mine = operations.kind == (operations.kinds.index(kind) if kind in operations.kinds else -1)
    out: dict[int, dict[tuple[int, int], int]] = defaultdict(dict)
    columns = (operations.rank[mine], operations.step[mine], operations.seq[mine], ends[mine])
    for rank, step, seq, end in zip(*(c.tolist() for c in columns), strict=True):
        out[rank][step, seq] = end
    return out


def placed(traces: Sequence[RankTrace]) -> list[RankTrace]:
    """The same traces, with the peers of messages and the members of groups filled in where operations show them.

    Args:
        traces: of one file; only those whose ``witness`` is `parsers.straggler_parquet.Operations` are looked at.
    """
    found = next((trace.witness for trace in traces if isinstance(trace.witness, Operations)), None)
    if found is None:
        return list(traces)
    place = pipelines(found)
    at = {where: rank for rank, where in place.items()}
    return [replace(trace, comm_records=_with_members(trace, place, at)) for trace in traces]


def _with_members(
    trace: RankTrace, place: Mapping[int, tuple[int, int]], at: Mapping[tuple[int, int], int]
) -> pa.Table:
    records, own = trace.comm_records, trace.identity.rank
    if own is None or own not in place:
        return records
    pipeline, stage = place[own]
    said: dict[str, list[Any]] = defaultdict(list)
    code, names = codes(records, "name")
    known = {name: _members(name, pipeline, stage, place, at) for name in names}
    for name in [names[c] for c in code.tolist()]:
        members, group, peer = known[name]
        said["group_name"].append(group)
        said["group_desc"].append(_DESCRIBED.get(name) if members else None)
        said["group_size"].append(len(members) if members else None)
        said["group_ranks"].append(list(members) if members else None)
        sends = name.endswith("-send")
        said["dst_rank"].append(peer if sends else None)
        said["src_rank"].append(peer if name.endswith("-recv") else None)
    return table(records.schema, {**_untouched(records, said), **said}) if said else records


def _untouched(records: pa.Table, said: Mapping[str, object]) -> dict[str, list[Any]]:
    return {
        name: records.column(name).to_pylist()
        for name in records.schema.names
        if name not in said and records.column(name).null_count < records.num_rows
    }


def _members(
    name: str,
    pipeline: int,
    stage: int,
    place: Mapping[int, tuple[int, int]],
    at: Mapping[tuple[int, int], int],
) -> tuple[tuple[int, ...] | None, str | None, int | None]:
    """The ranks of an operation in order, a name for their group, and the peer of a message."""
    if name in MESSAGES:
        chain = tuple(at[where] for where in sorted(at) if where[0] == pipeline)
        return chain, f"pipeline {pipeline}", at.get((pipeline, stage + MESSAGES[name]))
    who = COLLECTIVES.get(name)
    if who is None:
        return None, None, None
    if who == OF_ALL:
        return tuple(sorted(place)), "all", None
    if who == OF_STAGE:
        return tuple(sorted(rank for rank, where in place.items() if where[1] == stage)), f"stage {stage}", None
    last = max(where[1] for where in at if where[0] == pipeline)
    ends = tuple(at[pipeline, s] for s in (0, last))
    return (ends, f"ends of pipeline {pipeline}", None) if stage in (0, last) and last else (None, None, None)
