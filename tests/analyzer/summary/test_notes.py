"""A file of one rank notes at its end what layout inference needs; whatever is wrong there, the columns are read."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

import analyzer
from analyzer.reading.one import Job, summarized
from analyzer.summary.file import read_table, write_table, write_tables
from analyzer.summary.notes import COLUMNS, KEY, noted, written
from parsers.parquet_footer import footer, value


@pytest.fixture
def files(sample_traces: Path, tmp_path: Path) -> list[Path]:
    """Summaries of a job of four ranks, a file each."""
    out = [tmp_path / f"rank{rank}.parquet" for rank in range(4)]
    for rank, path in enumerate(out):
        write_table(summarized(Job(str(sample_traces / "ddp4" / f"rank{rank}.json.gz"))), path)
    return out


def test_the_note_says_what_the_columns_say(files: list[Path]) -> None:
    found = noted([str(path) for path in files])
    assert found is not None
    read = pa.concat_tables([read_table(str(path), COLUMNS) for path in files])
    assert found.to_pydict() == read.to_pydict()


def test_files_of_several_ranks_note_nothing(files: list[Path], tmp_path: Path) -> None:
    path = tmp_path / "job.parquet"
    write_tables([read_table(str(one)) for one in files], path)
    assert value(footer(path), KEY) is None
    assert noted([str(path)]) is None


def test_a_damaged_note_is_not_believed(files: list[Path]) -> None:
    data = bytearray(files[0].read_bytes())
    note = value(footer(files[0]), KEY)
    assert note
    data[data.index(note) + len(note) // 2] ^= 1
    files[0].write_bytes(data)
    assert noted([str(path) for path in files]) is None
    assert analyzer.infer_layout([str(path) for path in files]).dp == 4


def test_what_other_sources_are_joined_with_is_not_noted(files: list[Path]) -> None:
    table = read_table(str(files[0]))
    place = table.schema.get_field_index("witness")
    assert written(table)
    assert written(table.set_column(place, table.schema.field(place), pa.array([b"dump"]))) == b""


def test_traces_note_nothing(sample_traces: Path) -> None:
    assert noted([str(sample_traces / "ddp4" / "rank0.json.gz")]) is None
