"""Tables: every one in every format, equal to the document, and harmless in a spreadsheet."""

from __future__ import annotations

import csv
from pathlib import Path

import pyarrow.feather as feather
import pyarrow.parquet as pq
import pytest

from analyzer.commands.export import TABLES
from analyzer.export.tables import NAMES, SCHEMAS, schema, table
from analyzer.options import Options
from analyzer.pipeline import analyze, analyze_measured
from tests.analyzer.export.test_trace import run


def test_the_command_knows_the_tables() -> None:
    assert TABLES == NAMES == tuple(SCHEMAS)


@pytest.fixture(scope="module")
def folder(sample_traces: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("tables")
    for form in ("parquet", "csv", "arrow"):
        arguments = ("--tables", out / form, "--table-format", form, "-q", "--workers", "1")
        assert run("export", sample_traces / "tp2_pp2_dp2", *arguments).exit_code == 0
    return out


@pytest.mark.parametrize("name", NAMES)
def test_parquet_and_arrow_hold_the_same_with_the_schema(name: str, folder: Path) -> None:
    stored = pq.read_table(folder / "parquet" / f"{name}.parquet")
    assert stored.schema.equals(schema(name))
    assert feather.read_table(folder / "arrow" / f"{name}.arrow").equals(stored)
    with (folder / "csv" / f"{name}.csv").open(newline="") as file:
        header, *rows = csv.reader(file)
    assert header == list(SCHEMAS[name])
    assert len(rows) == stored.num_rows


def test_they_say_what_the_document_says(folder: Path, sample_traces: Path) -> None:
    document = analyze(sample_traces / "tp2_pp2_dp2")
    rows = pq.read_table(folder / "parquet" / "collectives.parquet").to_pylist()
    assert [(r["dim"], r["exposed_us_per_step"], r["sent_bytes_per_step"]) for r in rows] == [
        (r.dim, r.exposed_us_per_step, r.sent_bytes_per_step) for r in document.collectives
    ]
    assert document.exposure is not None
    calls = pq.read_table(folder / "parquet" / "calls.parquet").to_pylist()
    measured = [c for c in calls if c["measured"] and c["dim"] == "dp"]
    assert len(measured) == 8 * 3  # one bucket per step, three complete steps, eight ranks
    assert {c["size_bytes"] for c in measured} == {854_016, 854_528}
    steps = pq.read_table(folder / "parquet" / "steps.parquet").to_pylist()
    assert {s["step"] for s in steps} == {2, 3, 4}
    parts = ("compute_us", "exposed_us", "memcpy_us", "idle_us")
    assert all(sum(s[p] for p in parts) == pytest.approx(s["step_us"], abs=1e-6) for s in steps)
    mean = sum(s["exposed_us"] for s in steps) / len(steps)
    assert mean == pytest.approx(document.exposure.exposed_us, abs=0.002)
    layout = {r["dim"]: r["degree"] for r in pq.read_table(folder / "parquet" / "layout.parquet").to_pylist()}
    assert (layout["tp"], layout["pp"], layout["dp"]) == (2, 2, 2)


def test_a_hostile_group_name_is_no_formula(tmp_path: Path) -> None:
    import json

    from tests.analyzer.kineto_files import ddp_trace

    hostile = json.dumps(ddp_trace(0)).replace("default_pg", "=cmd|' /C calc'!A0")
    (tmp_path / "rank0.json").write_text(hostile)
    assert run("export", tmp_path / "rank0.json", "-o", tmp_path / "groups.csv", "-q").exit_code == 0
    with (tmp_path / "groups.csv").open(newline="") as file:
        (row,) = csv.DictReader(file)
    assert row["desc"] == "'=cmd|' /C calc'!A0"
    assert row["ranks"] == "[0,1]"


@pytest.mark.parametrize(
    ("file", "extra", "columns"),
    [
        ("findings.csv", (), list(SCHEMAS["findings"])),
        ("anything.csv", (), list(SCHEMAS["collectives"])),
        ("anything.csv", ("--table", "steps"), list(SCHEMAS["steps"])),
    ],
)
def test_the_name_of_the_file_or_an_option_chooses(
    file: str, extra: tuple[str, ...], columns: list[str], sample_traces: Path, tmp_path: Path
) -> None:
    assert run("export", sample_traces / "ddp4", "-o", tmp_path / file, *extra, "-q").exit_code == 0
    with (tmp_path / file).open(newline="") as found:
        assert next(csv.reader(found)) == columns


def test_tables_that_exist_are_not_replaced(sample_traces: Path, tmp_path: Path) -> None:
    (tmp_path / "steps.parquet").write_text("mine")
    result = run("export", sample_traces / "ddp4", "--tables", tmp_path)
    assert (result.exit_code, result.stdout) == (2, "")
    assert "steps.parquet exists; --force overwrites it" in result.stderr
    assert [p.name for p in tmp_path.iterdir()] == ["steps.parquet"]


def test_without_ranks_the_tables_of_calls_are_empty(sample_traces: Path) -> None:
    analysis, ranks = analyze_measured(sample_traces / "ddp4", Options())
    assert table("calls", analysis, []).equals(schema("calls").empty_table())
    assert table("calls", analysis, ranks).num_rows > 0
