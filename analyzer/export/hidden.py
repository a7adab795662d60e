"""Ranks without names, before anything is inferred from them: what is then said of them cannot name anybody."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pyarrow as pa

from analyzer.export.anonymize import Hider
from analyzer.summary.model import RankSummary
from parsers.columns import text_array
from parsers.tables import Health, RankIdentity


def hidden(rank: RankSummary, hide: Hider) -> RankSummary:
    """A rank whose names, host, paths and ids are hashes; ``hide.real`` remembers where its file is.

    What logs and dumps say beyond its calls is left out: it is text.
    """
    path = _path(rank, hide)
    groups = _column(_column(rank.groups, "name", hide.group), "desc", hide.desc)
    return replace(
        rank,
        path=path,
        identity=_identity(rank.identity, hide),
        health=_health(rank.health),
        devices=tuple(hide.device(dict(device)) for device in rank.devices),
        stats=replace(
            rank.stats,
            unclassified_names=tuple((hide.name(n, "kernel"), ns) for n, ns in rank.stats.unclassified_names),
            notes=(),
        ),
        groups=groups,
        witness=None,
        log=None,
        collectives=_words(_words(rank.collectives, "name", hide, "kernel"), "op", hide, "op"),
        view=replace(
            rank.view,
            groups=tuple(replace(g, name=hide.group(g.name), desc=hide.desc(g.desc)) for g in rank.view.groups),
        ),
        host=replace(
            rank.host,
            names=tuple(_held(name, hide) for name in rank.host.names),
            taxes=tuple(replace(tax, name=hide.name(tax.name, "kernel")) for tax in rank.host.taxes),
        ),
    )


def _path(rank: RankSummary, hide: Hider) -> str:
    """A name for the file: two ranks of one file share it."""
    for shown, real in hide.real.items():
        if real == rank.path:
            return shown
    shown = hide.token("rank" if rank.rank is None else f"rank{rank.rank}", rank.path)
    hide.real[shown] = rank.path
    return shown


def _identity(identity: RankIdentity, hide: Hider) -> RankIdentity:
    return replace(
        identity,
        host=None if identity.host is None else hide.token("host", identity.host),
        pid=None,
        run_id=None if identity.run_id is None else hide.token("run", identity.run_id),
    )


def _health(health: Health) -> Health:
    """Counts stay; sentences may quote the file."""
    said = (f"{len(health.notes)} notes about the file are left out",) if health.notes else ()
    return replace(health, notes=said)


def _held(name: str, hide: Hider) -> str:
    what, _, own = name.partition(": ")
    return f"{what}: {hide.name(own, 'range')}"


def _column(table: pa.Table, name: str, change: Any) -> pa.Table:
    place = table.schema.get_field_index(name)
    values = [None if value is None else change(value) for value in table.column(name).to_pylist()]
    return table.set_column(place, table.schema.field(name), text_array(values))


def _words(table: pa.Table, name: str, hide: Hider, kind: str) -> pa.Table:
    """A column of repeated text with its words changed."""
    place = table.schema.get_field_index(name)
    column = table.column(name).unify_dictionaries().combine_chunks()
    if isinstance(column, pa.ChunkedArray):
        if not column.num_chunks:
            return table
        column = column.chunk(0)
    words = [hide.name(word, kind) for word in column.dictionary.to_pylist()]
    unique = list(dict.fromkeys(words))
    codes = [None if code is None else unique.index(words[code]) for code in column.indices.to_pylist()]
    changed = pa.DictionaryArray.from_arrays(pa.array(codes, pa.int32()), text_array(unique))
    return table.set_column(place, table.schema.field(name), changed)
