"""The fuzzer and the measurement of many groups: what they make is what they say."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path
from random import Random

import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.fuzz.table_mutations import columns
from benchmarks.many_groups import write
from parsers import read
from tests.conftest import ROOT


def test_columns_of_a_table_are_changed_the_same_way_again() -> None:
    sink = pa.BufferOutputStream()
    pq.write_table(pa.table({"rank": [0, 1, 2], "name": ["a", "b", "c"]}), sink)
    sound = sink.getvalue().to_pybytes()
    made = [columns(sound, Random(number)) for number in range(40)]
    assert made == [columns(sound, Random(number)) for number in range(40)]
    tables = [pq.ParquetFile(pa.BufferReader(data)).read() for data in made if data is not None]
    assert len(tables) == 40  # Parquet has all of these types
    assert sum(table.num_rows != 3 for table in tables) > 3
    assert len({str(table.schema) for table in tables}) > 10
    assert columns(b"no table", Random(1)) is None


def test_a_run_that_is_ended_early_writes_its_report(tmp_path: Path) -> None:
    report, keep = tmp_path / "REPORT.md", tmp_path / "kept"
    command = [sys.executable, "-m", "benchmarks.fuzz", "--own", "--report", str(report), "--keep", str(keep)]
    run = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    assert run.stdout is not None
    assert run.stdout.readline().endswith("seeds\n")
    run.send_signal(signal.SIGTERM)
    said, _ = run.communicate()
    assert run.returncode == 0
    assert "# Mutated files" in said
    assert "`python -m benchmarks.fuzz --seed 1 --first 0`" in report.read_text()


def test_a_trace_of_many_groups(tmp_path: Path) -> None:
    path = tmp_path / "rank0.json"
    write(path, 300, 200)
    (trace,) = read(path)
    assert trace.groups["ranks"].to_pylist() == [[0, number] for number in range(1, 301)]
    assert trace.identity.world_size == 301
    assert trace.comm_records.num_rows == 2 * 200
    assert trace.steps["number"].to_pylist() == [0, 1, 2]
    assert trace.health.notes == ()
