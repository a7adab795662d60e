"""From what a user types (files, patterns, directories) to the trace files of one job."""

from __future__ import annotations

import glob
import importlib
import os
import re
import stat
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from parsers.errors import InputError
from parsers.known_formats import PROVES

_MAGIC = re.compile(r"[*?\[]")
_DIGITS = re.compile(r"(\d+)")
_MERGED = re.compile(r"merged-(?P<run>.+?)\.trace\.json(?:\.gz)?\Z")
_TRACE_NAME = re.compile(r"\.json(?:\.gz|\.zst|\.xz)?\Z")
_REMOTE_NAME = re.compile(r"\.(?:json|sqlite)(?:\.gz|\.zst|\.xz)?\Z")
_TIMELINE = "timeline"
_WITNESS = "witness"
_JOINED = frozenset({"flight_recorder", "nccl_log", "nccl_inspector", "nccl_profiler"})
"""Formats that name what traces name as well: communicators, process groups, processes or ranks."""

_NO_TRACE = "JSON files that are no traces"
_UNREADABLE = "JSON files that are empty or cannot be opened"
_OTHER_FORMAT = "files of other formats beside the profiler's traces"
_ALONE = {
    _NO_TRACE: "JSON file that is no trace",
    _UNREADABLE: "JSON file that is empty or cannot be opened",
    _OTHER_FORMAT: "file of another format beside the profiler's traces",
}
_JSON = (b"{", b"[")
_NAMED_IN_NOTES = 3
_EXPORTS = (".sqlite", "_pqtdir", "_arwdir", ".arrows", ".jsonl", ".nsys-rep", ".qdrep", ".qdstrm")
"""Kinds of exports of one report of Nsight Systems by their names, the one that is read first."""


@dataclass(frozen=True)
class Found:
    """The files to read.

    Attributes:
        paths: in natural order (rank2 before rank10) within each argument, each file once.
        notes: one sentence for each kind of file that was left out.
    """

    paths: tuple[str, ...]
    notes: tuple[str, ...] = ()


def expand(arguments: Sequence[str | os.PathLike[str]]) -> Found:
    """Find the traces that the arguments name.

    A file is taken as it is. A pattern stands for the files it matches. A directory stands for all traces in it and
    below it, told by their content; other JSON files beside them are left out with a note. URLs (``s3://...``) work in
    the same way where ``fsspec`` is installed, told by name.

    Raises:
        InputError: a path does not exist, a pattern matches nothing, a directory holds no trace.
    """
    paths: dict[str, str] = {}  # by real path, so that a file comes once
    left_out: dict[str, list[str]] = {_NO_TRACE: [], _UNREADABLE: [], _OTHER_FORMAT: []}
    for argument in arguments:
        name = os.fspath(argument)
        for path in _remote(name) if "://" in name else _local(name, left_out):
            paths.setdefault(path if "://" in path else os.path.realpath(path), path)
    chosen, notes = _without_merged(list(paths.values()))
    chosen, more_notes = _without_twins(chosen)
    notes += more_notes
    for why, names in left_out.items():
        if names:
            more = len(names) - _NAMED_IN_NOTES
            listed = ", ".join(names[:_NAMED_IN_NOTES]) + (f" and {more} more" if more > 0 else "")
            said = f"1 {_ALONE[why]} was" if len(names) == 1 else f"{len(names)} {why} were"
            notes.append(f"{said} left out: {listed}")
    return Found(tuple(chosen), tuple(notes))


def natural_key(path: str) -> list[tuple[int, int, str]]:
    """A sorting key that takes runs of digits as numbers."""
    return [(0, int(part), part) if part.isdigit() and part.isascii() else (1, 0, part) for part in _DIGITS.split(path)]


def _local(name: str, left_out: dict[str, list[str]]) -> Iterator[str]:
    path = Path(name)
    if _is_whole(path):
        yield name
    elif path.is_dir():
        yield from _directory(path, left_out)
    elif path.exists():
        yield name
    elif _MAGIC.search(name):
        matches = sorted(glob.glob(name, recursive=True), key=natural_key)  # noqa: PTH207 (keeps the user's spelling)
        if not matches:
            raise InputError("no file matches this pattern", path=name, hint="check it, and quote it for the shell")
        for match in matches:
            folder = Path(match).is_dir() and not _is_whole(Path(match))
            yield from _directory(Path(match), left_out) if folder else [match]
    else:
        raise InputError("no such file or directory", path=name, hint="check the path")


def _directory(root: Path, left_out: dict[str, list[str]]) -> Iterator[str]:
    """The traces of a directory, and logs and dumps that say more of the same job.

    Files of formats that no trace is joined with are taken only where no timeline lies beside them.
    """
    timelines: list[str] = []
    witnesses: list[str] = []
    others: list[str] = []
    seen = 0
    for path in _walk(root):
        seen += 1
        kind = _kind(path)
        if kind in {_TIMELINE, _WITNESS, _OTHER_FORMAT}:
            {_TIMELINE: timelines, _WITNESS: witnesses, _OTHER_FORMAT: others}[kind].append(str(path))
        elif kind in left_out:
            left_out[kind].append(path.name)
    if not timelines and not witnesses and not others:
        what = f"none of its {seen} files is one" if seen else "it holds no files"
        raise InputError(
            f"no traces in this directory ({what})", path=str(root), hint="give the folder with the traces"
        )
    if timelines:
        left_out[_OTHER_FORMAT] += [Path(path).name for path in others]
        yield from (*timelines, *witnesses)
    else:
        yield from sorted((*witnesses, *others), key=natural_key)


def _walk(root: Path) -> Iterator[Path]:
    """Regular files below a directory in natural order, and directories that are traces as a whole.

    A directory reached twice (a loop of links) is entered once.
    """
    entered: set[tuple[int, int]] = set()
    stack = [root]
    while stack:
        here = stack.pop()
        try:
            info = here.stat()
            if stat.S_ISREG(info.st_mode):
                yield here
                continue
            if not stat.S_ISDIR(info.st_mode) or (info.st_dev, info.st_ino) in entered:
                continue
            entered.add((info.st_dev, info.st_ino))
            if _is_whole(here):
                yield here
                continue
            children = [child for child in here.iterdir() if not child.name.startswith(".")]
        except OSError:
            continue
        stack.extend(sorted(children, key=lambda child: natural_key(child.name), reverse=True))


def _kind(path: Path) -> str:
    """`_TIMELINE`, `_WITNESS`, `_OTHER_FORMAT`, ``other`` for what is of no interest, or why a file is left out."""
    from parsers.registry import formats
    from parsers.source import peek

    if _is_whole(path):
        return _TIMELINE
    try:
        head = peek(path)
    except InputError:
        head = b""
    if not head:
        return _UNREADABLE if _TRACE_NAME.search(path.name) else "other"
    for known in formats():
        if known.belongs(path, head):
            if known.known.proves[PROVES.index("time")] == "yes":
                return _TIMELINE
            return _WITNESS if known.name in _JOINED else _OTHER_FORMAT
    return _NO_TRACE if head.removeprefix(b"\xef\xbb\xbf").lstrip()[:1] in _JSON else "other"


def _is_whole(path: Path) -> bool:
    """Whether a path is a trace as it stands: a directory of tables, a report that only its own tool can open."""
    from parsers.registry import formats

    return path.exists() and any(known.takes(path) for known in formats())


def _without_twins(paths: list[str]) -> tuple[list[str], list[str]]:
    """Leave out other exports of the same report of Nsight Systems (``X.nsys-rep``, ``X.sqlite``, ``X_pqtdir``)."""
    best: dict[str, int] = {}
    for path in paths:
        stem, place = _report_of(path)
        if place >= 0:
            best[stem] = min(best.get(stem, place), place)
    twins = [path for path in paths if (found := _report_of(path))[1] > best.get(found[0], len(_EXPORTS))]
    notes = [f"{Path(path).name} was left out: another export of the same report is beside it" for path in twins]
    return [path for path in paths if path not in twins], notes


def _report_of(path: str) -> tuple[str, int]:
    """What a name says of the report it comes from, and the place of its kind in `_EXPORTS` (-1 for others)."""
    for place, end in enumerate(_EXPORTS):
        if path.endswith(end):
            return path.removesuffix(end), place
    return path, -1


def _without_merged(paths: list[str]) -> tuple[list[str], list[str]]:
    """Leave out SGLang's fused copy (``merged-RUN.trace.json.gz``) where the ranks it was made of are there."""
    folders: dict[str, list[str]] = {}
    for path in paths:
        folder, name = os.path.split(path)
        folders.setdefault(folder, []).append(name)

    def is_copy(path: str) -> bool:
        folder, name = os.path.split(path)
        match = _MERGED.match(name)
        return match is not None and any(other.startswith(match["run"]) for other in folders[folder])

    copies = [path for path in paths if is_copy(path)]
    notes = [f"{Path(path).name} was left out: the files it was merged from are beside it" for path in copies]
    return [path for path in paths if path not in copies], notes


def _remote(url: str) -> Iterable[str]:
    try:
        core: Any = importlib.import_module("fsspec.core")
    except ImportError:
        raise InputError("a URL needs the fsspec package", path=url, hint="pip install 'commlens[s3]'") from None
    try:
        system, path = core.url_to_fs(url)
        if _MAGIC.search(path):
            matches = system.glob(path)
        elif system.isdir(path):
            matches = [name for name in system.find(path) if _REMOTE_NAME.search(name)]
        else:
            return [url]
    except (ImportError, OSError, ValueError) as error:
        raise InputError(f"cannot be listed ({error})", path=url, hint="pip install 'commlens[s3]'") from None
    if not matches:
        raise InputError("no traces there", path=url, hint="check the URL")
    return [system.unstrip_protocol(name) for name in sorted(matches, key=natural_key)]
