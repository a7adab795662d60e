"""One file, read as a user would have it read: what came of it, how long it took, how much memory it took."""

from __future__ import annotations

import contextlib
import os
import resource
import shutil
import signal
import time
import traceback
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from analyzer.errors import InconclusiveError
from benchmarks.fuzz.seeds import Seed
from ledger.errors import LedgerError
from parsers.errors import InputError

MAX_SECONDS = 10
"""Of processor time: a file that takes longer hangs."""

MAX_TIMES, MAX_MORE_BYTES = 10, 200 * 2**20
"""Memory that a file may take: so many times its size, and so much more."""

READ, REFUSED, TRACEBACK, BAD_TABLE, HANG, MEMORY, DIED = (
    *("read", "refused", "traceback", "bad table", "hang", "memory", "died"),
)
FAULTS = (TRACEBACK, BAD_TABLE, HANG, MEMORY, DIED)


@dataclass(frozen=True)
class Outcome:
    """What came of a file.

    Attributes:
        kind: `READ`, `REFUSED` (one line for the user), or one of `FAULTS`.
        parser: the format whose parser had the file last.
        detail: the line, or the innermost frames of the traceback.
        seconds: of processor time.
        more_bytes: by how much the process grew while it read.
    """

    kind: str
    parser: str
    detail: str
    seconds: float
    more_bytes: int


class HangError(BaseException):
    """Raised by the alarm; no parser may catch it."""


def write(seed: Seed, folder: Path) -> Path:
    """Put a seed's files into an empty folder; the path to give to a reader."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    target = folder / seed.name
    if len(seed.files) == 1 and not seed.files[0][0]:
        target.write_bytes(seed.files[0][1])
        return target
    target.mkdir()
    for name, data in seed.files:
        (target / name).write_bytes(data)
    return target


def run(seed: Seed, path: Path, *, whole: bool) -> Outcome:
    """Read a file with the parser that takes it, and with the one of its seed where that is another.

    Args:
        seed: what lies at ``path``.
        path: the file.
        whole: also analyse it and write every report.
    """
    size = sum(len(data) for _, data in seed.files)
    before = _reset_peak()
    start = time.process_time()
    signal.signal(signal.SIGPROF, _hang)
    signal.setitimer(signal.ITIMER_PROF, MAX_SECONDS)
    kind, parser, detail = READ, "", ""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            kind, parser, detail = _read(seed, path)
            if whole and kind == READ:
                kind, detail = _analyse(path)
    except HangError:
        kind, detail = HANG, _frames()
    except Exception:
        kind, detail = TRACEBACK, _frames()
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
    more = max(0, _peak() - before)
    if kind in (READ, REFUSED) and more > MAX_TIMES * size + MAX_MORE_BYTES:
        kind, detail = MEMORY, f"{more >> 20} MiB for {size} bytes"
    return Outcome(kind, parser or seed.format, detail, time.process_time() - start, more)


def _read(seed: Seed, path: Path) -> tuple[str, str, str]:
    """Kind, parser and detail."""
    from parsers import registry

    if seed.format == "straggler_parquet":
        return _straggler(path)
    if seed.format == "summary":
        return _summary(path)
    try:
        traces = registry.read(path)
    except InputError as error:
        _check_line(error)
        refused: tuple[str, str, str] = (REFUSED, seed.format, str(error))
    else:
        bad = _bad_table(traces)
        if bad:
            return BAD_TABLE, traces[0].format, bad
        if traces[0].format == seed.format:
            return READ, seed.format, ""
        refused = (READ, traces[0].format, "")
    if path.is_dir():
        return refused
    by_hand = next(known.parser for known in registry.formats() if known.name == seed.format)
    from parsers.source import open_source

    try:
        with open_source(path) as source:
            traces = by_hand.read(source)
    except InputError as error:
        _check_line(error)
        return refused
    bad = _bad_table(traces)
    return (BAD_TABLE, seed.format, bad) if bad else refused


def _straggler(path: Path) -> tuple[str, str, str]:
    from parsers.straggler_parquet import read_operations

    try:
        read_operations(str(path))
    except InputError as error:
        _check_line(error)
        return REFUSED, "straggler_parquet", str(error)
    return READ, "straggler_parquet", ""


def _summary(path: Path) -> tuple[str, str, str]:
    from analyzer.summary.file import read_table
    from analyzer.summary.table import from_table

    try:
        from_table(read_table(str(path)))
    except InputError as error:
        _check_line(error)
        return REFUSED, "summary", str(error)
    return READ, "summary", ""


def _analyse(path: Path) -> tuple[str, str]:
    """The whole command, short of starting it."""
    from analyzer.model import to_json
    from analyzer.options import Options
    from analyzer.pipeline import analyze_with
    from analyzer.render import render
    from analyzer.reporters.sections import sections

    try:
        analysis = analyze_with([str(path)], Options())
    except (InputError, InconclusiveError, LedgerError) as error:
        _check_line(error)
        return REFUSED, str(error)
    to_json(analysis)
    for form in ("text", "md"):
        said = render(sections(analysis), "Title", form, "-").decode()
        if form == "text" and any(not c.isprintable() and c != "\n" for c in said):
            raise AssertionError("a control character reaches the terminal")
    return READ, ""


def _bad_table(traces: list[Any]) -> str:
    if not traces:
        return "no trace and no error"
    for trace in traces:
        for name in ("gpu_events", "comm_records", "launches", "cpu_marks", "steps", "groups"):
            try:
                getattr(trace, name).validate(full=True)
            except Exception as error:
                return f"{name}: {error}"
    return ""


def _check_line(error: Exception) -> None:
    """An error is one line for the user: something is said, and not at any length."""
    said = str(error)
    if not said.strip() or len(said) > 2000:
        raise AssertionError(f"{len(said)} characters in an error") from None


def _frames() -> str:
    """The innermost frames and the error, in one line."""
    lines = [line.strip() for line in traceback.format_exc().strip().splitlines()]
    where = [line for line in lines if line.startswith("File ")][-3:]
    return " < ".join([*reversed([line.split("/")[-1] for line in where]), lines[-1][:300]])


def _hang(*_: object) -> None:
    raise HangError


def _reset_peak() -> int:
    """Forget the largest size this process had; its size now."""
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")
    return _status("VmRSS")


def _peak() -> int:
    return _status("VmHWM")


def _status(key: str) -> int:
    try:
        with Path("/proc/self/status").open() as file:
            return next(int(line.split()[1]) << 10 for line in file if line.startswith(key))
    except (OSError, StopIteration):
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10


def limit_memory(more_bytes: int) -> None:
    """No allocation of this process may take it so much further than it is."""
    with Path("/proc/self/statm").open() as file:
        used = int(file.read().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    resource.setrlimit(resource.RLIMIT_AS, (used + more_bytes, resource.RLIM_INFINITY))
