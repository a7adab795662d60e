"""Bytes of a trace: plain, gzip, zstandard or xz, from a local path or an object store, read ahead in a thread.

Nothing here knows what the bytes mean. A damaged stream gives every byte that can be had and says so in
`Source.faults`; a stream that grows beyond `Limits` is refused.
"""

from __future__ import annotations

import importlib
import os
import queue
import threading
from collections.abc import Callable, Generator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self

from parsers.decompress import LONGEST_MAGIC, Fault, Stored, decompressor
from parsers.errors import InputError

BLOCK_BYTES = 512 * 1024
"""One read of decompressed data: the best of 256 KiB to 64 MiB (it stays in the second-level cache)."""

_HEAD_BYTES = 64 * 1024
_ALONE_BYTES = 256 * 1024  # compressed files up to this are not worth a thread
_AHEAD_BLOCKS = 4


@dataclass(frozen=True)
class Limits:
    """How far a compressed file may grow.

    Real traces shrink 8 to 30 times, deflate can reach 1032, zstandard and xz far more. The ratio is looked at only
    beyond ``ratio_free_bytes``, so that a small, repetitive trace is never refused.
    """

    max_ratio: float = 400.0
    ratio_free_bytes: int = 256 * 2**20
    max_bytes: int = 1 << 40


class Source:
    """Decompressed bytes of one file, in order, once.

    Attributes:
        name: the path or URL as the user gave it.
        file_bytes: size of the file as stored; 0 where the store does not tell.
        head: the first block, for telling formats apart; reading starts from it again.
        faults: what was wrong with the compressed stream, complete only when reading has ended.
        tell: called after each block with how much of the stored file has been taken; None: nobody asks.
    """

    def __init__(
        self,
        name: str,
        blocks: Generator[bytes, None, None],
        file_bytes: int,
        faults: list[Fault],
        plain: Any = None,
        stored: Stored | None = None,
    ) -> None:
        """``plain`` is the file itself where it is not compressed: what follows the head is read without a copy;
        ``stored`` is the file where it is compressed."""
        self.name = name
        self.file_bytes = file_bytes
        self.faults = faults
        self.read_bytes = 0
        self.tell: Callable[[int], None] | None = None
        self._blocks = blocks
        self._plain = plain
        self._stored = stored
        try:
            self.head = next(blocks, b"")
        except BaseException:
            self.close()
            raise
        self._rest = memoryview(self.head)

    def readinto(self, target: memoryview) -> int:
        """Fill ``target`` from the front; returns the number of bytes, 0 at the end."""
        size = self._fill(target)
        self.read_bytes += size
        if self.tell is not None:
            self.tell(self.read_bytes if self._stored is None else self._stored.taken)
        return size

    def _fill(self, target: memoryview) -> int:
        if not self._rest and self._plain is not None:
            count: int = self._plain.readinto(target)
            return count
        if not self._rest:
            self._rest = memoryview(next(self._blocks, b""))
        size = min(len(target), len(self._rest))
        target[:size] = self._rest[:size]
        self._rest = self._rest[size:]
        return size

    def close(self) -> None:
        """Stop reading ahead and close the file."""
        self._blocks.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()


def open_source(
    path: str | os.PathLike[str], limits: Limits | None = None, *, ahead: bool = True, block_bytes: int = BLOCK_BYTES
) -> Source:
    """Open a file for reading, whatever its compression; the content decides, not the name.

    Args:
        path: a local path, or a URL that ``fsspec`` understands (``s3://...``), if that is installed.
        limits: how far the data may grow.
        ahead: whether a thread may decompress ahead.
        block_bytes: how much is read at a time.

    Raises:
        InputError: no such file, not readable, empty, or a package for it is missing.
    """
    name = os.fspath(path)
    limits = limits or Limits()
    reopen = _opener(name)
    try:
        file = reopen()
        size = _size(file)
        magic = file.read(LONGEST_MAGIC)
        file.seek(0)
    except OSError as error:
        raise InputError(_reason(error), path=name, hint="check the path and its permissions") from error
    if not magic:
        file.close()
        raise InputError("the file is empty", path=name, hint="the profiler died before it wrote; take another rank")
    decompress = decompressor(magic)
    faults: list[Fault] = []
    if decompress is None:
        return Source(name, _plain(file, block_bytes), size, faults, file)
    stored = Stored(file, reopen)
    blocks = _guard(_blocks(decompress(stored, faults), block_bytes), stored, limits, name)
    return Source(name, _ahead(blocks) if ahead and size > _ALONE_BYTES else blocks, size, faults, stored=stored)


def peek(path: str | os.PathLike[str], size: int = _HEAD_BYTES) -> bytes:
    """The first ``size`` bytes of a file, decompressed; fewer where it is short or damaged.

    Raises:
        InputError: it cannot be opened or is empty.
    """
    with open_source(path, ahead=False, block_bytes=size) as source:
        return source.head[:size]


def _reason(error: OSError) -> str:
    if isinstance(error, FileNotFoundError):
        return "no such file"
    if isinstance(error, IsADirectoryError):
        return "is a directory, not a file"
    return f"cannot be opened ({error.strerror or error})"


def _opener(name: str) -> Callable[[], IO[bytes]]:
    if "://" not in name:
        return lambda: Path(name).open("rb", buffering=0)
    try:
        fsspec: Any = importlib.import_module("fsspec")
    except ImportError:
        raise InputError("a URL needs the fsspec package", path=name, hint="pip install 'commlens[s3]'") from None

    def remote() -> IO[bytes]:
        try:
            opened: IO[bytes] = fsspec.open(name, "rb", compression=None).open()
        except (ImportError, ValueError) as error:
            raise InputError(f"cannot be opened ({error})", path=name, hint="pip install 'commlens[s3]'") from None
        return opened

    return remote


def _size(file: IO[bytes]) -> int:
    size = file.seek(0, os.SEEK_END)
    file.seek(0)
    return size


def _plain(file: IO[bytes], block_bytes: int) -> Generator[bytes, None, None]:
    with file:
        while block := file.read(block_bytes):
            yield block


def _blocks(pieces: Generator[bytes, None, None], block_bytes: int) -> Generator[bytes, None, None]:
    """Join decompressed pieces to blocks, so that a block is worth a trip through the queue."""
    held: list[bytes] = []
    size = 0
    with closing(pieces):
        for piece in pieces:
            held.append(piece)
            size += len(piece)
            if size >= block_bytes:
                yield b"".join(held)
                held, size = [], 0
        if size:
            yield b"".join(held)


def _guard(
    blocks: Generator[bytes, None, None], stored: Stored, limits: Limits, name: str
) -> Generator[bytes, None, None]:
    """Refuse a file that grows without bound."""
    grown = 0
    with closing(blocks):
        for block in blocks:
            grown += len(block)
            ratio = grown / max(stored.taken, 1)
            if grown > limits.max_bytes or (grown > limits.ratio_free_bytes and ratio > limits.max_ratio):
                raise InputError(
                    f"grows to more than {grown >> 20} MiB ({ratio:.0f} times its size) when decompressed",
                    path=name,
                    place=f"byte {stored.taken}",
                    hint="if it is no decompression bomb, allow more (--max-expansion, --max-unpacked)",
                )
            yield block


def _ahead(blocks: Generator[bytes, None, None]) -> Generator[bytes, None, None]:
    """Run ``blocks`` in a thread, a few blocks ahead: decompressors release the interpreter lock."""
    ready: queue.Queue[bytes | BaseException | None] = queue.Queue(_AHEAD_BLOCKS)
    stop = threading.Event()

    def put(item: bytes | BaseException | None) -> bool:
        while not stop.is_set():
            try:
                ready.put(item, timeout=0.1)
            except queue.Full:
                continue
            return True
        return False

    def work() -> None:
        try:
            with closing(blocks):
                for block in blocks:
                    if not put(block):
                        return
            put(None)
        except BaseException as error:  # handed to the reader, who raises it
            put(error)

    thread = threading.Thread(target=work, name="commlens-read-ahead", daemon=True)
    thread.start()
    try:
        while (item := ready.get()) is not None:
            if isinstance(item, BaseException):
                raise item
            yield item
    finally:
        stop.set()
        thread.join()
