"""PyTorch Kineto files (Chrome trace events): sniffing, reading, and who wrote them."""

from __future__ import annotations

import dataclasses
import re
from collections import Counter
from pathlib import Path

import numpy as np

from parsers import tables
from parsers.columns import NULL, distinct_values
from parsers.elements import Elements
from parsers.errors import InputError
from parsers.garbage import no_garbage_collection
from parsers.kineto_comm import COMM_LAYERS
from parsers.kineto_events import Decoder
from parsers.kineto_header import Header, has_devices, parse_header
from parsers.kineto_rows import Rows
from parsers.kineto_split import Part, split
from parsers.kineto_tables import Owned, finish, outside_window, owned, rank_tables
from parsers.rank_identity import rank_from_calls, rank_from_groups, rank_from_path
from parsers.source import Source
from parsers.tables import Health, RankIdentity, RankTrace
from parsers.window import Damage

FORMAT = "kineto"

_KEYS = re.compile(rb'"(?:traceEvents|schemaVersion|deviceProperties|distributedInfo|displayTimeUnit)"\s*:')
_PHASE = re.compile(rb'"ph"\s*:\s*"[A-Za-z]"')
_PEER_OR_ROOT = re.compile(r"(?:i?send|i?recv|_?broadcast(?:_oop)?|_?reduce(?:_oop)?|gather|scatter|wait|init)\Z")
_WORKER_NAME = re.compile(r"(?P<host>[^/\\]+)_(?P<pid>\d{1,10})\.\d+\.pt\.trace\.json")


def sniff(head: bytes) -> bool:
    """Whether the beginning of a file looks like a Kineto trace."""
    head = head.removeprefix(b"\xef\xbb\xbf").lstrip()
    if head.startswith(b"["):
        return bool(_PHASE.search(head))
    return head.startswith(b"{") and bool(_KEYS.search(head))


def read(source: Source) -> list[RankTrace]:
    """Read a trace.

    Args:
        source: its bytes, from the beginning.

    Returns:
        One `RankTrace` per rank, in order of the file.

    Raises:
        InputError: it holds no array of events.
    """
    decoder, rows = Decoder(), Rows()
    elements = Elements(source, decoder)
    with no_garbage_collection():
        for batch in elements.batches():
            if not rows.events and has_devices(elements.header):
                rows.forget_operators()
            if decoder.repaired and elements.damage.first_byte is None:
                elements.damage.first_byte = elements.byte  # of the block; the event is somewhere in it
            rows.take(batch)
    if not rows.events:
        hint = "the profiler recorded nothing or died before it wrote; take another rank"
        raise InputError("holds no events", path=source.name, hint=hint)
    header = parse_header(elements.header)
    finish(rows, header.base_ns)
    parts = split(rows)
    health = _health(source, elements.damage, decoder, rows, header, parts)
    return [_trace(source, rows, header, health, parts, part) for part in parts]


def _trace(source: Source, rows: Rows, header: Header, health: Health, parts: list[Part], part: Part) -> RankTrace:
    alone = len(parts) == 1
    mine = owned(rows, part)
    notes = list(health.notes)
    outside = outside_window(rows, mine.gpu)
    if outside:
        notes.append(f"{outside} GPU events begin outside the window that the profiler says it recorded")
    identity = _identity(source, rows, header, part, mine, notes, alone=alone)
    metadata = _metadata(rows, header, part)
    made = rank_tables(rows, mine, last=part is parts[-1])
    return RankTrace(
        path=source.name,
        format=FORMAT,
        identity=identity,
        gpu_events=made.gpu_events,
        comm_records=made.comm_records,
        launches=made.launches,
        cpu_marks=made.cpu_marks,
        steps=made.steps,
        groups=header.groups.table if alone else tables.empty(tables.GROUPS),
        health=dataclasses.replace(health, notes=tuple(notes)),
        devices=header.devices,
        metadata=metadata,
    )


def _metadata(rows: Rows, header: Header, part: Part) -> dict[str, object]:
    """Header keys worth keeping, and ``threads`` (tid -> name), ``window_ns`` (of the capture), ``process_label``."""
    on_gpu = set(distinct_values(rows.gpu.column("pid")).tolist()) if rows.gpu.rows else set()
    threads = {
        tid: name
        for (pid, tid), name in rows.threads.items()
        if isinstance(tid, int)
        and (part.pids is None or rows.pids.get(pid, -1) in part.pids)
        and rows.pids.get(pid, -1) not in on_gpu
    }
    kept: dict[str, object] = {**header.metadata, "threads": threads}
    if rows.window:
        kept["window_ns"] = (rows.window.get("start"), rows.window.get("end"))
    if part.label:
        kept["process_label"] = part.label
    return kept


# -- who wrote it


def _main_pid(rows: Rows, part: Part) -> int | None:
    """The process with the most CPU rows."""
    found = [columns.column("pid") for columns in (rows.marks, rows.launches) if columns.rows]
    if rows.comm.rows:
        found.append(rows.comm.column("pid")[rows.comm.column("gpu_event") == NULL])
    counts = np.bincount(np.concatenate(found).astype(np.int64)) if found else np.zeros(0, np.int64)
    allowed = range(len(counts)) if part.pids is None else part.pids
    best = max(allowed, key=lambda number: counts[number] if number < len(counts) else 0, default=None)
    pid = list(rows.pids)[best] if best is not None and best < len(rows.pids) else None
    return pid if isinstance(pid, int) and pid != NULL else None


def _identity(
    source: Source,
    rows: Rows,
    header: Header,
    part: Part,
    mine: Owned,
    notes: list[str],
    *,
    alone: bool,
) -> RankIdentity:
    rank, said = (header.rank, "metadata") if alone else (part.rank, "metadata")
    named = rank_from_path(Path(source.name)) if alone else None
    if rank is None:
        rank, said = named, "file_name"
    elif named is not None and named != rank:
        notes.append(f"the file's name says rank {named}, its header rank {rank}; the header is believed")
    if rank is None and alone:
        rank, said = rank_from_groups(header.groups.lists()), "group_intersection"
    if rank is None:
        rank, said = _rank_from_calls(rows, mine), "group_rank"
    pid = _main_pid(rows, part)
    worker = _WORKER_NAME.search(str(header.metadata.get("traceName", ""))) or _WORKER_NAME.search(source.name)
    host = worker["host"] if worker and pid is not None and int(worker["pid"]) == pid else None
    devices = {device for _, device in part.devices or ()}
    return RankIdentity(
        rank=rank,
        rank_source=None if rank is None else said,
        world_size=header.world_size,
        host=header.host or host,
        pid=pid,
        device=devices.pop() if len(devices) == 1 else None,
        backend=header.backend,
        run_id=header.run_id,
    )


def _rank_from_calls(rows: Rows, mine: Owned) -> int | None:
    """The rank that every collective's "own place in the group" agrees on."""
    if not rows.comm.rows:
        return None
    texts = rows.comm_texts
    operations = list(texts.names["collective"])
    own = np.array([not _PEER_OR_ROOT.match(str(name)) for name in operations] + [False])
    mask = (
        mine.comm
        & (rows.comm.column("layer") == COMM_LAYERS.index("record_param_comms"))
        & own[rows.comm.column("collective")]
        & (rows.comm.column("group_ranks") >= 0)
        & (rows.comm.column("group_ranks_cut") == 0)
        & (rows.comm.column("rank_arg") != NULL)
    )
    lists = texts.lists["group_ranks"].lists
    return rank_from_calls(lists, rows.comm.column("group_ranks")[mask], rows.comm.column("rank_arg")[mask])


# -- what was wrong


def _health(source: Source, damage: Damage, decoder: Decoder, rows: Rows, header: Header, parts: list[Part]) -> Health:
    mended = Counter(decoder.mended)
    quarantined = {reason: count for reason, count in rows.quarantined.items() if count}
    notes = []
    if damage.cut:
        notes.append("the file is cut off: events after the last one read are missing")
    if damage.second_writer_byte is not None:
        notes.append(
            f"{tables.TWO_WRITERS}: a second header begins at byte {damage.second_writer_byte}; "
            "give every rank a file of its own"
        )
    notes += [f"{kind}: {count}" for kind, count in sorted((mended + damage.kinds).items())]
    notes += [f"{count} events set aside: {reason}" for reason, count in quarantined.items()]
    notes += [f"{flaw} in the arguments of communication operators" for flaw in sorted(rows.flaws)]
    if decoder.strays:
        notes.append(f"{decoder.strays} elements of the event array are no events")
    notes += [*damage.notes, *header.flaws]
    if len(parts) > 1:
        names = ", ".join(part.label or "unnamed" for part in parts)
        notes.append(f"one file holds the events of {len(parts)} processes ({names}); they are kept apart")
    return Health(
        complete=not damage.cut and damage.second_writer_byte is None,
        file_bytes=source.file_bytes,
        events=rows.events,
        repaired=damage.repaired + decoder.repaired,
        quarantined=sum(quarantined.values()),
        dropped=damage.dropped,
        first_damage_byte=damage.first_byte,
        last_good_ts_ns=rows.last_ts,
        notes=tuple(notes),
    )
