"""Summaries as an Arrow table, one row a rank, and back: the form in which they are stored, sent and merged."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa

from analyzer import intervals
from analyzer.exposure import Timeline
from analyzer.intervals import Ints, Spans
from analyzer.step_marks import StepMarks
from analyzer.summary.capture import Capture
from analyzer.summary.columns import BEHAVIOUR, SCHEMA, WITNESSES, Rows, numbers, packed, unpacked
from analyzer.summary.groups import packed_groups, unpacked_groups
from analyzer.summary.host import Host, Tax
from analyzer.summary.model import RankSummary
from analyzer.summary.sound import check
from analyzer.summary.turns import Turns
from analyzer.summary.view import Views, behaviour_of, packed_calls, place_of
from analyzer.summary.witness import packed_logs, packed_witnesses, unpacked_logs, unpacked_witness
from heuristics.arrays import ints
from heuristics.columns import texts
from heuristics.labelled import LabelStats
from heuristics.view import RankView
from parsers import tables
from parsers.columns import text_array
from parsers.errors import InputError
from parsers.garbage import no_garbage_collection
from parsers.tables import Health, RankIdentity

_ENDINGS = re.compile(r"(?:\.(?:json|gz|zst|xz|sqlite|parquet|pt|trace))+\Z")


@dataclass(frozen=True)
class _Head:
    """What is not a column."""

    path: str
    format: str
    identity: RankIdentity
    health: Health
    devices: tuple[dict[str, Any], ...]
    span: tuple[int, int] | None
    stats: LabelStats
    step_source: str
    on_gpu: bool
    clipped: int
    left_out: int
    first: int
    last: int
    nccl_ns: tuple[int, int]
    libraries: dict[str, str]
    flags: dict[str, bool]
    graphs: bool | None
    launches: bool
    held_by: tuple[str, ...]
    taxes: tuple[Tax, ...]
    lost_launches: int
    early: tuple[int, int]
    streams: tuple[int, ...]


def to_table(summaries: Sequence[RankSummary]) -> pa.Table:
    """Summaries as one table of the schema `analyzer.summary.columns.SCHEMA`."""
    if not summaries:
        return tables.empty(SCHEMA)
    rows = pa.concat_tables([_row(summary) for summary in summaries])
    shared = {
        "witness": packed_witnesses(summary.witness for summary in summaries),
        "log": packed_logs(summary.log for summary in summaries),
    }
    columns = [shared[name] if name in shared else rows.column(name) for name in SCHEMA.names]
    return pa.Table.from_arrays(columns, schema=SCHEMA)


def merged(parts: Sequence[pa.Table]) -> pa.Table:
    """Tables of summaries, one after the other."""
    return pa.concat_tables(parts).combine_chunks()


def names_of(table: pa.Table) -> dict[str, range]:
    """A file name for the ranks of each trace, and their rows: the trace's own name without its endings."""
    paths = [_HEADS.decode(str(head)).path for head in table.column("head")]
    out: dict[str, range] = {}
    first = 0
    for row in range(1, len(paths) + 1):
        if row < len(paths) and paths[row] == paths[first]:
            continue
        stem = _ENDINGS.sub("", paths[first].rstrip("/").rsplit("/", 1)[-1])
        name, again = stem, 1
        while name in out:
            again += 1
            name = f"{stem}-{again}"
        out[name] = range(first, row)
        first = row
    return out


def from_table(table: pa.Table) -> list[RankSummary]:
    """The summaries of a table.

    Raises:
        InputError: its values do not fit together, as after damage that left the file readable.
    """
    with _sound(), no_garbage_collection():
        rows = Rows(table)
        check(rows)
        logs = unpacked_logs(rows.column("log"))
        told = enumerate(zip(rows.column("witness"), logs, strict=True))
        views = Views(rows)
        return [
            replace(_summary(rows, row, views[row]), witness=unpacked_witness(own), log=log) for row, (own, log) in told
        ]


def views_of(table: pa.Table) -> list[RankView]:
    """What layout inference sees; of the columns of `analyzer.summary.columns`, ``FOR_LAYOUT`` must be there.

    Without those of ``FOR_CALLS`` no view knows its calls; `calls_decide` says whether that matters.

    Raises:
        InputError: as `from_table`.
    """
    with _sound(), no_garbage_collection():
        rows = Rows(table)
        check(rows)
        return list(Views(rows))


def calls_decide(table: pa.Table, views: Sequence[RankView]) -> bool:
    """Whether views that do not know their calls may lead to another layout: some calls say no size, or no group."""
    with _sound():
        return Views(Rows(table)).timed or not all(view.calls_identified for view in views)


@dataclass(frozen=True)
class Origin:
    """Where a summary comes from; the fields are those of `RankSummary`."""

    path: str
    identity: RankIdentity
    span: tuple[int, int] | None


_ORIGINS = msgspec.json.Decoder(Origin)


def origins_of(table: pa.Table) -> list[Origin]:
    """Where each summary comes from; needs the column ``head`` only.

    Raises:
        InputError: as `from_table`.
    """
    with _sound():
        return [_ORIGINS.decode(str(head)) for head in table.column("head")]


@contextmanager
def _sound() -> Iterator[None]:
    try:
        yield
    except (msgspec.MsgspecError, pa.ArrowException, ValueError, LookupError, TypeError, OverflowError) as error:
        what = " ".join(str(error).split())[:200]
        raise InputError(f"a summary is damaged ({what})", hint="summarize the trace again") from error


def _row(summary: RankSummary) -> pa.Table:
    identity = summary.identity
    line, steps, gaps = summary.line, summary.steps, summary.capture.launch_gap_ns
    starts = {
        "steps.begin": steps.edges[:, 0],
        "steps.end": steps.edges[:, 1],
        "steps.number": steps.number,
        "steps.complete": steps.complete,
        "steps.launch_gap": np.empty(0) if gaps is None else gaps,
        **packed_calls(summary.view),
        **_line(line, ints(summary.collectives, "ts_ns", 0)),
        "host.at_start": summary.host.at_start.ravel(),
        "host.during": (summary.host.at_end - summary.host.at_start).ravel(),
        "host.dry": summary.host.dry_ns,
        "host.ready": _since(summary.host.ready_ns, line.call_start),
        "host.passes": summary.host.passes.ravel(),
        "turns.start": summary.turns.start,
        "turns.length": summary.turns.end - summary.turns.start,
        "turns.phase": summary.turns.phase,
    }
    columns: Mapping[str, pa.Array] = {
        "rank": _optional(identity.rank),
        "world_size": _optional(identity.world_size),
        "head": text_array([_json(_head(summary))]),
        "view": text_array([_json(place_of(summary.view))]),
        BEHAVIOUR: texts([_json(behaviour_of(summary.view))], np.zeros(1, dtype=np.int64)),
        **{name: numbers(values, SCHEMA.field(name).type.value_type) for name, values in starts.items()},
        **packed_groups(summary.groups),
        **packed("collectives.", summary.collectives),
    }
    own = pa.schema([field for field in SCHEMA if field.name not in WITNESSES])
    return pa.Table.from_arrays([columns[name] for name in own.names], schema=own)


def _since(moments: Ints, starts: Ints) -> Ints:
    """Moments relative to the calls; nothing where they are not known for every call."""
    return moments - starts if len(moments) == len(starts) else np.empty(0, dtype=np.int64)


def _optional(value: int | None) -> pa.Array:
    return pa.nulls(1, pa.int32()) if value is None else numbers(np.array([value]), pa.int32()).values


def _json(value: object) -> str:
    return msgspec.json.encode(value).decode()


def _line(line: Timeline, at: Ints) -> dict[str, Ints]:
    """The timeline as numbers that are mostly small: relative to the calls, these to the table of collectives."""
    start, length = np.append(line.call_start, 0), np.append(line.call_end - line.call_start, 0)
    return {
        "line.compute_start": line.compute.start,
        "line.compute_length": line.compute.end - line.compute.start,
        "line.memcpy_start": line.memcpy.start,
        "line.memcpy_length": line.memcpy.end - line.memcpy.start,
        "line.comm_call": line.comm_call,
        "line.comm_start": line.comm_start - start[line.comm_call],
        "line.comm_length": line.comm_end - line.comm_start - length[line.comm_call],
        "line.call_start": line.call_start - at,
        "line.call_length": length[:-1],
    }


def _timeline(rows: Rows, row: int, head: _Head, at: Ints) -> Timeline:
    def spans(name: str) -> Spans:
        start = rows.ints(f"line.{name}_start", row)
        return intervals.union(start, start + rows.ints(f"line.{name}_length", row))

    call_start, call_length = rows.ints("line.call_start", row) + at, rows.ints("line.call_length", row)
    call = rows.ints("line.comm_call", row)
    start = rows.ints("line.comm_start", row) + np.append(call_start, 0)[call]
    return Timeline(
        on_gpu=head.on_gpu,
        compute=spans("compute"),
        memcpy=spans("memcpy"),
        comm_start=start,
        comm_end=start + rows.ints("line.comm_length", row) + np.append(call_length, 0)[call],
        comm_call=call,
        call_start=call_start,
        call_end=call_start + call_length,
        clipped=head.clipped,
        left_out=head.left_out,
        first=head.first,
        last=head.last,
    )


def _head(summary: RankSummary) -> _Head:
    line = summary.line
    return _Head(
        path=summary.path,
        format=summary.format,
        identity=summary.identity,
        health=summary.health,
        devices=tuple(dict(device) for device in summary.devices),
        span=summary.span,
        stats=summary.stats,
        step_source=summary.steps.source,
        on_gpu=line.on_gpu,
        clipped=line.clipped,
        left_out=line.left_out,
        first=line.first,
        last=line.last,
        nccl_ns=summary.nccl_ns,
        libraries=dict(summary.capture.libraries),
        flags=dict(summary.capture.flags),
        graphs=summary.capture.graphs,
        launches=summary.capture.launch_gap_ns is not None,
        held_by=summary.host.names,
        taxes=summary.host.taxes,
        lost_launches=summary.host.lost_launches,
        early=summary.host.early,
        streams=summary.host.streams,
    )


_HEADS = msgspec.json.Decoder(_Head)


def _summary(rows: Rows, row: int, view: RankView) -> RankSummary:
    head = _HEADS.decode(rows.text("head", row))
    collectives = unpacked("collectives.", tables.COLLECTIVES, rows, row)
    edges = np.stack((rows.ints("steps.begin", row), rows.ints("steps.end", row)), axis=1)
    line = _timeline(rows, row, head, ints(collectives, "ts_ns", 0))
    return RankSummary(
        path=head.path,
        format=head.format,
        identity=head.identity,
        health=head.health,
        devices=head.devices,
        span=head.span,
        stats=head.stats,
        groups=unpacked_groups(rows, row),
        collectives=collectives,
        steps=StepMarks(
            head.step_source, edges, rows.ints("steps.number", row), rows.ints("steps.complete", row).astype(np.bool_)
        ),
        line=line,
        view=view,
        nccl_ns=head.nccl_ns,
        capture=Capture(
            head.libraries, head.flags, head.graphs, rows.ints("steps.launch_gap", row) if head.launches else None
        ),
        host=_host(rows, row, head, line.call_start),
        turns=_turns(rows, row),
    )


def _turns(rows: Rows, row: int) -> Turns:
    start = rows.ints("turns.start", row)
    return Turns(start, start + rows.ints("turns.length", row), rows.ints("turns.phase", row))


def _host(rows: Rows, row: int, head: _Head, at: Ints) -> Host:
    shape = (len(head.held_by), len(at))
    ready = rows.ints("host.ready", row)
    start = rows.ints("host.at_start", row).reshape(shape)
    during = rows.ints("host.during", row).reshape(shape)
    passes = rows.ints("host.passes", row).reshape(-1, 2)
    return Host(
        head.held_by,
        start,
        start + during,
        rows.ints("host.dry", row),
        passes,
        head.taxes,
        head.lost_launches,
        head.early,
        head.streams,
        ready + at if len(ready) else ready,
    )
