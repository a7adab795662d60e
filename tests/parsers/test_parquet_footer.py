"""What stands at the end of a Parquet file, against what pyarrow reads there."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from parsers.parquet_footer import footer, value


@pytest.mark.parametrize("length", [0, 1, 127, 128, 16_384, 300_000])
def test_values_of_every_length(tmp_path: Path, length: int) -> None:
    path = tmp_path / "some.parquet"
    said = {"before": "x", "the key": "v" * length, "the key of another": "y"}
    pq.write_table(pa.table({"column": [1]}).replace_schema_metadata(said), path)
    assert value(footer(path), "the key") == pq.read_metadata(path).metadata[b"the key"] == b"v" * length
    assert value(footer(path), "the key of another") == b"y"
    assert value(footer(path), "the") is None
    assert b"column" in footer(path)


@pytest.mark.parametrize("content", [b"", b"PAR1", b"PAR1PAR1", b"{}", b"PAR1" + b"\xff\xff\xff\x7f" + b"PAR1"])
def test_other_files_have_no_footer(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "some.parquet"
    path.write_bytes(content)
    assert footer(path) == b""
    assert value(footer(path), "key") is None
