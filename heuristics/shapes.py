"""Message sizes from the `Input Dims` of an operator or annotation: which argument is the input, which the output."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from heuristics.arrays import NULL, code_of, list_parts, numpy
from heuristics.columns import Bools, Ints, at, none, take
from heuristics.dtypes import NAMES, normalise
from heuristics.kernel_table import LAYOUTS
from parsers.columns import Names

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


@dataclass(frozen=True, eq=False)
class _Argument:
    """One argument of each record.

    Attributes:
        first: its first tensor among all of ``input_dims``.
        nelems: elements of all its tensors, `NULL` where they are not recorded.
        dtype: number into `NAMES`; `NULL` for lists, whose element type is not recorded.
    """

    first: Ints
    nelems: Ints
    dtype: Ints


def sizes(records: pa.Table, layout: Ints) -> Sizes:
    """Read every record's message sizes.

    Args:
        records: `parsers.tables.COMM_RECORDS`.
        layout: per record, the position in `LAYOUTS` of how its arguments lie, or `NULL`.
    """
    one, two = _arguments(records, layout)
    ins, outs = none(records.num_rows), none(records.num_rows)
    # `allgather_` and `gather_`: the outputs come first, as lists of lists, which are not recorded.
    behind = (layout == _INPUTS) & (one.nelems == NULL) & (one.dtype == NULL)
    from_two = np.isin(layout, (_OUT_IN, _LISTS)) | behind
    from_one = np.isin(layout, (_IN_PLACE, _INPUT, _INPUTS)) & ~behind
    ins[from_one], ins[from_two] = one.nelems[from_one], two.nelems[from_two]
    out = np.isin(layout, (_IN_PLACE, _OUT_IN, _LISTS, _OUTPUTS))
    outs[out] = one.nelems[out]
    product = np.flatnonzero((layout == _MATMUL) & (one.nelems > 0) & (two.nelems > 0))
    ins[product] = _product(records, one.first[product], two.first[product], one.nelems[product])
    dtype = np.where(from_two & (two.dtype != NULL), two.dtype, one.dtype)
    tensor = np.where(ins >= 0, np.where(from_two, two.first, one.first), NULL)
    return Sizes(ins, outs, dtype, tensor)


def shapes(records: pa.Table, tensor: Ints) -> pa.ListArray:
    """The sizes of one tensor per row, given as `Sizes.tensor`; null for `NULL`."""
    return take(list_parts(records.column("input_dims"))[1], tensor)


def leading(records: pa.Table, tensor: Ints) -> Ints:
    """Dimension 0 of one tensor per row, given as `Sizes.tensor`; `NULL` for `NULL` and for scalars."""
    _, _, _, width = _tensors(records)
    flat = numpy(list_parts(list_parts(records.column("input_dims"))[1])[1])
    begin = np.cumsum(width) - width
    return at(flat, np.where(at(width, tensor, 0) > 0, at(begin, tensor), NULL))


def _arguments(records: pa.Table, layout: Ints) -> tuple[_Argument, _Argument]:
    """The first two arguments of every record that has a layout.

    `Input type` has one entry an argument. `Input Dims` has one, too, but a list of tensors takes as many as it has
    tensors, and two lists of one record are equally long.
    """
    first, count, numel, width = _tensors(records)
    type_first, type_count, kind, is_list = _types(records)
    known = (layout >= 0) & (count > 0) & (type_count > 0)
    lists = [_lookup(is_list.astype(np.int64), type_first + i, known & (type_count > i), 0) for i in (0, 1)]
    spare = count - (type_count - lists[0] - lists[1])
    length = [np.where(is_a_list > 0, spare // np.maximum(lists[0] + lists[1], 1), 1) for is_a_list in lists]
    start = [first, first + length[0]]
    out = []
    for i in (0, 1):
        here = known & (type_count > i) & (length[i] >= 0) & (start[i] + length[i] <= first + count)
        dtype = _lookup(kind, type_first + i, here, NULL)
        out.append(_Argument(start[i], _total(numel, width, start[i], length[i], here, dtype != NULL), dtype))
    return out[0], out[1]


def _lookup(values: Ints, rows: Ints, where: Bools, otherwise: int) -> Ints:
    return at(values, np.where(where, rows, NULL), otherwise)


def _total(numel: Ints, width: Ints, start: Ints, length: Ints, where: Bools, is_tensor: Bools) -> Ints:
    """Elements of the tensors ``[start, start + length)`` where any has dimensions.

    A scalar and an argument whose sizes were not recorded look alike, as no dimensions: only what has an element type
    is a scalar.
    """
    upto, dims = (np.concatenate([[0], np.cumsum(column)]) for column in (numel, width))
    out = none(len(start))
    low, high = start[where], (start + length)[where]
    said = (dims[high] > dims[low]) | (is_tensor[where] & (high > low))
    out[where] = np.where(said, upto[high] - upto[low], NULL)
    return out


def _tensors(records: pa.Table) -> tuple[Ints, Ints, Ints, Ints]:
    """First tensor and number of tensors of every record; elements and dimensions of every tensor."""
    count, inner = list_parts(records.column("input_dims"))
    if not len(inner):
        return np.zeros_like(count), count, np.empty(0, np.int64), np.empty(0, np.int64)
    width, items = list_parts(inner)
    flat = numpy(items)
    numel = np.ones(len(width), dtype=np.int64)
    filled = width > 0
    if filled.any():
        numel[filled] = np.multiply.reduceat(flat, (np.cumsum(width) - width)[filled])
    return np.cumsum(count) - count, count, numel, width


def _types(records: pa.Table) -> tuple[Ints, Ints, Ints, Bools]:
    """First type and number of types of every record; of every type, its element type and whether it is a list."""
    count, inner = list_parts(records.column("input_types"))
    distinct = Names()
    index = distinct.codes(inner.to_pylist())
    names = list(distinct)
    known = [NULL if (dtype := normalise(name)) is None else NAMES.index(dtype) for name in names]
    kind = np.array([*known, NULL], dtype=np.int64)[index]
    return np.cumsum(count) - count, count, kind, np.asarray(index == code_of(names, "TensorList"), dtype=np.bool_)


def _product(records: pa.Table, left: Ints, right: Ints, nelems: Ints) -> Ints:
    """Elements of the matrix products ``left @ right``: the last dimension of one replaces that of the other."""
    dims = list_parts(records.column("input_dims"))[1]
    last = [[dims[int(row)].as_py()[-1] for row in rows] for rows in (left, right)]  # one row a fused operator: few
    return nelems // np.array(last[0], dtype=np.int64) * np.array(last[1], dtype=np.int64)
