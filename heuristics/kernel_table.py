"""The table of kernel and operator names (`kernels.toml`), and how a name is looked up in it."""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from importlib import resources
from pathlib import Path
from types import MappingProxyType
from typing import Any

from heuristics.dtypes import normalise
from parsers.errors import InputError

PRIMITIVES = (
    "all_reduce",
    "all_gather",
    "reduce_scatter",
    "all_to_all",
    "send_recv",
    "broadcast",
    "reduce",
    "gather",
    "scatter",
    "barrier",
)
"""The primitives of the result document."""

KERNEL_ROLES = ("payload", "sync", "pack", "none")
OPERATOR_ROLES = ("payload", "batch", "none")
LAYOUTS = ("in_place", "out_in", "input", "inputs", "output_input_lists", "outputs", "matmul_scatter")
_LONGEST_NAME = 1024
_PREFIX = re.compile(r"^[A-Za-z]+:(?!:)")


@dataclass(frozen=True)
class KernelRule:
    """One row on kernel names; the fields are explained at the top of ``kernels.toml``."""

    match: re.Pattern[str]
    library: str
    primitive: str | None
    role: str
    source: str
    ranks: int | None = None
    contains: tuple[str, ...] = ()


@dataclass(frozen=True)
class KernelClass:
    """What a kernel's name says; ``primitive``, ``dtype`` and ``ranks`` are null where it does not tell."""

    library: str
    primitive: str | None
    role: str
    dtype: str | None = None
    ranks: int | None = None


@dataclass(frozen=True)
class Operator:
    """One row on operator names; positions are those of ``Concrete Inputs``, null where there is no such argument."""

    primitive: str | None
    role: str
    direction: str | None = None
    tensors: str | None = None
    root: int | None = None
    peer: int | None = None
    size: int | None = None
    out_splits: int | None = None
    in_splits: int | None = None


@dataclass(frozen=True)
class KernelTable:
    """Kernel rules in the order in which they are tried, operators by exact name, and the words of kernel names."""

    kernels: tuple[KernelRule, ...]
    operators: Mapping[str, Operator] = field(default_factory=lambda: MappingProxyType({}))
    words: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))

    @classmethod
    def default(cls) -> KernelTable:
        """The table that comes with the package."""
        return _default()

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> KernelTable:
        """The default table, extended by a user's file whose rows come first.

        Args:
            path: a TOML file with ``[[kernel]]`` and ``[[operator]]`` rows, as ``kernels.toml`` explains them;
                ``library`` and ``source`` may be left out.

        Raises:
            InputError: the file cannot be read, is not TOML, or holds a row that makes no sense.
        """
        name = os.fspath(path)
        try:
            text = Path(path).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "not UTF-8 text"
            raise InputError(f"cannot read the kernel table ({reason})", path=name) from error
        return _parse(text, name).over(cls.default())

    def over(self, other: KernelTable) -> KernelTable:
        """This table's rows before those of another one."""
        return replace(
            self,
            kernels=self.kernels + other.kernels,
            operators=MappingProxyType({**other.operators, **self.operators}),
            words=MappingProxyType({**other.words, **self.words}),
        )

    def kernel(self, name: str) -> KernelClass | None:
        """What a kernel's name says about communication; null where no row matches or the row takes it out."""
        name = name[:_LONGEST_NAME]
        lower = name.lower()
        for rule in self.kernels:
            if rule.contains and not any(text in lower for text in rule.contains):
                continue
            found = rule.match.search(name)
            if found is not None:
                return None if rule.role == "none" else self._class(rule, found.groupdict())
        return None

    def kernels_of(self, names: Iterable[str]) -> list[KernelClass | None]:
        """`kernel` for every name; give each distinct name once."""
        return [self.kernel(name) for name in names]

    def operator(self, name: str) -> Operator | None:
        """The row of an operator, of a `Collective name`, of an annotation or of an NVTX range; null when unknown.

        ``nccl:send 0->1`` and ``gloo:send`` are looked up as ``send``.
        """
        found = self.operators.get(name)
        if found is not None:
            return found
        word = _PREFIX.sub("", name).split(" ", 1)[0]
        return self.operators.get(word) or self.operators.get(word.lower())

    def _class(self, rule: KernelRule, groups: Mapping[str, str | None]) -> KernelClass:
        word, ranks = groups.get("word"), groups.get("ranks")
        return KernelClass(
            library=rule.library,
            primitive=self.words.get(word.lower()) if word else rule.primitive,
            role=rule.role,
            dtype=normalise(groups.get("dtype")),
            ranks=int(ranks) if ranks else rule.ranks,
        )


@lru_cache(maxsize=1)
def _default() -> KernelTable:
    text = resources.files("heuristics").joinpath("kernels.toml").read_text(encoding="utf-8")
    return _parse(text, "kernels.toml")


def _parse(text: str, path: str) -> KernelTable:
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise InputError(f"not TOML: {error}", path=path) from error
    unknown = set(document) - {"schema_version", "words", "kernel", "operator"}
    if unknown:
        raise InputError(f"unknown key {min(unknown)!r}", path=path, hint="known are words, kernel and operator")
    words = document.get("words", {})
    for word, primitive in words.items():
        _one_of(primitive, PRIMITIVES, f"primitive of the word {word!r}", path, "words")
    kernels = tuple(_kernel(row, i, path) for i, row in enumerate(_rows(document, "kernel", path)))
    operators: dict[str, Operator] = {}
    for i, row in enumerate(_rows(document, "operator", path)):
        operator = _operator(row, i, path)
        operators.update(dict.fromkeys(row["names"], operator))
    return KernelTable(kernels, MappingProxyType(operators), MappingProxyType(dict(words)))


def _rows(document: Mapping[str, Any], key: str, path: str) -> list[dict[str, Any]]:
    rows = document.get(key, [])
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise InputError(f"{key} must be a list of tables", path=path, hint=f"write [[{key}]]")
    return rows


def _one_of(value: object, allowed: Sequence[str], what: str, path: str, place: str) -> str:
    if value not in allowed:
        raise InputError(f"{what} is {value!r}", path=path, place=place, hint=f"known are {', '.join(allowed)}")
    return str(value)


def _known_keys(row: Mapping[str, Any], allowed: set[str], path: str, place: str) -> None:
    unknown = set(row) - allowed
    if unknown:
        raise InputError(f"unknown key {min(unknown)!r}", path=path, place=place)


def _kernel(row: Mapping[str, Any], index: int, path: str) -> KernelRule:
    place = f"[[kernel]] row {index + 1}"
    _known_keys(row, {"match", "contains", "library", "primitive", "role", "ranks", "source"}, path, place)
    if not isinstance(row.get("match"), str) or not row["match"]:
        raise InputError("match is missing", path=path, place=place, hint="give a regular expression")
    try:
        pattern = re.compile(row["match"])
    except re.error as error:
        raise InputError(f"match is not a regular expression ({error})", path=path, place=place) from error
    primitive = row.get("primitive")
    if primitive is not None:
        _one_of(primitive, PRIMITIVES, "primitive", path, place)
    role = _one_of(row.get("role", "payload"), KERNEL_ROLES, "role", path, place)
    ranks = row.get("ranks")
    if ranks is not None and (not isinstance(ranks, int) or ranks < 1):
        raise InputError("ranks must be a positive number", path=path, place=place)
    contains = row.get("contains", [])
    if not isinstance(contains, list) or not all(isinstance(text, str) for text in contains):
        raise InputError("contains must be a list of texts", path=path, place=place)
    library, source = str(row.get("library", "user")), str(row.get("source", path))
    return KernelRule(pattern, library, primitive, role, source, ranks, tuple(text.lower() for text in contains))


def _operator(row: Mapping[str, Any], index: int, path: str) -> Operator:
    place = f"[[operator]] row {index + 1}"
    positions = ("root", "peer", "size", "out_splits", "in_splits")
    _known_keys(row, {"names", "primitive", "role", "direction", "tensors", "source", *positions}, path, place)
    names = row.get("names")
    if not isinstance(names, list) or not names or not all(isinstance(name, str) for name in names):
        raise InputError("names must be a list of texts", path=path, place=place)
    role = _one_of(row.get("role", "payload"), OPERATOR_ROLES, "role", path, place)
    primitive = row.get("primitive")
    if role == "payload":
        _one_of(primitive, PRIMITIVES, "primitive", path, place)
    for key, allowed in (("direction", ("send", "recv")), ("tensors", LAYOUTS)):
        if row.get(key) is not None:
            _one_of(row[key], allowed, key, path, place)
    for key in positions:
        if row.get(key) is not None and not isinstance(row[key], int):
            raise InputError(f"{key} must be a position", path=path, place=place)
    return Operator(
        primitive, role, row.get("direction"), row.get("tensors"), *(row.get(position) for position in positions)
    )
