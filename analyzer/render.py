"""A report in the format that was asked for, and where it goes."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from analyzer.reporters.blocks import Section


def render(report: Sequence[Section], title: str, form: str, output: str = "-") -> bytes:
    """Sections as ``text`` or ``md``, UTF-8.

    Args:
        report: what to show.
        title: of the markdown document.
        form: the format.
        output: where it will be written: text is coloured only for a terminal.
    """
    if form == "md":
        from analyzer.reporters.markdown import markdown

        return markdown(report, title).encode()
    from analyzer.reporters.text import text

    return text(report, terminal=output == "-" and sys.stdout.isatty()).encode()


def write(data: bytes, output: str) -> None:
    """Write to stdout (``-``) or to a file, which appears whole or not at all.

    Raises:
        OSError: the file cannot be written.
    """
    if output == "-":
        sys.stdout.buffer.write(data)
        sys.stdout.buffer.flush()
        return
    target = Path(output)
    handle, temporary = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
        Path(temporary).chmod(0o666 & ~_umask())
        Path(temporary).replace(target)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
