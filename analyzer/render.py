"""A report in the format that was asked for, and where it goes."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from parsers.errors import InputError

if TYPE_CHECKING:
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
        InputError: it cannot be written; of a file nothing is left behind.
    """
    if output == "-":
        _to_stdout(data)
    else:
        with whole_file(output) as partial:
            partial.write_bytes(data)


@contextmanager
def whole_file(output: str | os.PathLike[str]) -> Iterator[Path]:
    """A path to write to, whose file takes the place of ``output`` when all went well, and is gone when not.

    A device or a pipe (``/dev/stdout``) is written to directly; of a link, the file that it points to is replaced.

    Raises:
        InputError: it cannot be written.
    """
    target = Path(os.path.realpath(output))
    try:
        if target.exists() and not target.is_file():
            yield target
            return
        handle, name = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name[:100]}.")
        os.close(handle)
        partial = Path(name)
        try:
            yield partial
            partial.chmod(target.stat().st_mode & 0o777 if target.exists() else 0o666 & ~_umask())
            partial.replace(target)
        finally:
            partial.unlink(missing_ok=True)
    except BrokenPipeError:
        raise
    except OSError as error:
        raise _unwritable(error, os.fspath(output)) from error


def drop_stdout() -> None:
    """Send what is still to come on stdout nowhere: Python must not try to flush to it again when it ends."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _to_stdout(data: bytes) -> None:
    try:
        sys.stdout.buffer.write(data)
        sys.stdout.buffer.flush()
    except BrokenPipeError:  # the reader has gone, as in `analyze ... | head`: there is nobody to miss the rest
        drop_stdout()
    except OSError as error:
        drop_stdout()
        raise _unwritable(error, "stdout") from error


def _unwritable(error: OSError, path: str) -> InputError:
    what = f"cannot be written ({error.strerror or error})"
    return InputError(what, path=path, hint="nothing was left behind; make room or name another place with -o")


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
