"""What NCCL attaches to its NVTX ranges: sizes, communicators, ranks; in every form in which an export keeps it.

Layouts are those of NCCL's `src/include/nvtx_payload_schemas.h` (2.25 and later, with the communicator first) and of
`src/collectives.cc` and `src/init.cc` before (2.16 to 2.24, without it). A layout is known by the function and the size
of the payload: numbers of schemas collide between versions.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from parsers.columns import NULL, Ints
from parsers.nsys.store import as_int

FIELDS = ("comm", "parent", "bytes", "redop", "arg", "nranks", "rank", "device", "color", "key", "count", "seq")
"""What a payload may say. ``bytes``: the call's own count times the size of its type, for one rank; ``arg``: the root,
or the peer; ``nranks`` and ``rank``: of the communicator (of the parent, in a split)."""

_HEADER = 32
_SCHEMA_BASE = 1 << 24
_SCHEMAS = 64
_LONGEST_CHAIN = 8
_DIGITS = b"0123456789abcdefABCDEF"

Layout = tuple[tuple[str, int, str], ...]


def _layout(text: str) -> Layout:
    """``"0:u8 comm 8:i4 rank"`` to fields: name, offset, type (u8 and i4 as in NumPy)."""
    words = text.split()
    return tuple(
        (name, int(place.split(":")[0]), "<" + place.split(":")[1])
        for place, name in zip(words[::2], words[1::2], strict=True)
    )


_INIT_OLD = {12: _layout("0:i4 rank 4:i4 nranks 8:i4 device")}
_INIT = _INIT_OLD | {24: _layout("0:u8 comm 8:i4 nranks 12:i4 rank 16:i4 device")}
_SIZE = {8: _layout("0:u8 bytes"), 16: _layout("0:u8 comm 8:u8 bytes")}
_REDUCED = {16: _layout("0:u8 bytes 8:i4 redop"), 24: _layout("0:u8 comm 8:u8 bytes 16:i4 redop")}
_ROOTED = {16: _layout("0:u8 bytes 8:i4 arg"), 24: _layout("0:u8 comm 8:u8 bytes 16:i4 arg")}
LAYOUTS: Mapping[str, Mapping[int, Layout]] = MappingProxyType(
    {
        "ncclCommInitRank": _INIT,
        "ncclCommInitRankConfig": _INIT,
        "ncclCommInitRankScalable": _INIT,
        "ncclCommSplit": {
            20: _layout("0:i4 rank 4:i4 nranks 8:i4 device 12:i4 color 16:i4 key"),
            40: _layout("0:u8 comm 8:u8 parent 16:i4 nranks 20:i4 rank 24:i4 device 28:i4 color 32:i4 key"),
        },
        "ncclCommShrink": {24: _layout("0:u8 parent 8:i4 nranks 12:i4 rank 16:i4 device")},
        "ncclCommGrow": {
            28: _layout("0:u8 comm 8:u8 parent 16:i4 nranks 20:i4 rank 24:i4 device"),
            32: _layout("0:u8 comm 8:u8 parent 16:i4 nranks 20:i4 rank 24:i4 device"),
        },
        "ncclAllGather": _SIZE,
        "ncclAlltoAll": {16: _SIZE[16]},
        "ncclAllReduce": _REDUCED,
        "ncclReduceScatter": _REDUCED,
        "ncclBroadcast": _ROOTED,
        "ncclBcast": _ROOTED,
        "ncclGather": {24: _ROOTED[24]},
        "ncclScatter": {24: _ROOTED[24]},
        "ncclReduce": {
            16: _layout("0:u8 bytes 8:i4 arg 12:i4 redop"),
            24: _layout("0:u8 comm 8:u8 bytes 16:i4 arg 20:i4 redop"),
        },
        "ncclSend": _ROOTED,
        "ncclRecv": _ROOTED,
        "ncclPutSignal": {24: _layout("0:u8 comm 8:u8 bytes 16:i4 arg")},
    }
)
"""Per function and size in bytes, the fields."""

_LABELS = MappingProxyType(
    {
        "ncclcommunicatorid": "comm",
        "commhash": "comm",
        "parentncclcommunicatorid": "parent",
        "messagesizebytes": "bytes",
        "messagesize": "bytes",
        "bytes": "bytes",
        "reductionoperation": "redop",
        "root": "arg",
        "peerrank": "arg",
        "peer": "arg",
        "noofranks": "nranks",
        "nranks": "nranks",
        "commrank": "rank",
        "rank": "rank",
        "cudadevice": "device",
        "color": "color",
        "key": "key",
        "count": "count",
        "seqnumber": "seq",
        "datatype": "dtype",
    }
)
"""Labels of fields, without blanks and signs, as schemas, JSON texts and dynamic tables write them."""

_OPERATIONS = MappingProxyType({"sum": 0, "product": 1, "prod": 1, "max": 2, "min": 3, "avg": 4})
_SIGNS = re.compile(r"[^a-z0-9]+")
_HASHES = frozenset({"comm", "parent"})


def field_of(label: str) -> str | None:
    """The field that a label names; null for labels that do not matter."""
    return _LABELS.get(_SIGNS.sub("", label.lower()))


class Payloads:
    """The payloads of the ranges of one block.

    Attributes:
        columns: per entry of `FIELDS`, int64, `NULL` where nothing is said.
        dtype: element type per range, where a payload names one.
    """

    def __init__(self, rows: int) -> None:
        self.columns: dict[str, Ints] = {name: np.full(rows, NULL, np.int64) for name in FIELDS}
        self.dtype: list[str | None] = [None] * rows

    def from_binary(self, names: Sequence[str], data: Sequence[Any], schemas: Mapping[tuple[int, int], Layout]) -> int:
        """Read payloads as ``binaryData`` keeps them: bytes, or their hexadecimal digits.

        Args:
            names: the function of each range.
            data: per range, the value of the column.
            schemas: the file's own layouts by schema number and size, for functions that `LAYOUTS` lacks.

        Returns:
            How many values hold no payload of a known form.
        """
        alike: dict[tuple[str, int], tuple[list[int], list[bytes]]] = {}
        unknown = 0
        for row, value in enumerate(data):
            if value is None:
                continue
            raw = _bytes(value)
            if raw is None:
                unknown += 1
                continue
            rows, pieces = alike.setdefault((names[row], len(raw)), ([], []))
            rows.append(row)
            pieces.append(raw)
        for (name, size), (rows, pieces) in alike.items():
            if not self._take_alike(name, size, rows, pieces):
                unknown += sum(
                    not self._take_one(name, row, raw, schemas) for row, raw in zip(rows, pieces, strict=True)
                )
        return unknown

    def _take_alike(self, name: str, size: int, rows: Sequence[int], pieces: Sequence[bytes]) -> bool:
        """Values of one length at once, if each is a single payload of NCCL behind its header; else nothing."""
        layout = LAYOUTS.get(name, {}).get(size - _HEADER)
        if layout is None:
            return False
        block = np.frombuffer(b"".join(pieces), np.uint8).reshape(-1, size)
        header = np.ascontiguousarray(block[:, :_HEADER]).view("<u8")
        sound = (header[:, 2] == size - _HEADER) & (header[:, 3] == _HEADER)
        sound &= (header[:, 1] >= _SCHEMA_BASE) & (header[:, 1] < _SCHEMA_BASE + _SCHEMAS)
        if not sound.all():
            return False
        self._take(np.array(rows), layout, block[:, _HEADER:])
        return True

    def _take_one(self, name: str, row: int, raw: bytes, schemas: Mapping[tuple[int, int], Layout]) -> bool:
        """One value of any form; whether it holds a payload that is known."""
        piece, schema = _piece(raw, name, schemas)
        if piece is None:
            return False
        layout = LAYOUTS[name][len(piece)] if schema is None else schemas[schema, len(piece)]
        self._take(np.array([row]), layout, np.frombuffer(piece, np.uint8).reshape(1, -1))
        return True

    def _take(self, rows: Ints, layout: Layout, data: npt.NDArray[np.uint8]) -> None:
        for name, offset, kind in layout:
            width = np.dtype(kind).itemsize
            values = np.ascontiguousarray(data[:, offset : offset + width]).view(kind).ravel()
            self.columns[name][rows] = values.view(np.int64) if kind == "<u8" else values.astype(np.int64)

    def from_json(self, texts: Sequence[Any]) -> int:
        """Read payloads as ``jsonText`` keeps them: an object of labels; returns how many cannot be read."""
        unknown = 0
        for row, text in enumerate(texts):
            if text is None:
                continue
            try:
                said = msgspec.json.decode(text)
            except (msgspec.DecodeError, UnicodeError, TypeError, RecursionError):  # no text at all, in a SQLite cell
                said = None
            if not self.say(row, said):
                unknown += 1
        return unknown

    def say(self, row: int, said: Any) -> bool:
        """Take the labelled values of one range; returns whether there was any that matters."""
        found = False
        for label, value in _labelled(said):
            field = field_of(label)
            if field is None or (label.lower() == "rank" and self.columns["rank"][row] != NULL):
                continue
            if field == "dtype":
                self.dtype[row] = str(value)
                found = True
                continue
            number = _number(field, value)
            if number != NULL:
                self.columns[field][row] = number
                found = True
        return found


def _labelled(said: Any, depth: int = 0) -> list[tuple[str, Any]]:
    """Labels and values of an object, of those inside it, and of lists of objects; ``commRank`` before ``rank``."""
    if depth > _LONGEST_CHAIN:
        return []
    if isinstance(said, list):
        return [pair for item in said[:_LONGEST_CHAIN] for pair in _labelled(item, depth + 1)]
    if not isinstance(said, dict):
        return []
    pairs: list[tuple[str, Any]] = []
    for label, value in said.items():
        pairs += _labelled(value, depth + 1) if isinstance(value, dict | list) else [(str(label), value)]
    return sorted(pairs, key=lambda pair: pair[0].lower() == "rank")


def _number(field: str, value: Any) -> int:
    """A number as it is written: an integer, digits, digits with commas, hexadecimal; or the name of an operation."""
    if isinstance(value, float):
        return NULL if field in _HASHES or not value.is_integer() else as_int(value)
    if isinstance(value, str):
        text = value.strip().lower()
        if field == "redop" and text.removeprefix("nccl") in _OPERATIONS:
            return _OPERATIONS[text.removeprefix("nccl")]
        if text.startswith("0x"):
            try:
                return as_int(int(text, 16))
            except ValueError:
                return NULL
        text = re.sub(r"[\s,._']", "", text)
        return as_int(text) if re.fullmatch(r"-?\d{1,20}", text) else NULL
    return as_int(value)


def _bytes(value: Any) -> bytes | None:
    """A payload's bytes; hexadecimal digits, in text or in bytes, are read."""
    if isinstance(value, str):
        digits = value.strip().removeprefix("0x").removeprefix("\\x")
        try:
            return bytes.fromhex(digits) or None
        except ValueError:
            return None
    if not isinstance(value, bytes) or not value:
        return None
    if value[0] in _DIGITS and len(value) % 2 == 0 and re.fullmatch(rb"(?:0x)?[0-9a-fA-F]+", value):
        return _bytes(value.decode("ascii"))
    return value


def _piece(raw: bytes, name: str, schemas: Mapping[tuple[int, int], Layout]) -> tuple[bytes | None, int | None]:
    """The payload of a range that describes it, without the header in front; and its schema, where that is needed.

    The header is four 64-bit numbers: domain, schema, size, and where the payload begins. Several payloads follow one
    another. Writers without a header are known by the size alone.
    """
    known = LAYOUTS.get(name, {})
    begin = 0
    for _ in range(_LONGEST_CHAIN):
        if len(raw) - begin < _HEADER:
            break
        _, schema, size, offset = struct.unpack_from("<QQQQ", raw, begin)
        if offset < _HEADER or begin + offset + size > len(raw) or not size:
            break
        piece = raw[begin + offset : begin + offset + size]
        if size in known and _SCHEMA_BASE <= schema < _SCHEMA_BASE + _SCHEMAS:
            return piece, None
        if (schema, size) in schemas:
            return piece, schema
        begin += offset + size
    return (raw, None) if begin == 0 and len(raw) in known else (None, None)
