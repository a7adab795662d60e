"""``.nsys-rep``: NVIDIA's own binary format, which only ``nsys`` can export."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from parsers.errors import InputError

_TIME_LIMIT_S = 6 * 3600
_WITH_PAYLOADS = ("--include-blobs=true", "--include-json=true")

Progress = Callable[[str], None]


def export_command(report: Path, target: Path, payloads: tuple[str, ...] = _WITH_PAYLOADS) -> list[str]:
    """The command that makes of a report what this reader needs; nsys leaves payloads out if it is not told."""
    return [
        "nsys",
        "export",
        "--type",
        "sqlite",
        *payloads,
        "--force-overwrite=true",
        "--output",
        str(target),
        str(report),
    ]


def exported(report: Path, name: str, progress: Progress | None = None) -> Path:
    """The SQLite export of a report: made once, and kept.

    It is looked for beside the report first (``nsys profile --export=sqlite`` and ``nsys stats`` leave one there), then
    in the cache (``$XDG_CACHE_HOME/commlens``), where it is made if ``nsys`` is on the path.

    Args:
        report: the file.
        name: as the user named it.
        progress: is told what is done, in one sentence; to stderr by default, if that is a terminal.

    Raises:
        InputError: there is no ``nsys``, or it failed; the message says which command to run.
    """
    beside = report.with_suffix(".sqlite")
    if _is_newer(beside, report):
        return beside
    info = report.stat()
    target = _cache() / f"{report.stem}-{info.st_size:x}-{info.st_mtime_ns:x}.sqlite"
    if target.is_file():
        return target
    command = shlex.join(export_command(Path(name), Path(name).with_suffix(".sqlite")))
    if shutil.which("nsys") is None:
        hint = f"where Nsight Systems is installed, run: {command}"
        raise InputError(
            "is a report of Nsight Systems, which only nsys can read, and nsys is not here", path=name, hint=hint
        )
    (progress or _to_terminal)(f"exporting {report.name} with nsys")
    _export(report, target, name, command)
    return target


def _export(report: Path, target: Path, name: str, command: str) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent, prefix="export-") as folder:
        made = Path(folder) / "export.sqlite"
        for payloads in (_WITH_PAYLOADS, ()):  # nsys up to 2023 does not know these options
            said = _run(export_command(report.absolute(), made, payloads), name, command)
            if said is None and made.is_file():
                break
        else:
            raise InputError(f"nsys export failed ({said})", path=name, hint=f"see what it says: {command}")
        made.replace(target)


def _run(command: list[str], name: str, shown: str) -> str | None:
    """Run nsys; what it complains about, or None."""
    try:
        done = subprocess.run(
            command,
            check=False,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            timeout=_TIME_LIMIT_S,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise InputError(f"nsys export did not run ({error})", path=name, hint=f"run: {shown}") from None
    if not done.returncode:
        return None
    said = done.stderr.decode("utf-8", "replace").strip().splitlines()
    return said[-1][:200] if said else f"status {done.returncode}"


def _cache() -> Path:
    root = os.environ.get("XDG_CACHE_HOME")
    return (Path(root) if root else Path.home() / ".cache") / "commlens"


def _is_newer(path: Path, than: Path) -> bool:
    try:
        return path.stat().st_mtime_ns >= than.stat().st_mtime_ns
    except OSError:
        return False


def _to_terminal(text: str) -> None:
    if sys.stderr.isatty():
        sys.stderr.write(text + " ...\n")
