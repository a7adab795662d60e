"""A report is opened read-only, nothing in it is executed, and what is wrong with it is one line."""

from __future__ import annotations

import os
import sqlite3
import stat
from pathlib import Path

import pytest

from parsers import read
from parsers.discover import expand
from parsers.errors import InputError
from parsers.nsys.report import export_command
from parsers.nsys.sqlite_store import SqliteStore
from tests.parsers.nsys.export import Export, grouped

ALL_REDUCE = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<(unsigned long)4096>)"


@pytest.fixture
def export() -> Export:
    export = Export()
    owner = export.process(500)
    kernel = {"name": ALL_REDUCE, "start": 50_000, "end": 51_000}
    grouped(export, owner, 500, 5000, [("ncclAllReduce", {"comm": 1, "bytes": 64, "redop": 0})], [kernel])
    return export


def altered(export: Export, path: Path, *statements: str) -> Path:
    export.sqlite(path)
    connection = sqlite3.connect(path)
    for statement in statements:
        connection.execute(statement)
    connection.commit()
    connection.close()
    return path


def test_nothing_is_written(export: Export, tmp_path: Path) -> None:
    path = export.sqlite(tmp_path / "report.sqlite")
    before = path.read_bytes()
    path.chmod(0o400)
    tmp_path.chmod(0o500)
    try:
        assert read(path)[0].comm_records.num_rows == 1
        assert [entry.name for entry in tmp_path.iterdir()] == ["report.sqlite"]
    finally:
        tmp_path.chmod(0o700)
    assert path.read_bytes() == before


def test_only_selections_are_allowed(export: Export, tmp_path: Path) -> None:
    store = SqliteStore(export.sqlite(tmp_path / "report.sqlite"), "report")
    for statement in (
        "DELETE FROM StringIds",
        "CREATE TABLE t (x)",
        "PRAGMA writable_schema = ON",
        "ATTACH '/tmp/other' AS other",
        "SELECT load_extension('x')",
        "SELECT randomblob(1000000000)",
    ):
        with pytest.raises(sqlite3.Error):
            store._connection.execute(statement)
    store.close()


def test_views_in_the_place_of_tables_are_not_looked_into(export: Export, tmp_path: Path) -> None:
    endless = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT i AS start FROM n"
    path = altered(
        export,
        tmp_path / "report.sqlite",
        "DROP TABLE NVTX_EVENTS",
        f"CREATE VIEW NVTX_EVENTS AS {endless}",
        f"CREATE VIEW CUPTI_ACTIVITY_KIND_MEMSET AS {endless}",
        "CREATE TRIGGER t AFTER INSERT ON StringIds BEGIN DELETE FROM StringIds; END",
    )
    (trace,) = read(path)
    assert trace.gpu_events.num_rows == 1
    assert trace.comm_records.num_rows == 0


def test_huge_values_are_cut_or_left_out(export: Export, tmp_path: Path) -> None:
    path = altered(
        export,
        tmp_path / "report.sqlite",
        "UPDATE NVTX_EVENTS SET binaryData = zeroblob(200000000) WHERE binaryData IS NOT NULL",
        "INSERT INTO StringIds SELECT 9999, hex(zeroblob(5000000))",
        "UPDATE CUPTI_ACTIVITY_KIND_KERNEL SET demangledName = 9999",
    )
    (trace,) = read(path)
    assert trace.comm_records.column("message_bytes").to_pylist() == [None]
    assert len(trace.gpu_events.column("name").to_pylist()[0]) <= 1 << 16


def test_values_of_the_wrong_type_are_no_values(export: Export, tmp_path: Path) -> None:
    path = altered(
        export,
        tmp_path / "report.sqlite",
        "INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL (start, end, deviceId, correlationId, globalPid, demangledName) "
        "VALUES ('soon', x'00', 'zero', 1.5, 281474976710656, 'name'), (7000, 6000, 0, 0, 281474976710656, 1), "
        "(0, 9000000000000000000, 0, 0, 281474976710656, 1)",
    )
    (trace, *_) = read(path)
    assert trace.health.quarantined == 3
    notes = " / ".join(trace.health.notes)
    assert "1 GPU rows set aside: no start or end" in notes
    assert "1 GPU rows set aside: end before start" in notes
    assert "1 GPU rows set aside: a duration of more than a month" in notes


def test_a_database_of_another_program(tmp_path: Path) -> None:
    path = tmp_path / "rocprof.sqlite"
    connection = sqlite3.connect(path)
    connection.execute("CREATE TABLE rocpd_kernel (id INTEGER)")
    connection.commit()
    connection.close()
    with pytest.raises(InputError, match="is a SQLite database of something else"):
        read(path)
    with pytest.raises(InputError, match="no traces in this directory"):
        expand([tmp_path])


@pytest.mark.parametrize("keep", [20, 100, 4096, 5000])
def test_a_cut_database_is_one_line(export: Export, tmp_path: Path, keep: int) -> None:
    path = export.sqlite(tmp_path / "report.sqlite")
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(InputError) as caught:
        read(path)
    assert "\n" not in str(caught.value)
    assert str(path) in str(caught.value)


def test_damage_inside_loses_a_table_and_says_so(tmp_path: Path) -> None:
    export = Export()
    owner = export.process(500)
    for number in range(4000):
        export.kernel(owner, f"kernel_{number}", 1000 * number, 1000 * number + 900)
    path = export.sqlite(tmp_path / "report.sqlite")
    data = bytearray(path.read_bytes())
    middle = len(data) // 2 // 4096 * 4096
    data[middle : middle + 8 * 4096] = b"\xff" * (8 * 4096)
    path.write_bytes(bytes(data))
    (trace,) = read(path)
    assert not trace.health.complete
    assert any("cannot be read to its end" in note for note in trace.health.notes)


def test_an_export_of_nothing(tmp_path: Path) -> None:
    export = Export()
    export.add("NVTX_EVENTS", start=0, end=5, eventType=59, text="work", globalTid=1, domainId=0)
    with pytest.raises(InputError, match="capture with: nsys profile --trace=cuda,nvtx"):
        read(export.sqlite(tmp_path / "report.sqlite"))


# -- reports that only nsys can open


def fake_nsys(folder: Path, body: str) -> None:
    folder.mkdir()
    path = folder / "nsys"
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)


@pytest.fixture
def report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}{os.pathsep}/usr/bin{os.pathsep}/bin")
    path = tmp_path / "job 1.nsys-rep"
    path.write_bytes(b"\x00\x01 binary")
    return path


def test_without_nsys_the_command_to_run_is_named(report: Path) -> None:
    with pytest.raises(InputError) as caught:
        read(report)
    said = str(caught.value)
    assert "nsys export --type sqlite --include-blobs=true --include-json=true" in said
    assert f"'{report}'" in said
    assert "\n" not in said


def test_nsys_exports_once_into_the_cache(report: Path, export: Export, tmp_path: Path) -> None:
    made = export.sqlite(tmp_path / "made.sqlite")
    script = f'echo run >> "{tmp_path}/runs"\nwhile [ "$1" != "--output" ]; do shift; done\ncp "{made}" "$2"'
    fake_nsys(tmp_path / "bin", script)
    for _ in range(2):
        (trace,) = read(report)
        assert (trace.path, trace.format, trace.comm_records.num_rows) == (str(report), "nsys", 1)
    assert (tmp_path / "runs").read_text() == "run\n"


def test_an_nsys_that_does_not_know_payloads_is_asked_without(report: Path, export: Export, tmp_path: Path) -> None:
    made = export.sqlite(tmp_path / "made.sqlite")
    refuse = 'case "$*" in *include-blobs*) echo "unrecognised option" >&2; exit 1;; esac'
    fake_nsys(tmp_path / "bin", f'{refuse}\nwhile [ "$1" != "--output" ]; do shift; done\ncp "{made}" "$2"')
    assert read(report)[0].comm_records.num_rows == 1


def test_an_nsys_that_fails_is_quoted(report: Path, tmp_path: Path) -> None:
    fake_nsys(tmp_path / "bin", 'echo "Report is from a newer version" >&2\nexit 3')
    with pytest.raises(InputError, match=r"nsys export failed \(Report is from a newer version\)"):
        read(report)
    assert list((tmp_path / "cache" / "commlens").iterdir()) == []


def test_an_export_beside_the_report_is_used(report: Path, export: Export) -> None:
    export.sqlite(report.with_suffix(".sqlite"))
    assert read(report)[0].comm_records.num_rows == 1


def test_the_command_names_no_shell(tmp_path: Path) -> None:
    command = export_command(tmp_path / "a b;rm -rf.nsys-rep", tmp_path / "out.sqlite")
    assert command[:2] == ["nsys", "export"]
    assert command[-1] == str(tmp_path / "a b;rm -rf.nsys-rep")
