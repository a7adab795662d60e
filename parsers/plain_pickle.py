"""Pickles of plain data, read by a machine of our own that knows no names, calls nothing and imports nothing.

`pickle.loads` runs what the file says. PyTorch's C++ pickler (torch/csrc/jit/serialization/pickler.cpp) writes a Flight
Recorder dump with a handful of instructions, none of which refers to code; `pickle.dumps` of the loaded dump adds the
framing and memo instructions of protocols 3 to 5. Only these exist here. Everything else is refused, so a file that
holds a class, a function or a persistent id is never more than refused.
"""

from __future__ import annotations

import pickle
import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from parsers.errors import InputError

Plain = None | bool | int | float | str | bytes | list[Any] | dict[Any, Any] | tuple[Any, ...]

_MARK = object()
_LONGEST_INT_BYTES = 16
_MISFORMED = "is a damaged pickle"


@dataclass(frozen=True)
class PickleLimits:
    """How much a pickle may ask for; a dump of 20,000 entries with stacks stays far below.

    Attributes:
        max_steps: instructions.
        max_marks: open containers at a time.
    """

    max_steps: int = 200_000_000
    max_marks: int = 100


def load(data: bytes, path: str, limits: PickleLimits | None = None) -> Plain:
    """The value that a pickle of plain data describes.

    Args:
        data: the pickle, protocol 0 to 5 without out-of-band buffers.
        path: for messages.
        limits: bounds on its work.

    Raises:
        InputError: it holds anything but dicts, lists, tuples, text, bytes, numbers, booleans and None; it is damaged;
            or it exceeds the limits.
    """
    machine = _Machine(data, path, limits or PickleLimits())
    try:
        return machine.run()
    except (IndexError, KeyError, TypeError, ValueError) as error:
        hint = "the process died while it wrote; take another rank's dump"
        raise InputError(_MISFORMED, path=path, place=f"byte {machine.at}", hint=hint) from error


class _Machine:
    """The stack, the memo and the reading position."""

    def __init__(self, data: bytes, path: str, limits: PickleLimits) -> None:
        self.data = data
        self.path = path
        self.limits = limits
        self.at = 0
        self.stack: list[Any] = []
        self.marks: list[int] = []
        self.memo: dict[int, Any] = {}

    def run(self) -> Plain:
        stop, known = pickle.STOP[0], _INSTRUCTIONS
        data = self.data
        for _ in range(self.limits.max_steps):
            code = data[self.at]
            self.at += 1
            if code == stop:
                return self.stack.pop()  # type: ignore[no-any-return]
            step = known.get(code)
            if step is None:
                self.refuse(code)
            else:
                step(self)
        raise InputError(f"takes more than {self.limits.max_steps} steps to read", path=self.path)

    def refuse(self, code: int) -> None:
        """Stop at an instruction that plain data never needs."""
        name = _NAMES.get(code)
        if name is None:
            raise ValueError(code)
        raise InputError(
            f"refused: the pickle contains the instruction {name}, which plain data never needs and an attack does",
            path=self.path,
            place=f"byte {self.at - 1}",
            hint="nothing of it was executed; a Flight Recorder dump holds only dicts, lists, text and numbers",
        )

    def take(self, count: int) -> bytes:
        """The next bytes."""
        if count < 0 or self.at + count > len(self.data):
            raise IndexError(count)
        piece = self.data[self.at : self.at + count]
        self.at += count
        return piece

    def byte(self) -> int:
        """The next byte."""
        value = self.data[self.at]
        self.at += 1
        return value

    def number(self, size: int, *, signed: bool = False) -> int:
        """The next bytes as an integer."""
        return int.from_bytes(self.take(size), "little", signed=signed)

    def line(self) -> bytes:
        """The bytes up to the end of the line."""
        end = self.data.index(b"\n", self.at)
        piece = self.data[self.at : end]
        self.at = end + 1
        return piece

    def mark(self) -> None:
        """Open a container."""
        if len(self.marks) >= self.limits.max_marks:
            raise ValueError("nested too deeply")
        self.marks.append(len(self.stack))

    def since_mark(self) -> list[Any]:
        """What was pushed since the last mark, taken off the stack."""
        start = self.marks.pop()
        items = self.stack[start:]
        del self.stack[start:]
        return items

    def last(self, count: int) -> tuple[Any, ...]:
        """The last values, taken off the stack."""
        if len(self.stack) < count:
            raise IndexError(count)
        items = tuple(self.stack[-count:])
        del self.stack[-count:]
        return items

    def extend(self, items: list[Any]) -> None:
        """Append to the list on top."""
        top = self.stack[-1]
        if not isinstance(top, list):
            raise TypeError(type(top))
        top.extend(items)

    def update(self, items: list[Any]) -> None:
        """Put pairs into the dict on top."""
        top = self.stack[-1]
        if not isinstance(top, dict):
            raise TypeError(type(top))
        top.update(_pairs(items))


def _long(data: bytes) -> int:
    if len(data) > _LONGEST_INT_BYTES:
        raise ValueError("an integer of no sensible size")
    return int.from_bytes(data, "little", signed=True)


def _text_number(m: _Machine) -> bool | int:
    raw = m.line()
    if raw in {b"00", b"01"}:
        return raw == b"01"
    return int(raw.removesuffix(b"L"))


def _text(data: bytes) -> str:
    return data.decode("utf-8", "replace")  # halves of surrogate pairs, which pickle lets pass, are no text


def _push(make: Callable[[_Machine], Any]) -> Callable[[_Machine], None]:
    return lambda m: m.stack.append(make(m))


def _store(index: Callable[[_Machine], int]) -> Callable[[_Machine], None]:
    def step(m: _Machine) -> None:
        m.memo[index(m)] = m.stack[-1]

    return step


def _fetch(index: Callable[[_Machine], int]) -> Callable[[_Machine], None]:
    return lambda m: m.stack.append(m.memo[index(m)])


def _nothing(_: _Machine) -> None:
    """An instruction without effect here."""


def _pairs(items: list[Any]) -> dict[str | int, Any]:
    """Keys and values in turn. Keys are text or numbers: a key of nested tuples may take for ever to hash."""
    keys = items[::2]
    if not all(isinstance(key, str | int) for key in keys):
        raise TypeError("a key that is neither text nor a number")
    return dict(zip(keys, items[1::2], strict=True))


def _pop(m: _Machine) -> None:
    if m.marks and m.marks[-1] == len(m.stack):
        m.marks.pop()
    else:
        m.stack.pop()


_STEPS: dict[bytes, Callable[[_Machine], None]] = {
    pickle.PROTO: lambda m: _nothing(m) if m.byte() <= 5 else m.refuse(pickle.PROTO[0]),
    pickle.FRAME: lambda m: _nothing(m) if m.number(8) <= len(m.data) else m.refuse(pickle.FRAME[0]),
    pickle.MARK: _Machine.mark,
    pickle.POP: _pop,
    pickle.POP_MARK: lambda m: m.since_mark().clear(),
    pickle.NONE: _push(lambda m: None),  # noqa: ARG005 (every step takes the machine)
    pickle.NEWTRUE: _push(lambda m: True),  # noqa: ARG005
    pickle.NEWFALSE: _push(lambda m: False),  # noqa: ARG005
    pickle.INT: _push(_text_number),
    pickle.LONG: _push(_text_number),
    pickle.BININT: _push(lambda m: m.number(4, signed=True)),
    pickle.BININT1: _push(lambda m: m.byte()),
    pickle.BININT2: _push(lambda m: m.number(2)),
    pickle.LONG1: _push(lambda m: _long(m.take(m.byte()))),
    pickle.LONG4: _push(lambda m: _long(m.take(m.number(4, signed=True)))),
    pickle.FLOAT: _push(lambda m: float(m.line())),
    pickle.BINFLOAT: _push(lambda m: struct.unpack(">d", m.take(8))[0]),
    pickle.BINUNICODE: _push(lambda m: _text(m.take(m.number(4)))),
    pickle.SHORT_BINUNICODE: _push(lambda m: _text(m.take(m.byte()))),
    pickle.BINUNICODE8: _push(lambda m: _text(m.take(m.number(8)))),
    pickle.UNICODE: _push(lambda m: m.line().decode("raw-unicode-escape")),
    pickle.BINBYTES: _push(lambda m: m.take(m.number(4))),
    pickle.SHORT_BINBYTES: _push(lambda m: m.take(m.byte())),
    pickle.EMPTY_LIST: _push(lambda m: []),  # noqa: ARG005
    pickle.EMPTY_TUPLE: _push(lambda m: ()),  # noqa: ARG005
    pickle.EMPTY_DICT: _push(lambda m: {}),  # noqa: ARG005
    pickle.LIST: _push(_Machine.since_mark),
    pickle.TUPLE: _push(lambda m: tuple(m.since_mark())),
    pickle.TUPLE1: _push(lambda m: m.last(1)),
    pickle.TUPLE2: _push(lambda m: m.last(2)),
    pickle.TUPLE3: _push(lambda m: m.last(3)),
    pickle.DICT: _push(lambda m: _pairs(m.since_mark())),
    pickle.APPEND: lambda m: m.extend(list(m.last(1))),
    pickle.APPENDS: lambda m: m.extend(m.since_mark()),
    pickle.SETITEM: lambda m: m.update(list(m.last(2))),
    pickle.SETITEMS: lambda m: m.update(m.since_mark()),
    pickle.PUT: _store(lambda m: int(m.line())),
    pickle.BINPUT: _store(lambda m: m.byte()),
    pickle.LONG_BINPUT: _store(lambda m: m.number(4)),
    pickle.MEMOIZE: _store(lambda m: len(m.memo)),
    pickle.GET: _fetch(lambda m: int(m.line())),
    pickle.BINGET: _fetch(lambda m: m.byte()),
    pickle.LONG_BINGET: _fetch(lambda m: m.number(4)),
}
_INSTRUCTIONS = {code[0]: step for code, step in _STEPS.items()}
_NAMES = {
    value[0]: name
    for name, value in vars(pickle).items()
    if name.isupper() and isinstance(value, bytes) and len(value) == 1
}
