"""What Kineto writes about a collective: the argument keys, and their columns.

Keys as in PyTorch's `torch/csrc/profiler/util.h` (`saveNcclMeta`) and Kineto's `output_json.cpp`, with the older
spellings of 2023 and 2024. Sizes are elements, not bytes.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Self

import msgspec
import numpy as np
import numpy.typing as npt
from msgspec import Raw, Struct, field

from parsers.columns import NULL, Lists, Names, integer, integers

COMM_LAYERS = ("record_param_comms", "c10d", "functional", "symm_mem", "annotation", "kernel", "gpu_annotation")
"""The layers of `COMM_RECORDS` that Kineto fills; a layer's number in its column is its place here."""

_INTEGER = re.compile(rb"-?\d+")
_TWO_63, _TWO_64 = 2**63, 2**64


class CommFields(Struct, gc=False, kw_only=True):
    """The keys of one collective. Missing numbers are `NULL`, missing lists empty text."""

    external_id: int = field(default=NULL, name="External id")
    collective: str | None = field(default=None, name="Collective name")
    dtype: str | None = field(default=None, name="dtype")
    in_nelems: int = field(default=NULL, name="In msg nelems")
    out_nelems: int = field(default=NULL, name="Out msg nelems")
    in_size: int = field(default=NULL, name="In msg size")  # the same, until 2023-12
    out_size: int = field(default=NULL, name="Out msg size")
    in_split: Raw = field(default=Raw(b""), name="In split size")
    out_split: Raw = field(default=Raw(b""), name="Out split size")
    group_name: str | int | None = field(default=None, name="Process Group Name")
    group_id: str | int | None = field(default=None, name="Process Group ID")  # the same, until 2024-04
    group_desc: str | None = field(default=None, name="Process Group Description")
    group_size: int = field(default=NULL, name="Group size")
    group_ranks: Raw = field(default=Raw(b""), name="Process Group Ranks")
    src_rank: int = field(default=NULL, name="Src Rank")
    dst_rank: int = field(default=NULL, name="Dst Rank")
    seq: int = field(default=NULL, name="Seq")
    comms_id: int = field(default=NULL, name="Comms Id")

    def says_something(self) -> bool:
        """Whether any key of a collective is there: the kernel was linked to a `record_param_comms`."""
        return self.collective is not None or self.group_size != NULL or self.group_name is not None

    def detached(self) -> Self:
        """This, no longer referring to the text that it was decoded from."""
        for name in ("in_split", "out_split", "group_ranks"):
            raw: Raw = getattr(self, name)
            setattr(self, name, raw.copy())
        return self


class CommArgs(CommFields, gc=False, kw_only=True):
    """The arguments of a communication operator on the CPU."""

    rank_start: int = field(default=NULL, name="Global rank start")
    rank_stride: int = field(default=NULL, name="Global rank stride")
    rank_arg: int = field(default=NULL, name="Rank")
    is_async: int | bool = field(default=-1, name="Is asynchronized op")
    input_dims: Raw = field(default=Raw(b""), name="Input Dims")
    input_types: Raw = field(default=Raw(b""), name="Input type")
    concrete_inputs: Raw = field(default=Raw(b""), name="Concrete Inputs")


class CommTexts:
    """The texts and lists of all communication rows of a file, each kept once."""

    def __init__(self) -> None:
        self.names = {name: Names() for name in ("name", "collective", "dtype", "group_name", "group_desc")}
        self.names["layer"] = Names(COMM_LAYERS)
        self.lists = {
            "in_split": Lists(_numbers),
            "out_split": Lists(_numbers),
            "group_ranks": Lists(_numbers),
            "input_dims": Lists(_dims),
            "input_types": Lists(_texts),
            "concrete_inputs": Lists(_texts),
        }

    def shared(self) -> dict[str, Names | Lists]:
        """What `Columns` needs to know of them."""
        return {**self.names, **self.lists}

    def columns(self, rows: Sequence[CommFields]) -> dict[str, npt.NDArray[Any]]:
        """The columns that kernels and operators have in common."""
        groups = [row.group_id if row.group_name is None else row.group_name for row in rows]
        in_split = self.lists["in_split"].codes([row.in_split for row in rows])
        out_split = self.lists["out_split"].codes([row.out_split for row in rows])
        ranks = self.lists["group_ranks"].codes([row.group_ranks for row in rows])
        cut = self.lists["in_split"].cut(in_split) | self.lists["out_split"].cut(out_split)
        return {
            "external_id": integers([row.external_id for row in rows]),
            "collective": self.names["collective"].codes([row.collective for row in rows]),
            "dtype": self.names["dtype"].codes([row.dtype for row in rows]),
            "in_nelems": _either(integers([row.in_nelems for row in rows]), [row.in_size for row in rows]),
            "out_nelems": _either(integers([row.out_nelems for row in rows]), [row.out_size for row in rows]),
            "in_split": in_split,
            "out_split": out_split,
            "splits_cut": cut,
            "group_name": self.names["group_name"].codes([None if name is None else str(name) for name in groups]),
            "group_desc": self.names["group_desc"].codes([row.group_desc for row in rows]),
            "group_size": integers([row.group_size for row in rows]),
            "group_ranks": ranks,
            "group_ranks_cut": self.lists["group_ranks"].cut(ranks),
            "src_rank": integers([row.src_rank for row in rows]),
            "dst_rank": integers([row.dst_rank for row in rows]),
            "seq": integers([row.seq for row in rows]),
            "comms_id": integers([_signed(row.comms_id) for row in rows]),
        }

    def operator_columns(self, rows: Sequence[CommArgs]) -> dict[str, npt.NDArray[Any]]:
        """All columns of operators."""
        return {
            **self.columns(rows),
            "rank_start": integers([row.rank_start for row in rows]),
            "rank_stride": integers([row.rank_stride for row in rows]),
            "rank_arg": integers([row.rank_arg for row in rows]),
            "is_async": np.fromiter((_flag(row.is_async) for row in rows), np.int8, len(rows)),
            "input_dims": self.lists["input_dims"].codes([row.input_dims for row in rows]),
            "input_types": self.lists["input_types"].codes([row.input_types for row in rows]),
            "concrete_inputs": self.lists["concrete_inputs"].codes([row.concrete_inputs for row in rows]),
        }


def _either(first: npt.NDArray[np.int64], second: list[int]) -> npt.NDArray[np.int64]:
    missing = first == NULL
    return np.where(missing, integers(second), first) if missing.any() else first


def _flag(value: int | bool) -> int:
    """0 or 1; what is neither says nothing, as -1 does."""
    return int(value) if value in (0, 1) else -1


def _signed(value: int) -> int:
    """A 64-bit hash as a signed number."""
    return value - _TWO_64 if _TWO_63 <= value < _TWO_64 else value


def _numbers(raw: bytes) -> tuple[list[int], bool] | None:
    """``"[0, 1, ..., 7]"`` or ``[0, 1]`` to its numbers, and whether an ellipsis says that some are missing."""
    if raw == b"null":
        return None
    return [integer(digits) for digits in _INTEGER.findall(raw)], b"..." in raw


def _dims(raw: bytes) -> tuple[list[list[int]], bool] | None:
    """`Input Dims`: one list per tensor; a list of tensors gives one entry each, a scalar an empty one."""
    value = _decoded(raw)
    if not isinstance(value, list):
        return None
    flat: list[list[int]] = []
    for item in value:
        if isinstance(item, list) and item and isinstance(item[0], list):
            flat.extend(_sizes(inner) for inner in item)
        else:
            flat.append(_sizes(item))
    return flat, False


def _sizes(value: Any) -> list[int]:
    return [size for size in value if isinstance(size, int)] if isinstance(value, list) else []


def _texts(raw: bytes) -> tuple[list[str], bool] | None:
    value = _decoded(raw)
    if not isinstance(value, list):
        return None
    return [item if isinstance(item, str) else msgspec.json.encode(item).decode() for item in value], False


def _decoded(raw: bytes) -> Any:
    try:
        return msgspec.json.decode(raw)
    except (msgspec.DecodeError, RecursionError):
        return None
