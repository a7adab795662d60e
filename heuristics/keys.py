"""What makes two calls the same: one row of codes per call, and the payload that stands for it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from heuristics.arrays import NULL, code_of, codes, ints, lists
from heuristics.columns import distinct
from heuristics.view import SCALARS

if TYPE_CHECKING:
    import numpy.typing as npt
    import pyarrow as pa


_WIDTHS = (1, 2, 4, 8)
"""Bytes of an element."""


def _payload(table: pa.Table) -> npt.NDArray[np.int64]:
    """The ledger's S in elements: the larger side of gathers and scatters, the steadier side of uneven exchanges."""
    given, taken = ints(table, "in_nelems"), ints(table, "out_nelems")
    primitive, names = codes(table, "primitive")
    size = np.maximum(given, taken)
    exchanges = primitive == code_of(names, "all_to_all")
    if exchanges.any():
        values, counts = np.unique(np.concatenate([given[exchanges], taken[exchanges]]), return_counts=True)
        often_in = counts[np.searchsorted(values, given[exchanges])]
        often_out = counts[np.searchsorted(values, taken[exchanges])]
        steady = np.where(often_in > often_out, given[exchanges], taken[exchanges])
        size[exchanges] = np.where(often_in == often_out, size[exchanges], steady)
    return size


def _elements_of_bytes(
    table: pa.Table, group: npt.NDArray[np.int64], payload: npt.NDArray[np.int64]
) -> npt.NDArray[np.int64]:
    """Elements of calls of which the bytes are known and the type is not (NCCL's NVTX payloads say no type).

    A unit that is gathered and reduced on one group has as many elements both ways: bytes that are those of a reduction
    in exactly one type's width have its elements. A few bytes are a few elements in any type.
    """
    out, size = payload.copy(), ints(table, "size_bytes")
    open_ = (payload == NULL) & (size >= 0)
    if not open_.any():
        return out
    typed = np.unique(np.stack([group, payload], axis=1)[payload > SCALARS], axis=0)
    known = set(map(tuple, typed.tolist()))
    example, number = distinct(group[open_], size[open_])
    found = []
    for where, length in zip(group[open_][example].tolist(), size[open_][example].tolist(), strict=True):
        fits = {length // width for width in _WIDTHS if length % width == 0 and (where, length // width) in known}
        few = length <= SCALARS * max(_WIDTHS)
        found.append(fits.pop() if len(fits) == 1 else length // max(_WIDTHS) if few else NULL)
    out[open_] = np.array(found, dtype=np.int64)[number]
    return out


def _members(table: pa.Table) -> npt.NDArray[np.int64]:
    """Group size as a call shows it: stated, else the ratio between the two sides of a gather or scatter."""
    stated = ints(table, "group_size", 0)
    given, taken = ints(table, "in_nelems"), ints(table, "out_nelems")
    small, large = np.minimum(given, taken), np.maximum(given, taken)
    primitive, names = codes(table, "primitive")
    sided = np.isin(primitive, [code_of(names, "all_gather"), code_of(names, "reduce_scatter")])
    exact = sided & (small > 0) & (large % np.maximum(small, 1) == 0)
    return np.where(stated > 0, stated, np.where(exact, large // np.maximum(small, 1), 0))


def _spread(table: pa.Table, name: str) -> tuple[npt.NDArray[np.bool_], npt.NDArray[np.bool_], npt.NDArray[np.bool_]]:
    """Per row of a split list: whether there is one, whether all entries are equal, whether one entry is not zero."""
    offsets, flat = lists(table, name)
    lengths = np.diff(offsets)
    rows = np.repeat(np.arange(len(lengths)), lengths)
    nonzero = np.bincount(rows, weights=flat != 0, minlength=len(lengths))
    total = np.bincount(rows, weights=flat, minlength=len(lengths))
    safe = np.maximum(lengths, 1)
    off_mean = np.bincount(rows, weights=flat * safe[rows] != total[rows], minlength=len(lengths))
    return lengths > 0, off_mean == 0, (nonzero == 1) & (lengths > 1)


def split_codes(table: pa.Table) -> npt.NDArray[np.int64]:
    """0 equal, 1 one entry not zero, 2 uneven, -1 not an all-to-all."""
    primitive, names = codes(table, "primitive")
    listed_in, even_in, single_in = _spread(table, "in_split")
    listed_out, even_out, single_out = _spread(table, "out_split")
    given, taken = ints(table, "in_nelems"), ints(table, "out_nelems")
    uneven = (listed_in & ~even_in) | (listed_out & ~even_out) | ((given != taken) & (given >= 0) & (taken >= 0))
    single = listed_in & listed_out & single_in & single_out
    code = np.where(single, 1, np.where(uneven, 2, 0))
    return np.where(primitive == code_of(names, "all_to_all"), code, NULL)


def call_keys(table: pa.Table, group: npt.NDArray[np.int64]) -> tuple[npt.NDArray[np.int64], dict[str, list[str]]]:
    """One row of codes per call; calls with equal rows are one family."""
    text = {name: codes(table, name) for name in ("primitive", "op", "dtype", "direction", "role", "library")}
    offsets, flat = lists(table, "shape")
    ndim = np.diff(offsets)
    split = split_codes(table)
    payload = _elements_of_bytes(table, group, _payload(table))
    columns = [
        group,
        *(text[name][0] for name in ("primitive", "op", "dtype", "direction", "role", "library")),
        payload,
        np.where(split == 1, 2, split),  # a lone one-hot among uneven exchanges is chance: decided per family
        ints(table, "peer"),
        ndim,
        np.where(ndim > 0, np.append(flat, 0)[np.maximum(offsets[1:] - 1, 0)], 0),
        _members(table),
        np.where(text["primitive"][0] == code_of(text["primitive"][1], "send_recv"), ints(table, "root"), NULL),
        np.where(payload == NULL, ints(table, "size_bytes"), NULL),  # calls of unknown type are told apart by bytes
    ]
    extra = {name: values for name, (_, values) in text.items()}
    return np.stack(columns, axis=1) if len(payload) else np.empty((0, 15), dtype=np.int64), extra
