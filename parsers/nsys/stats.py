"""The tables that ``nsys stats`` prints (CSV), and those of its recipes (Parquet), as tables of an export.

They lack payloads, mostly also processes or streams; what they hold goes the way of every export.
"""

from __future__ import annotations

import io
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from parsers.columns import NULL, Ints
from parsers.errors import InputError
from parsers.nsys.arrow_store import ArrowStore, tables_store
from parsers.nsys.detect import is_summary, is_table
from parsers.nsys.schema import ENVIRONMENT, GPUS
from parsers.nsys.stats_tables import Frame, as_table, tables_of, unnamed
from parsers.source import Source

_UNIT = re.compile(r"\s*\((?P<unit>ns|nsec|us|usec|μs|µs|ms|msec|s|sec)\)\Z")
_NANOSECONDS = {"ns": 1, "nsec": 1, "us": 10**3, "usec": 10**3, "μs": 10**3, "µs": 10**3, "ms": 10**6, "msec": 10**6}
_SECOND = 10**9
_RECIPE = ("trace.parquet",)
_NAMED_TUPLE = re.compile(r"\('TARGET_INFO_GPU', '(?P<name>\w+)'\)\Z")


def table_store(source: Source) -> ArrowStore:
    """One printed table.

    Raises:
        InputError: it is a summary, or is damaged.
    """
    if is_summary(source.head):
        hint = "give cuda_gpu_trace, cuda_kern_exec_trace or nvtx_pushpop_trace, better the report itself"
        raise InputError("is a summary of nsys stats: it has no time line", path=source.name, hint=hint)
    return _store([_csv(source)], source.name, {})


def directory_store(path: Path, name: str) -> ArrowStore:
    """What belongs to one report among the files of a directory: printed tables, outputs of recipes, metadata.

    Raises:
        InputError: there is no table among them.
    """
    from parsers.source import open_source

    frames: list[Frame] = []
    more: dict[str, pa.Table] = {}
    for file in sorted([*path.iterdir(), *path.glob("*/trace.parquet")]):
        if not file.is_file():
            continue
        if file.name.endswith(_RECIPE):
            frames.append(_parquet(file))
        elif file.name.endswith(".parquet"):
            more |= _devices(file)
        elif ".csv" in file.suffixes:
            with open_source(file) as source:
                if is_table(source.head) and not is_summary(source.head):
                    frames.append(_csv(source))
        elif file.name.startswith("system-metadata"):
            more |= _environment(file)
    return _store(frames, name, more)


def _store(frames: list[Frame], name: str, more: Mapping[str, pa.Table]) -> ArrowStore:
    tables = tables_of(frames)
    if not tables:
        raise InputError("holds no table of nsys stats with a time line", path=name, hint="give the report itself")
    store = tables_store({**more, **tables}, name)
    store.faults += unnamed(frames)
    return store


# -- reading


class _Text(io.RawIOBase):
    """A source as a file."""

    def __init__(self, source: Source) -> None:
        self._source = source

    def readable(self) -> bool:
        return True

    def readinto(self, target: Any) -> int:
        return self._source.readinto(memoryview(target))


def _csv(source: Source) -> Frame:
    from pyarrow import csv

    try:
        table = csv.read_csv(
            io.BufferedReader(_Text(source), 1 << 20),
            parse_options=csv.ParseOptions(newlines_in_values=True),
            convert_options=csv.ConvertOptions(strings_can_be_null=True),
        )
        return _frame(table)
    except (pa.ArrowException, ValueError) as error:  # names of columns that are not UTF-8 are a ValueError
        hint = "print it again: nsys stats -f csv"
        what = " ".join(str(error).split())[:300]
        raise InputError(f"is a damaged table of nsys stats ({what})", path=source.name, hint=hint) from None


def _parquet(path: Path) -> Frame:
    import pyarrow.parquet as pq

    try:
        return _frame(pq.read_table(path))
    except (pa.ArrowException, OSError, ValueError) as error:
        what = " ".join(str(error).split())[:300]
        raise InputError(f"cannot be read as Parquet ({what})", path=str(path)) from None


def _frame(table: pa.Table) -> Frame:
    """Columns by their name without unit, times in ns, names in one spelling over the years."""
    found: dict[str, npt.NDArray[Any] | list[Any]] = {}
    for place, name in enumerate(table.column_names):
        unit = _UNIT.search(name)
        bare = name[: unit.start()] if unit else name
        column = table.column(place)  # names may repeat in a damaged table
        scale = _NANOSECONDS.get(unit["unit"], _SECOND) if unit else 1
        if pa.types.is_integer(column.type) or pa.types.is_floating(column.type):
            found[_SPELLINGS.get(bare, bare)] = _numbers(column, scale)
        else:
            found[_SPELLINGS.get(bare, bare)] = column.to_pylist()
    return found


_SPELLINGS = {  # recipes of 2025 and later
    "Text": "Name",
    "Range ID": "RangeId",
    "Range Stack": "RangeStack",
    "Children Count": "NumChild",
    "Stack Level": "Lvl",
}


def _numbers(column: pa.ChunkedArray, scale: int) -> Ints:
    if pa.types.is_integer(column.type):
        whole = np.asarray(column.cast(pa.int64()).fill_null(NULL).to_numpy(), dtype=np.int64)
        return np.where(whole == NULL, NULL, whole * scale)
    values = np.asarray(column.cast(pa.float64()).fill_null(float("nan")).to_numpy(), dtype=np.float64)
    good = np.isfinite(values) & (np.abs(values) < 2**62 / scale)
    return np.where(good, np.rint(np.where(good, values, 0.0) * scale), NULL).astype(np.int64)


# -- metadata beside the tables (NVIDIA/JAX-Toolbox nsys-jax)


def _environment(path: Path) -> dict[str, pa.Table]:
    try:
        rows = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        return {}
    rows = [row for row in rows if isinstance(row, dict)] if isinstance(rows, list) else []
    return {
        ENVIRONMENT: as_table(
            {
                "name": [str(row.get("name", "")) for row in rows],
                "nameEnum": np.array(
                    [n if isinstance(n := row.get("nameEnum"), int) else NULL for row in rows], np.int64
                ),
                "value": [str(row.get("value", "")) for row in rows],
            }
        )
    }


def _devices(path: Path) -> dict[str, pa.Table]:
    import pyarrow.parquet as pq

    try:
        table = pq.read_table(path)
        names = table.column_names
    except (pa.ArrowException, OSError, ValueError):
        return {}
    renamed = {match["name"]: table.column(n) for n in names if (match := _NAMED_TUPLE.match(n))}
    if "id" not in renamed:
        return {}
    if "cuDevice" in names:
        renamed["cuDevice"] = table.column("cuDevice")
    return {GPUS: pa.table(renamed)}
