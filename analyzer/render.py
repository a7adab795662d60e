"""An analysis in the format that was asked for, and where it goes."""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

from analyzer.model import Analysis, to_json


def render(analysis: Analysis, form: str, output: str = "-") -> bytes:
    """The analysis as ``text``, ``json`` or ``md``, UTF-8.

    Args:
        analysis: what to show.
        form: the format.
        output: where it will be written: text is coloured only for a terminal.
    """
    if form == "json":
        return to_json(analysis)
    if form == "md":
        from analyzer.reporters.markdown import markdown

        return markdown(analysis).encode()
    from analyzer.reporters.text import text

    return text(analysis, terminal=output == "-" and sys.stdout.isatty()).encode()


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
