"""What is done to a sound file. All of it follows from a random generator, so that any mutant can be made again."""

from __future__ import annotations

import json
import pickle
import re
import sqlite3
import tempfile
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

from benchmarks.fuzz.seeds import Seed
from benchmarks.fuzz.table_mutations import columns
from benchmarks.fuzz.values import STRANGE_NUMBERS, STRANGE_TEXT

_TOKENS = (
    *(b"NaN", b"Infinity", b"-nan", b"inf", b"null", b"true", b"{}", b"[]", b'""', b"}", b"]", b'"', b"\\", b",", b":"),
    *(b"9" * 30, b"1e999", b"-1", b"\x00", b"\xff\xfe", b"\xef\xbb\xbf", b"\r\n", b"\\ud800", b'"traceEvents": ['),
    *(b"9" * 5000, b"1e" + b"9" * 5000, b"0x" + b"f" * 5000, "²".encode()),
    *(b"{" * 64, b"[" * 3000, b'{"a":' * 3000, b" " * 4096, b"\n" * 500, b'"' * 33, b"\\" * 65),
)
_STRANGE_OTHERS: tuple[Any, ...] = (
    *(None, True, False, [], {}, [[]], [None] * 50, {"a": {"b": [1]}}, [0, 1, -1, 2**40], ["x"] * 3),
)
_HOSTILE_KEYS = ("", "ts", "dur", "args", "name", "ranks", "entries", "traceEvents", "\x1b[31m")


def mutate(seed: Seed, other: Seed, random: Random) -> tuple[Seed, str]:
    """A damaged copy, and what was done to it.

    Args:
        seed: sound.
        other: another sound file, for splicing.
        random: decides everything.
    """
    number = random.randrange(len(seed.files))
    name, data = seed.files[number]
    foreign = other.files[random.randrange(len(other.files))][1]
    for by_meaning in _by_meaning(seed, data):
        if random.random() < 0.45:
            made = by_meaning(data, random)
            if made is not None:
                data = made
                if random.random() < 0.8:
                    return _with(seed, number, name, data), by_meaning.__name__
    done = []
    for _ in range(random.choice((1, 1, 1, 2, 3, 8))):
        step = random.choice(_BYTES)
        data = step(data, random) if step is not _splice else _splice(data, random, foreign)
        done.append(step.__name__.removeprefix("_"))
    return _with(seed, number, name, data), "+".join(sorted(set(done)))


def _with(seed: Seed, number: int, name: str, data: bytes) -> Seed:
    files = (*seed.files[:number], (name, data), *seed.files[number + 1 :])
    return Seed(seed.format, seed.label, seed.name, files)


# -- bytes


def _flip(data: bytes, random: Random) -> bytes:
    out = bytearray(data)
    for _ in range(random.choice((1, 1, 4, 32)) if out else 0):
        out[random.randrange(len(out))] = random.randrange(256)
    return bytes(out)


def _bit(data: bytes, random: Random) -> bytes:
    out = bytearray(data)
    if out:
        out[random.randrange(len(out))] ^= 1 << random.randrange(8)
    return bytes(out)


def _delete(data: bytes, random: Random) -> bytes:
    at = random.randrange(len(data) + 1)
    return data[:at] + data[at + random.choice((1, 2, 16, 300, 5000)) :]


def _cut(data: bytes, random: Random) -> bytes:
    return data[: random.randrange(len(data) + 1)]


def _behead(data: bytes, random: Random) -> bytes:
    return data[random.randrange(min(len(data), 2000) + 1) :]


def _insert(data: bytes, random: Random) -> bytes:
    at = random.randrange(len(data) + 1)
    return data[:at] + random.choice(_TOKENS) + data[at:]


def _overwrite(data: bytes, random: Random) -> bytes:
    at, token = random.randrange(len(data) + 1), random.choice(_TOKENS)
    return data[:at] + token + data[at + len(token) :]


def _number(data: bytes, random: Random) -> bytes:
    """Another number in the place of one."""
    start = random.randrange(len(data) + 1)
    digits = re.compile(rb"\d").search(data, start)
    if digits is None:
        return data
    at = end = digits.start()
    while data[end : end + 1].isdigit():
        end += 1
    return data[:at] + str(random.choice(STRANGE_NUMBERS)).encode() + data[end:]


def _twice(data: bytes, random: Random) -> bytes:
    at = random.randrange(len(data) + 1)
    piece = data[at : at + random.choice((1, 30, 400, 4000))]
    return data[:at] + piece * random.choice((2, 2, 3, 20)) + data[at:]


def _move(data: bytes, random: Random) -> bytes:
    at = random.randrange(len(data) + 1)
    end = at + random.choice((1, 30, 400, 4000))
    rest = data[:at] + data[end:]
    to = random.randrange(len(rest) + 1)
    return rest[:to] + data[at:end] + rest[to:]


def _splice(data: bytes, random: Random, foreign: bytes = b"") -> bytes:
    """Two writers in one file."""
    at, start = random.randrange(len(data) + 1), random.randrange(len(foreign) + 1)
    piece = foreign[start : start + random.choice((50, 1000, 20_000))]
    return data[:at] + piece + data[at + random.choice((0, len(piece))) :]


def _lines(data: bytes, random: Random) -> bytes:
    """Lines in another order, some twice."""
    lines = data.split(b"\n")
    at = random.randrange(len(lines))
    some = lines[at : at + 8]
    random.shuffle(some)
    return b"\n".join([*lines[:at], *some, *some[:2], *lines[at + 8 :]])


_BYTES: tuple[Callable[..., bytes], ...] = (
    *(_flip, _bit, _delete, _cut, _behead, _insert, _overwrite, _number, _twice, _move, _splice, _lines),
)


# -- meaning


def _by_meaning(seed: Seed, data: bytes) -> list[Callable[[bytes, Random], bytes | None]]:
    if seed.format == "nsys" and data.startswith(b"SQLite"):
        return [cells]
    if data[:4] == b"PAR1" or data[:6] == b"ARROW1":
        return [columns]
    if data[:1] == b"\x80":
        return [pickled]
    if data[:1] in (b"{", b"["):
        return [values]
    return []


def values(data: bytes, random: Random) -> bytes | None:
    """Strange values in a JSON document, or in one of its lines."""
    try:
        document = json.loads(data)
    except (ValueError, RecursionError):
        lines = data.split(b"\n")
        at = random.randrange(len(lines))
        try:
            document = json.loads(lines[at])
        except (ValueError, RecursionError):
            return None
        return b"\n".join([*lines[:at], _json(_changed(document, random)), *lines[at + 1 :]])
    return _json(_changed(document, random))


def pickled(data: bytes, random: Random) -> bytes | None:
    """Strange values in a pickle of ours."""
    try:
        document = pickle.loads(data)  # a seed, never a mutant
        return pickle.dumps(_changed(document, random), random.choice((2, 2, 3, 4, 5)))
    except Exception:
        return None


def _json(value: Any) -> bytes:
    return json.dumps(value).encode("utf-8", "surrogatepass")


def cells(data: bytes, random: Random) -> bytes | None:
    """Strange values in a database."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "made.sqlite"
        path.write_bytes(data)
        connection = sqlite3.connect(path)
        try:
            names = [row[0] for row in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
            for _ in range(random.choice((1, 1, 3, 10))):
                _change_cells(connection, random.choice(names), random)
            connection.commit()
        except (sqlite3.Error, UnicodeEncodeError):
            return None
        finally:
            connection.close()
        return path.read_bytes()


def _change_cells(connection: sqlite3.Connection, table: str, random: Random) -> None:
    columns = [row[1] for row in connection.execute(f'PRAGMA table_info("{table}")')]
    if not columns:  # dropped before
        return
    column = random.choice(columns)
    kind = random.randrange(8)
    if kind == 0:
        connection.execute(f'DROP TABLE "{table}"')
    elif kind == 1:
        connection.execute(f'DELETE FROM "{table}" WHERE rowid % 2 = ?', (random.randrange(2),))
    elif kind == 2:
        connection.execute(f'ALTER TABLE "{table}" RENAME COLUMN "{column}" TO "x{random.randrange(99)}"')
    elif kind == 3:
        connection.execute(f'INSERT INTO "{table}" SELECT * FROM "{table}"')
    else:
        value = _strange(random)
        if isinstance(value, int) and abs(value) >= 2**63:
            value = float(value)
        if not isinstance(value, int | float | str | None):
            value = b"\x00\xff" * random.randrange(40)
        where = random.choice(("1", "rowid % 3 = 0", "rowid = 1"))
        connection.execute(f'UPDATE "{table}" SET "{column}" = ? WHERE {where}', (value,))


def _changed(document: Any, random: Random) -> Any:
    """One to ten leaves, keys or branches of a document changed."""
    for _ in range(random.choice((1, 1, 2, 4, 10))):
        document = _change(document, random)
    return document


def _change(value: Any, random: Random) -> Any:
    if isinstance(value, dict) and value and random.random() < 0.97:
        key = random.choice(list(value))
        if "traceEvents" in value and random.random() < 0.8:
            key = "traceEvents"
        kind = random.randrange(40)
        if kind == 0:
            return {k: v for k, v in value.items() if k != key}
        if kind == 1:
            return {**value, random.choice(_HOSTILE_KEYS): _strange(random)}
        return {**value, key: _change(value[key], random)}
    if isinstance(value, list | tuple) and value and random.random() < 0.97:
        at = random.randrange(len(value))
        kind = random.randrange(40)
        items = list(value)
        if kind == 0:
            del items[at]
        elif kind == 1:
            items += [items[at]] * random.choice((1, 3, 50))
        elif kind == 2:
            random.shuffle(items)
        else:
            items[at] = _change(items[at], random)
        return items if isinstance(value, list) else tuple(items)
    return _strange(random)


def _strange(random: Random) -> Any:
    kind = random.randrange(12)
    if kind < 5:
        return random.choice(STRANGE_NUMBERS)
    if kind < 9:
        return random.choice(STRANGE_TEXT)
    return random.choice(_STRANGE_OTHERS)
