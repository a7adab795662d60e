"""Collectives on which the ranks do not agree, in the words of PyTorch's Flight Recorder analyser.

Source of the words: torch/distributed/flight_recorder/components/types.py, `MatchState`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from analyzer.intervals import Ints
from analyzer.matching.calls import BY_SEQUENCE, IDENTITY
from analyzer.matching.collectives import KINDS
from analyzer.summary.model import RankSummary
from heuristics.arrays import NULL
from parsers.columns import distinct_values

MISSING, TYPE, SIZE, DTYPE = (
    "UNDECIDED",
    "COLLECTIVE_TYPE_MISMATCH",
    "SIZE_OR_SYNTAX_MISMATCH",
    "COLLECTIVE_DTYPE_MISMATCH",
)

_MAY_DIFFER = (KINDS.index("all_to_all"), KINDS.index("barrier"))
"""Ranks may exchange different amounts in an all-to-all with splits; a barrier has no payload."""


@dataclass(frozen=True)
class Difference:
    """One kind of disagreement.

    Attributes:
        state: as Flight Recorder says it.
        ranks: who took part, or lacks the call for `MISSING`.
        count: how many collectives.
        detail: the first of them, for a person.
    """

    state: str
    ranks: tuple[int, ...]
    count: int
    detail: str


def differences(tables: Sequence[Ints], ranks: Sequence[RankSummary]) -> tuple[Difference, ...]:
    """Disagreements among calls with the same group and sequence number; order alone would prove nothing."""
    every = np.concatenate([t for t in tables if len(t)]) if any(len(t) for t in tables) else None
    if every is None:
        return ()
    every = every[every[:, 0] == BY_SEQUENCE]
    if not len(every):
        return ()
    _, key = np.unique(every[:, :IDENTITY], axis=0, return_inverse=True)
    key = key.ravel()
    found = [
        _unlike(TYPE, key, every, every[:, IDENTITY + 5] >> 1, ranks, "primitives"),
        _unlike(SIZE, key, every, every[:, IDENTITY + 6], ranks, "sizes"),
        _unlike(DTYPE, key, every, every[:, IDENTITY + 7], ranks, "data types"),
        _missing(key, every, ranks),
    ]
    return tuple(item for item in found if item is not None)


def _unlike(
    state: str, key: Ints, every: Ints, value: Ints, ranks: Sequence[RankSummary], what: str
) -> Difference | None:
    kind = every[:, IDENTITY + 5] >> 1
    counts = (value != NULL) & (np.full(len(kind), state == TYPE) | ~np.isin(kind, _MAY_DIFFER))
    low = np.full(int(key.max()) + 1, np.iinfo(np.int64).max)
    high = np.full(len(low), np.iinfo(np.int64).min)
    np.minimum.at(low, key[counts], value[counts])
    np.maximum.at(high, key[counts], value[counts])
    # Of a call that is not the same primitive for all, size and type say nothing more.
    first_kind = np.full(len(low), np.iinfo(np.int64).max)
    last_kind = np.full(len(low), np.iinfo(np.int64).min)
    np.minimum.at(first_kind, key, kind)
    np.maximum.at(last_kind, key, kind)
    wrong = (low < high) & ((first_kind == last_kind) | (state == TYPE))
    return _described(state, np.flatnonzero(wrong), key, every, ranks, f"different {what}")


def _missing(key: Ints, every: Ints, ranks: Sequence[RankSummary]) -> Difference | None:
    """Calls that a rank lacks although it has earlier and later ones of the same group."""
    group, seq, place = every[:, 1], every[:, 2], every[:, IDENTITY + 1]
    width = len(ranks)
    pair, code = np.unique(group * width + place, return_inverse=True)
    code = code.ravel()
    low = np.full(len(pair), np.iinfo(np.int64).max)
    high = np.full(len(pair), np.iinfo(np.int64).min)
    np.minimum.at(low, code, seq)
    np.maximum.at(high, code, seq)
    first = np.unique(key, return_index=True)[1]
    lacking: dict[int, set[int]] = {}
    for at, who in enumerate(pair % width):
        of_group = np.flatnonzero(group[first] == pair[at] // width)
        inside = of_group[(seq[first][of_group] > low[at]) & (seq[first][of_group] < high[at])]
        have = distinct_values(key[(code == at)])
        for one in distinct_values(inside[~np.isin(inside, have)]).tolist():
            lacking.setdefault(one, set()).add(int(who))
    if not lacking:
        return None
    who = {place for places in lacking.values() for place in places}
    one = min(lacking)
    row = every[first[one]]
    return Difference(
        MISSING,
        tuple(sorted(r for p in who if (r := ranks[p].rank) is not None)),
        len(lacking),
        f"{KINDS[int(row[IDENTITY + 5]) >> 1]} with sequence number {int(row[2])} has no call on these ranks",
    )


def _described(
    state: str, keys: Ints, key: Ints, every: Ints, ranks: Sequence[RankSummary], what: str
) -> Difference | None:
    if not len(keys):
        return None
    mine = np.flatnonzero(key == keys[0])
    who = distinct_values(every[np.isin(key, keys)][:, IDENTITY + 1]).tolist()
    return Difference(
        state,
        tuple(sorted(r for p in who if (r := ranks[p].rank) is not None)),
        len(keys),
        f"{KINDS[int(every[mine[0], IDENTITY + 5]) >> 1]} with sequence number {int(every[mine[0], 2])}: {what}",
    )
