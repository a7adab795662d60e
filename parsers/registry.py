"""Which format a file has, told from its content, and the one way to read any of them."""

from __future__ import annotations

import dataclasses
import importlib
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, cast

from parsers.errors import InputError
from parsers.known_formats import KNOWN, KnownFormat
from parsers.source import Limits, Source, open_source
from parsers.tables import RankTrace

MAX_WORLD = 1 << 20
"""Ranks that a job may have: ten times the largest cluster."""

_TAR, _ZIP = b"ustar", b"PK\x03\x04"
"""Archives: at byte 257 of a POSIX or GNU tar (pax(1), Interchange format), and how a zip begins (APPNOTE 4.3.7)."""

_HDF5 = b"\x89HDF\r\n\x1a\n"
"""How ``nsys export --type hdf`` begins, and whatever else is HDF5."""


class Parser(Protocol):
    """What a module must offer to be a format."""

    def sniff(self, head: bytes) -> bool:
        """Whether the first block of a file, decompressed, looks like this format."""

    def read(self, source: Source) -> list[RankTrace]:
        """Read the file; raises `InputError`."""


class PathParser(Parser, Protocol):
    """A parser of a format that is more than one file, or whose files say what they are by more than their head."""

    def takes(self, path: Path) -> bool:
        """Whether a directory or file is known without its content."""

    def read_path(self, path: Path, name: str) -> list[RankTrace]:
        """Read what `takes` knows; raises `InputError`."""

    def belongs(self, path: Path, head: bytes) -> bool:
        """Whether a file that `sniff` knows is really of this format."""


@dataclass(frozen=True)
class Format:
    """A format and the way to its parser, which is imported only when it is asked."""

    known: KnownFormat

    @property
    def name(self) -> str:
        """As in ``inputs[].format`` of the result document."""
        return self.known.name

    @property
    def parser(self) -> Parser:
        """The module that reads it."""
        return cast(Parser, importlib.import_module(self.known.module))

    def sniff(self, head: bytes) -> bool:
        """Whether the first block of a file, decompressed, looks like this format."""
        return self.known.possible(head) and self.parser.sniff(head)

    def takes(self, path: Path) -> bool:
        """Whether a directory or file is of this format, whatever its content looks like."""
        if path.suffix not in self.known.suffixes and not (self.known.directories and path.is_dir()):
            return False
        return cast(PathParser, self.parser).takes(path)

    def belongs(self, path: Path, head: bytes) -> bool:
        """Whether a local file with such a first block is of this format."""
        if not self.sniff(head):
            return False
        return not hasattr(self.parser, "belongs") or cast(PathParser, self.parser).belongs(path, head)


def formats() -> tuple[Format, ...]:
    """All formats, in the order in which they are asked."""
    return tuple(Format(known) for known in KNOWN)


def read(
    path: str | os.PathLike[str], limits: Limits | None = None, tell: Callable[[int], None] | None = None
) -> list[RankTrace]:
    """Read one trace, dump or log.

    Args:
        path: the file, plain or compressed; its content decides the format, not its name (but for reports of nsys,
            which have no published signature). A directory, where that is a format.
        limits: how far a compressed file may grow.
        tell: called again and again while a file is read from its beginning to its end, with how many bytes of it, as
            stored, have been taken.

    Returns:
        One `RankTrace` per rank found in the file, normally one.

    Raises:
        InputError: the file cannot be used at all.
    """
    name = os.fspath(path)
    known = formats()
    if "://" not in name:
        whole = next((item for item in known if item.takes(Path(name))), None)
        if whole is not None:
            return [_plausible(trace) for trace in cast(PathParser, whole.parser).read_path(Path(name), name)]
    with open_source(path, limits) as source:
        source.tell = tell
        chosen = next((item for item in known if item.sniff(source.head)), None)
        if chosen is None:
            chosen = next((item for item in known if _is_text(source.head) and item.name == "kineto"), None)
        if chosen is None:
            raise _unknown(source, [item.name for item in known])
        return [_plausible(trace) for trace in chosen.parser.read(source)]


def _unknown(source: Source, known: list[str]) -> InputError:
    """What to do with a file that no parser knows."""
    head = source.head
    if head.startswith(_HDF5):
        hint = "of a report of Nsight Systems: nsys export --type sqlite --include-blobs=true --include-json=true"
        return InputError("is HDF5, which is not read", path=source.name, hint=hint)
    archive = "tar" if head[257:].startswith(_TAR) else "zip" if head.startswith(_ZIP) else None
    if archive is not None:
        return InputError(f"is a {archive} archive", path=source.name, hint="unpack it and give what is in it")
    said = f"is not a trace in a known format (it starts with {head[:8]!r})"
    return InputError(said, path=source.name, hint=f"known formats: {', '.join(known)}")


def _plausible(trace: RankTrace) -> RankTrace:
    """A rank and a world that no job can have are not known: lists as long as the world would be made of them."""
    who = trace.identity
    rank = who.rank if who.rank is None or 0 <= who.rank < MAX_WORLD else None
    world = who.world_size if who.world_size is None or 0 < who.world_size <= MAX_WORLD else None
    if (rank, world) == (who.rank, who.world_size):
        return trace
    note = f"rank {who.rank} of {who.world_size} is no rank of a job: it is not believed"
    who = dataclasses.replace(who, rank=rank, rank_source=None if rank is None else who.rank_source, world_size=world)
    return dataclasses.replace(
        trace, identity=who, health=dataclasses.replace(trace.health, notes=(*trace.health.notes, note))
    )


def _is_text(head: bytes) -> bool:
    """Whether this may be JSON that only the reader can judge: a header longer than the first block, or damaged."""
    return head.removeprefix(b"\xef\xbb\xbf").lstrip()[:1] in {b"{", b"["}
