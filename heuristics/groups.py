"""Who takes part: the process groups of a rank, and which of them each call ran on.

Declared groups come from `distributedInfo.pg_config` (torch.distributed.distributed_c10d `_get_all_pg_configs`), which
lists every group that the rank belongs to, in full. The arguments of a call (torch/csrc/profiler/util.cpp
`saveNcclMeta`) repeat the group, but only as an arithmetic progression, and cut after 30 ranks.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from heuristics.arrays import NULL, codes, ints, lists
from heuristics.columns import Bools, Ints, at, distinct, none
from parsers import assemble, tables
from parsers.columns import distinct_values, whole_number

if TYPE_CHECKING:
    import pyarrow as pa

    from parsers.tables import RankIdentity


@dataclass(frozen=True)
class Mention:
    """A group as one call names it; null for what the call does not say."""

    name: str | None
    desc: str | None
    size: int | None
    start: int | None
    stride: int | None
    listed: tuple[int, ...]
    cut: bool
    token: str | None = None  # tells groups of one process apart, without being a name

    @property
    def known_size(self) -> int | None:
        """Number of members, from `Group size` or from a complete list."""
        if self.size is not None and self.size > 0:
            return self.size
        return len(self.listed) if self.listed and not self.cut else None


def members(mention: Mention, identity: RankIdentity) -> tuple[tuple[int, ...] | None, str]:
    """The ranks of a mentioned group in group order, or null, and what they were read from."""
    size, listed = mention.known_size, mention.listed
    if listed and not mention.cut and len(listed) == size:
        return listed, "listed"
    if size is None:
        return None, "none"
    if mention.start is not None and mention.stride is not None and (mention.stride > 0 or size == 1):
        return tuple(range(mention.start, mention.start + size * max(mention.stride, 1), max(mention.stride, 1))), (
            "start_stride"
        )
    whole = _from_cut(listed, size) if mention.cut else None
    if whole is not None:
        return whole, "cut_list"
    if size == 1 and identity.rank is not None:
        return (identity.rank,), "members"
    if identity.world_size is not None and size == identity.world_size:
        return tuple(range(size)), "members"
    return None, "none"


def _from_cut(listed: tuple[int, ...], size: int) -> tuple[int, ...] | None:
    """The arithmetic progression behind a cut list, if its entries fit one.

    Kineto computes the list from start and stride (saveNcclMeta), writes 30 entries and an ellipsis (torch 2.4) or 29,
    an ellipsis and the last one (newer).
    """
    if len(listed) < 3 or size < len(listed):
        return None
    stride = listed[1] - listed[0]
    whole = tuple(range(listed[0], listed[0] + size * stride, stride)) if stride > 0 else ()
    if whole[: len(listed)] == listed or (whole[: len(listed) - 1] == listed[:-1] and whole[-1:] == listed[-1:]):
        return whole
    return None


def group_key(ranks: Sequence[int] | None, *, size: int | None, name: str | None) -> Hashable:
    """What is equal for the same group on all of its ranks, and differs between groups.

    The set of ranks where it is known; else the identifier and size, which `torch.distributed` keeps equal on all
    ranks of a group (distributed_c10d `_process_group_name`).
    """
    if ranks is not None:
        return frozenset(ranks)
    return ("unknown ranks", name, size)


def group_keys(groups: pa.Table) -> list[Hashable]:
    """`group_key` of every row of `parsers.tables.GROUPS`."""
    columns = groups.select(["ranks", "size", "name"]).to_pydict()
    return [
        group_key(ranks, size=size, name=name)
        for ranks, size, name in zip(columns["ranks"], columns["size"], columns["name"], strict=True)
    ]


def member(groups: pa.Table, group: Ints, position: Ints) -> Ints:
    """Global rank of the member at a position of each row's group; `NULL` where either is not known."""
    offsets, flat = lists(groups, "ranks")
    begin, stop = at(offsets[:-1], group, 0), at(offsets[1:], group, 0)
    inside = (position >= 0) & (position < stop - begin)
    return at(flat, np.where(inside, begin + position, NULL))


def position(groups: pa.Table, group: Ints, rank: int | None) -> Ints:
    """Position of a rank in each row's group; `NULL` where it is not a known member."""
    ranks = groups.column("ranks").to_pylist()
    places = [NULL if not members or rank not in members else members.index(rank) for members in ranks]
    return at(np.array([*places, NULL], dtype=np.int64), group)


def without_descriptions(groups: pa.Table) -> pa.Table:
    """The groups without descriptions; names stay, as what joins calls with groups."""
    import pyarrow as pa

    place = groups.schema.get_field_index("desc")
    return groups.set_column(place, "desc", pa.nulls(groups.num_rows, pa.string()))


def resolve(
    declared: pa.Table,
    records: pa.Table,
    identity: RankIdentity,
    *,
    metadata: Ints,
    plain: Ints,
    size: Ints,
    at_least_two: Bools,
    by_torch: Bools,
) -> tuple[pa.Table, Ints]:
    """Find the group of every call.

    Where the call does not name its group, the declared groups still narrow it down: the header lists all groups of
    the rank, so a call is on one of those that have its size. Only when they all have the same ranks is that an answer.

    Args:
        declared: the file's `parsers.tables.GROUPS`.
        records: `parsers.tables.COMM_RECORDS`.
        identity: of the rank.
        metadata: per call, the record that carries its metadata, or `NULL`.
        plain: per call, its `record_param_comms` without a collective name, or `NULL`.
        size: per call, the group size that its message sizes imply, or `NULL`.
        at_least_two: calls that no group of one rank makes.
        by_torch: calls that go through torch.distributed: others need not run on a declared group.

    Returns:
        The groups (declared ones first, then those only seen in calls, in order of first use) and, per call, the row
        of its group or `NULL`.
    """
    known = _Known(declared, identity)
    number, sample = _mentions(records, metadata)
    places = np.array([*(known.place(mention) for mention in sample), NULL], dtype=np.int64)
    group = places[number]
    number, sample = _old_mentions(records, np.where(group == NULL, plain, NULL))
    places = np.array([*(known.place(mention) for mention in sample), NULL], dtype=np.int64)
    group = np.where(group == NULL, places[number], group)
    open_ = np.flatnonzero((group == NULL) & (by_torch | (size != NULL)))
    cases = np.stack([size, at_least_two, by_torch], axis=1)[open_]
    example, kind = distinct(*cases.T)
    answers = [
        known.only(n, at_least_two=bool(two)) if torch else known.world(n) for n, two, torch in cases[example].tolist()
    ]
    if answers:
        group[open_] = np.array(answers, dtype=np.int64)[kind]
    return known.table(), group


class _Known:
    """The groups met so far."""

    def __init__(self, declared: pa.Table, identity: RankIdentity) -> None:
        self.identity = identity
        self.rows = [
            {**group, "size": group["size"] or (len(group["ranks"]) if group["ranks"] else None)}
            for group in declared.select(tables.GROUPS.names).to_pylist()
        ]
        self.declared = len(self.rows)
        self.by_name: dict[str, int] = {}
        for row, group in enumerate(self.rows):
            self.by_name.setdefault(group["name"], row)
        self.seen: dict[Hashable, int] = {}

    def place(self, mention: Mention) -> int:
        """The row of a mentioned group, made where there is none yet."""
        size = mention.known_size
        if not mention.name and size is None:
            return NULL
        ranks, source = members(mention, self.identity)
        row = self.by_name.get(mention.name) if mention.name else None
        if row is None and mention.name is None and mention.token is None and ranks is None:
            row = self.only(size or NULL, at_least_two=False)
            row = None if row == NULL else row
        if row is not None and self._fits(row, ranks, size):
            if self.rows[row]["ranks"] is None and ranks is not None:
                self.rows[row] |= {"ranks": list(ranks), "ranks_source": source, "size": len(ranks)}
            return row
        key = (mention.name, mention.token, ranks, size)
        if key not in self.seen:
            self.seen[key] = self._add(mention.name, mention.desc, size, ranks, source)
        return self.seen[key]

    def only(self, size: int, *, at_least_two: bool) -> int:
        """The one group that a call of this size (`NULL`: any) can be on; `NULL` if several or none can."""
        fits = [
            row
            for row, group in enumerate(self.rows[: self.declared])
            if (size in (NULL, group["size"])) and not (at_least_two and group["size"] == 1)
        ]
        sets = {frozenset(self.rows[row]["ranks"]) if self.rows[row]["ranks"] else row for row in fits}
        if len(sets) == 1:
            return fits[0]
        return NULL if fits else self.world(size)

    def world(self, size: int) -> int:
        """The group of all ranks, where the size is that of the job."""
        if size == NULL or size != self.identity.world_size:
            return NULL
        for row, group in enumerate(self.rows):
            if group["ranks"] is not None and len(group["ranks"]) == size:
                return row
        return self._add(None, None, size, range(size), "members")

    def _add(
        self, name: str | None, desc: str | None, size: int | None, ranks: Sequence[int] | None, source: str
    ) -> int:
        row = {
            "name": name,
            "desc": desc,
            "backend": None,
            "size": size,
            "ranks": None if ranks is None else list(ranks),
            "ranks_source": source,
            "declared": False,
        }
        self.rows.append(row)
        return len(self.rows) - 1

    def _fits(self, row: int, ranks: tuple[int, ...] | None, size: int | None) -> bool:
        """Whether a call's group can be the declared one of the same name."""
        group = self.rows[row]
        if group["ranks"] is not None and ranks is not None:
            return set(group["ranks"]) == set(ranks)
        return group["size"] is None or size is None or group["size"] == size

    def table(self) -> pa.Table:

        columns = {name: [row.get(name) for row in self.rows] for name in tables.GROUPS.names}
        return assemble.table(tables.GROUPS, columns)


def _old_mentions(records: pa.Table, rows: Ints) -> tuple[Ints, list[Mention]]:
    """Groups among the positional arguments that PyTorch 2.1 to 2.3 gave `record_param_comms`.

    ``(tensors, sequence number, address of the group, rank, name, in splits, out splits, group size)``
    (c10d/ParamCommsUtils.hpp `RECORD_PARAM_COMMS_DATA`); texts come out empty. The address names the group within this
    process.
    """
    number, used = none(len(rows)), np.flatnonzero(rows >= 0)
    sample: list[Mention] = []
    if not len(used):
        return number, sample
    places: dict[Mention, int] = {}
    unique, inverse = np.unique(rows[used], return_inverse=True)
    column = records.column("concrete_inputs").take(unique).to_pylist()
    found = none(len(unique))
    for i, arguments in enumerate(column):
        if not arguments or len(arguments) != 8 or not arguments[2].isdecimal():
            continue
        size = whole_number(arguments[7])
        if size is None or size < 0:
            continue
        mention = Mention(None, None, size, None, None, (), False, token=arguments[2])
        found[i] = places.setdefault(mention, len(places))
    number[used] = found[inverse]
    return number, list(places)


def _mentions(records: pa.Table, rows: Ints) -> tuple[Ints, list[Mention]]:
    """Distinct groups among the given records: a number per row (the last is for `NULL`), and what each number says."""
    used = distinct_values(rows[rows >= 0])
    if not len(used):
        return none(len(rows)), []
    name, names = codes(records, "group_name")
    desc, descs = codes(records, "group_desc")
    size, start, stride = (ints(records, c) for c in ("group_size", "rank_start", "rank_stride"))
    cut = ints(records, "group_ranks_cut")
    offsets, flat = lists(records, "group_ranks")
    length = np.diff(offsets)
    weights = np.arange(1, len(flat) + 1, dtype=np.int64) - np.repeat(offsets[:-1], length)
    mixed = np.concatenate([[0], np.cumsum((flat + 1) * (weights * 1_000_003 + 7))])
    content = mixed[offsets[1:]] - mixed[offsets[:-1]]
    example, number = distinct(*(column[used] for column in (name, size, start, stride, cut, length, content)))
    order = np.argsort(example, kind="stable")
    rank = np.empty(len(order), dtype=np.int64)
    rank[order] = np.arange(len(order))
    sample = [
        Mention(
            name=names[name[row]] if name[row] >= 0 else None,
            desc=descs[desc[row]] if desc[row] >= 0 else None,
            size=None if size[row] == NULL else int(size[row]),
            start=None if start[row] == NULL else int(start[row]),
            stride=None if stride[row] == NULL else int(stride[row]),
            listed=tuple(flat[offsets[row] : offsets[row + 1]].tolist()),
            cut=bool(cut[row] > 0),
        )
        for row in used[example[order]].tolist()
    ]
    number_of = none(records.num_rows)
    number_of[used] = rank[number]
    return np.where(rows >= 0, number_of[np.maximum(rows, 0)], NULL), sample
