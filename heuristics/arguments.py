"""What a call was given: sizes, element type, splits, root, peer; from its metadata, else its operator's arguments."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from heuristics import shapes
from heuristics.arrays import NULL, codes, ints, list_parts, lists
from heuristics.columns import Ints, at, first, none, take
from heuristics.dtypes import NAMES, normalise
from heuristics.kernel_table import LAYOUTS, Operator
from heuristics.primitives import UNKNOWN
from parsers.columns import Names, list_array, whole_number

if TYPE_CHECKING:
    from heuristics.calls import Records
    from heuristics.evidence import Evidence

_SPLITS = pa.list_(pa.int64())


@dataclass(frozen=True, eq=False)
class Arguments:
    """Per call; `NULL` (or an Arrow null) where nothing says it.

    Attributes:
        in_nelems: elements handed in.
        out_nelems: elements handed out.
        dtype: number into `heuristics.dtypes.NAMES`.
        tensor: the first tensor, as `shapes.Sizes.tensor`.
        in_split: rows of dimension 0 sent to each peer.
        out_split: rows of dimension 0 received from each peer.
        splits_cut: whether the writer truncated the split lists.
        rows: size of dimension 0 of the first tensor.
        ranks: group size, where an argument or the length of a split list gives it.
        own: this rank's position in the group.
        root: group rank of the root.
        peer: group rank of the other side of a send or receive.
        peer_global: global rank of it.
    """

    in_nelems: Ints
    out_nelems: Ints
    dtype: Ints
    tensor: Ints
    in_split: pa.Array
    out_split: pa.Array
    splits_cut: Ints
    rows: Ints
    ranks: Ints
    own: Ints
    root: Ints
    peer: Ints
    peer_global: Ints

    def with_spans(self, read: shapes.Sizes, span: Ints) -> Arguments:
        """The same, with what the annotation of the execution says where nothing else did."""
        return replace(
            self,
            in_nelems=first(self.in_nelems, at(read.in_nelems, span)),
            dtype=first(self.dtype, at(read.dtype, span)),
            tensor=first(self.tensor, at(read.tensor, span)),
        )


def read_sizes(records: Records) -> shapes.Sizes:
    """The sizes that each record's `Input Dims` give, by the layout of its operator's arguments."""
    known = [NULL if op is None or op.tensors is None else LAYOUTS.index(op.tensors) for op in records.operators]
    return shapes.sizes(records.table, np.array([*known, NULL], dtype=np.int64)[records.name])


def gather(records: Records, seen: Evidence, read: shapes.Sizes, direction: Ints) -> Arguments:
    """Collect the arguments of every call.

    Args:
        records: all records.
        seen: the evidence of each call.
        read: `read_sizes` of the records.
        direction: per call, position in `DIRECTIONS`, or `NULL`.
    """
    facts, metadata = records.table, seen.metadata
    operators = (seen.operator, seen.functional)
    layers = (*operators, seen.annotation)
    # Counts of 32 bits (PyTorch up to 2.4) overflow: a negative count is no count.
    ins, outs = (np.where((x := ints(facts, name)) < 0, NULL, x) for name in ("in_nelems", "out_nelems"))
    rank = at(ints(facts, "rank_arg"), metadata)
    in_split = _splits(records, metadata, "in_split", operators, "in_splits")
    out_split = _splits(records, metadata, "out_split", operators, "out_splits")
    cut = at(ints(facts, "splits_cut", 0), metadata, 0)
    tensor = first(*(at(read.tensor, rows) for rows in layers))
    listed = list_parts(in_split)[0]
    size = first(*(concrete_int(records, rows, "size") for rows in reversed(operators)))
    by_kernel = np.array([*(c.ranks or NULL for c in seen.work.classes), NULL], dtype=np.int64)
    return Arguments(
        in_nelems=first(at(ins, metadata), *(at(read.in_nelems, rows) for rows in layers)),
        out_nelems=first(at(outs, metadata), *(at(read.out_nelems, rows) for rows in layers)),
        dtype=_dtype(records, seen, read, layers),
        tensor=tensor,
        in_split=in_split,
        out_split=out_split,
        splits_cut=cut,
        rows=shapes.leading(facts, tensor),
        ranks=first(size, np.where((listed > 0) & (cut == 0), listed, NULL), by_kernel[seen.kind]),
        own=np.where(direction == NULL, rank, NULL),
        root=first(rank, *(concrete_int(records, rows, "root") for rows in operators)),
        peer=np.where(direction == NULL, NULL, first(rank, concrete_int(records, seen.operator, "peer"))),
        peer_global=first(at(ints(facts, "dst_rank"), metadata), at(ints(facts, "src_rank"), metadata)),
    )


def kept(arguments: Arguments, own: Ints) -> Ints:
    """Elements that stay on this rank, of each call with split lists; `NULL` for calls without.

    `UNKNOWN` where there is a list, but not this rank's entry of it.
    """
    splits = pa.chunked_array([arguments.in_split]) if len(own) else pa.chunked_array([], type=_SPLITS)
    offsets, flat = lists(pa.table({"splits": splits}), "splits")
    begin, length = offsets[:-1], np.diff(offsets)
    cut = arguments.splits_cut > 0
    # Of a cut list the last entry need not be in its place (29 entries, an ellipsis, the last one).
    inside = (own >= 0) & (own < np.where(cut, length - 1, length))
    mine = at(flat, np.where(inside, begin + own, NULL))
    total = np.concatenate([[0], np.cumsum(flat)])
    rows = np.where(cut, arguments.rows, np.where(length > 0, total[begin + length] - total[begin], NULL))
    ready = inside & (rows >= 0) & (arguments.in_nelems >= 0)
    stays = np.where(ready, mine * (arguments.in_nelems // np.maximum(rows, 1)), UNKNOWN)
    return np.where(length > 0, stays, NULL)


def _dtype(records: Records, seen: Evidence, read: shapes.Sizes, layers: Sequence[Ints]) -> Ints:
    code, names = codes(records.table, "dtype")
    written = np.array([*(_dtype_code(normalise(name)) for name in names), NULL], dtype=np.int64)
    by_kernel = np.array([*(_dtype_code(c.dtype) for c in seen.work.classes), NULL], dtype=np.int64)
    return first(written[at(code, seen.metadata)], *(at(read.dtype, rows) for rows in layers), by_kernel[seen.kind])


def _dtype_code(name: str | None) -> int:
    return NULL if name is None else NAMES.index(name)


def _splits(records: Records, metadata: Ints, column: str, operators: Sequence[Ints], argument: str) -> pa.Array:
    """A split list per call: as written in the metadata, else parsed from the operator's argument."""
    written = take(records.table.column(column), metadata)
    number, texts = none(len(metadata)), list[str]()
    for rows in operators:
        at_rows, found = _concrete(records, np.where(metadata == NULL, rows, NULL), argument)
        number = first(number, np.where(at_rows == NULL, NULL, at_rows + len(texts)))
        texts += found
    if not (number >= 0).any():
        return written
    lists_of = [_numbers(text) for text in texts]
    place = np.array([NULL if found is None else i for i, found in enumerate(lists_of)], dtype=np.int64)
    parsed = list_array(lists_of, place, _SPLITS)
    rows = np.where(number >= 0, number + len(written), np.arange(len(written)))
    return take(pa.chunked_array([written, parsed]), rows)


def _numbers(text: str) -> list[int] | None:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, list) and all(isinstance(item, int) for item in value) else None


def concrete_int(records: Records, rows: Ints, which: str) -> Ints:
    """An integer argument of each row's operator, `NULL` where it has none or it was not recorded."""
    number, found = _concrete(records, rows, which)
    return np.array([*map(_integer, found), NULL], dtype=np.int64)[number]


def _concrete(records: Records, rows: Ints, which: str) -> tuple[Ints, list[str]]:
    """An argument of each row's operator, as a number into its distinct texts."""
    number = none(len(rows))
    positions = np.array([*(_position(op, which) for op in records.operators), NULL], dtype=np.int64)
    wanted = np.flatnonzero((rows >= 0) & (positions[at(records.name, rows)] >= 0))
    if not len(wanted):
        return number, []
    length, items = list_parts(records.table.column("concrete_inputs"))
    begin = np.cumsum(length) - length
    place = positions[records.name[rows[wanted]]]
    fits = place < length[rows[wanted]]
    wanted, place = wanted[fits], place[fits]
    texts = Names()
    number[wanted] = texts.codes([items[row].as_py() for row in (begin[rows[wanted]] + place).tolist()])
    return number, list(texts)


def _position(operator: Operator | None, which: str) -> int:
    position = getattr(operator, which) if operator is not None else None
    return NULL if position is None else int(position)


def _integer(text: str) -> int:
    number = whole_number(text)
    return NULL if number is None else number
