"""Message sizes from the `Input Dims` of an operator or annotation: which argument is the input, which the output."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from heuristics.arrays import NULL, code_of
from heuristics.columns import Bools, Ints, at, none
from heuristics.dtypes import NAMES, normalise
from heuristics.kernel_table import LAYOUTS

if TYPE_CHECKING:
    import pyarrow as pa

_IN_PLACE, _OUT_IN, _INPUT, _INPUTS, _LISTS, _OUTPUTS, _MATMUL = range(len(LAYOUTS))


@dataclass(frozen=True, eq=False)
class Sizes:
    """What each record's arguments say; `NULL` where they do not.

    Attributes:
        in_nelems: elements handed in, all tensors of a list together.
        out_nelems: elements handed out.
        dtype: number into `heuristics.dtypes.NAMES`, of the first tensor.
        tensor: number of the first input tensor among all of ``input_dims`` (flattened), for its shape.
    """

    in_nelems: Ints
    out_nelems: Ints
    dtype: Ints
    tensor: Ints


def sizes(records: pa.Table, layout: Ints) -> Sizes:
    """Read every record's message sizes.

    Args:
        records: `parsers.tables.COMM_RECORDS`.
        layout: per record, the position in `LAYOUTS` of how its arguments lie, or `NULL`.
    """
    first, count, numel, width = _tensors(records)
    type_first, type_count, kind, is_list = _types(records)
    n = records.num_rows
    known = (layout >= 0) & (count > 0) & (type_count > 0)

    # How many entries of `input_dims` the first and the second argument have: lists are flattened, the rest has one.
    lead_list = known & _at(is_list, type_first, known)
    second_list = known & (type_count > 1) & _at(is_list, type_first + 1, known & (type_count > 1))
    both = lead_list & second_list
    spare = count - (type_count - lead_list - second_list)
    lead = np.where(lead_list, np.where(both, spare // 2, spare), 1)
    second = np.where(second_list, np.where(both, spare // 2, spare), 1)

    # Tensor lists without recorded sizes look like scalars: they say nothing.
    single = np.isin(layout, (_INPUT, _INPUTS)) & ~lead_list
    lead_kind = _kind_at(kind, type_first, known)
    second_kind = _kind_at(kind, type_first + 1, known & (type_count > 1))
    scalar_ok = lead_kind >= 0
    a = _sum(numel, width, first, lead, known, scalar_ok)
    b = _sum(numel, width, first + lead, second, known & (count >= lead + second), second_kind >= 0)

    ins, outs = none(n), none(n)
    both_ways = known & (layout == _IN_PLACE)
    ins[both_ways], outs[both_ways] = a[both_ways], a[both_ways]
    pair = known & np.isin(layout, (_OUT_IN, _LISTS))
    ins[pair], outs[pair] = b[pair], a[pair]
    take_first = known & ((layout == _INPUT) | single | ((layout == _INPUTS) & lead_list))
    ins[take_first] = a[take_first]
    # `allgather_` and `gather_`: the outputs are lists of lists, which are not recorded.
    take_second = known & (layout == _INPUTS) & ~lead_list & (lead_kind < 0)
    ins[take_second] = b[take_second]
    out_only = known & (layout == _OUTPUTS)
    outs[out_only] = a[out_only]
    product = known & (layout == _MATMUL) & (a > 0) & (b > 0)
    inner = _last(records, first, product)
    ins[product] = a[product] // np.maximum(inner[0][product], 1) * inner[1][product]

    from_second = pair | take_second
    dtype = np.where(from_second & (second_kind >= 0), second_kind, lead_kind)
    tensor = np.where(known & (ins >= 0), np.where(from_second, first + lead, first), NULL)
    return Sizes(ins, outs, np.where(known, dtype, NULL), tensor)


def shapes(records: pa.Table, tensor: Ints) -> pa.ListArray:
    """The sizes of one tensor per row, given as `Sizes.tensor`; null for `NULL`."""
    import pyarrow as pa

    inner = records.column("input_dims").combine_chunks().flatten()
    if not len(inner):
        return pa.nulls(len(tensor), pa.list_(pa.int64()))
    return inner.take(pa.array(tensor, mask=tensor < 0))


def leading(records: pa.Table, tensor: Ints) -> Ints:
    """Dimension 0 of one tensor per row, given as `Sizes.tensor`; `NULL` for `NULL` and for scalars."""
    _, _, _, width = _tensors(records)
    inner = records.column("input_dims").combine_chunks().flatten()
    if not len(inner):
        return none(len(tensor))
    flat = np.asarray(inner.flatten().fill_null(NULL), dtype=np.int64)
    begin = np.cumsum(width) - width
    return at(flat, np.where(at(width, tensor, 0) > 0, at(begin, tensor), NULL))


def _at(values: Bools, rows: Ints, where: Bools) -> Bools:
    out = np.zeros(len(rows), dtype=np.bool_)
    out[where] = values[rows[where]]
    return out


def _kind_at(kind: Ints, rows: Ints, where: Bools) -> Ints:
    out = none(len(rows))
    out[where] = kind[rows[where]]
    return out


def _sum(numel: Ints, width: Ints, start: Ints, length: Ints, where: Bools, scalar_ok: Bools) -> Ints:
    """Elements of the tensors ``[start, start + length)``; `NULL` where nothing tells a scalar from an unknown."""
    out = none(len(start))
    total = np.concatenate([[0], np.cumsum(numel)])
    dims = np.concatenate([[0], np.cumsum(width)])
    lo, hi = start[where], (start + length)[where]
    said = (dims[hi] > dims[lo]) | (scalar_ok[where] & (hi > lo))
    out[where] = np.where(said, total[hi] - total[lo], NULL)
    return out


def _tensors(records: pa.Table) -> tuple[Ints, Ints, Ints, Ints]:
    """First tensor and number of tensors of every record; elements and dimensions of every tensor."""
    column = records.column("input_dims").combine_chunks()
    if not records.num_rows:
        empty = np.empty(0, dtype=np.int64)
        return empty, empty, empty, empty
    count = np.asarray(column.value_lengths().fill_null(0), dtype=np.int64)
    inner = column.flatten()
    if not len(inner):
        return np.zeros_like(count), count, np.empty(0, np.int64), np.empty(0, np.int64)
    width = np.asarray(inner.value_lengths().fill_null(0), dtype=np.int64)
    flat = np.asarray(inner.flatten().fill_null(0), dtype=np.int64)
    numel = np.ones(len(width), dtype=np.int64)
    filled = width > 0
    if filled.any():
        starts = (np.cumsum(width) - width)[filled]
        numel[filled] = np.multiply.reduceat(flat, starts)
    return np.cumsum(count) - count, count, numel, width


def _types(records: pa.Table) -> tuple[Ints, Ints, Ints, Bools]:
    """First type and number of types of every record; of every type, its element type and whether it is a list."""
    column = records.column("input_types").combine_chunks()
    if not records.num_rows:
        return np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0, np.bool_)
    count = np.asarray(column.value_lengths().fill_null(0), dtype=np.int64)
    encoded = column.flatten().dictionary_encode()
    names = encoded.dictionary.to_pylist()
    index = np.asarray(encoded.indices.fill_null(-1), dtype=np.int64)
    lookup = np.array([*(NAMES.index(d) if (d := normalise(name)) else NULL for name in names), NULL], dtype=np.int64)
    return np.cumsum(count) - count, count, lookup[index], index == code_of(names, "TensorList")


def _last(records: pa.Table, first: Ints, where: Bools) -> tuple[Ints, Ints]:
    """Last dimension of the first tensor and of the second, for the rows of a fused matrix product."""
    one, two = np.ones(len(first), np.int64), np.ones(len(first), np.int64)
    if where.any():
        dims = records.column("input_dims").combine_chunks().flatten()
        for row in np.flatnonzero(where):  # one row per fused operator: few, and only here
            start = int(first[row])
            one[row], two[row] = dims[start].as_py()[-1], dims[start + 1].as_py()[-1]
    return one, two
