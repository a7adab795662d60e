"""What layout inference needs of one rank, once more among the file's own metadata.

A file per rank is how large jobs come. Opening a Parquet file means reading what is said of each of its columns, which
takes ten times as long as all that is wanted of it here: a text at its end.
"""

from __future__ import annotations

import base64
import zlib
from collections.abc import Sequence
from pathlib import Path

import msgspec
import pyarrow as pa

from analyzer.summary.columns import FOR_LAYOUT, WITNESSES
from parsers import summary
from parsers.columns import text_array
from parsers.parquet_footer import footer, value

KEY = "commlens_layout"
COLUMNS = ("head", *FOR_LAYOUT)

_NOTES = msgspec.json.Decoder(tuple[str, str, str])


def written(table: pa.Table) -> bytes:
    """The columns `COLUMNS` of a table of one rank as ASCII text; empty where other sources may change what they say.

    Packed by zlib, whose checksum tells damage.
    """
    if any(table.column(name)[0].is_valid for name in WITNESSES):
        return b""
    texts = [table.column(name)[0].as_py() for name in COLUMNS]
    return base64.b64encode(zlib.compress(msgspec.json.encode(texts)))


def noted(paths: Sequence[str]) -> pa.Table | None:
    """The columns `COLUMNS` of files of one rank each; None where some file does not note them.

    Whatever is the matter with such a file, reading it in full says so.
    """
    columns: list[tuple[str, str, str]] = []
    for path in paths:
        if "://" in path:
            return None
        try:
            end = footer(Path(path))
            if value(end, summary.KEY) != str(summary.VERSION).encode():
                return None
            columns.append(_NOTES.decode(zlib.decompress(base64.b64decode(value(end, KEY) or b""))))
        except (OSError, ValueError, zlib.error, msgspec.MsgspecError):
            return None
    heads, places, behaviours = zip(*columns, strict=True)
    found = text_array(heads), text_array(places), text_array(behaviours).dictionary_encode()
    return pa.table(dict(zip(COLUMNS, found, strict=True)))
