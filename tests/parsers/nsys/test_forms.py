"""The same report in every form in which nsys exports it, and of several years."""

from __future__ import annotations

import gzip
import lzma
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from parsers import read
from parsers.discover import expand
from parsers.errors import InputError
from parsers.tables import RankTrace
from tests.parsers.nsys.export import Export, grouped

ALL_REDUCE = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<(unsigned long)4096>)"
GEMM = "sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64_kernel"


def report(**how: Any) -> Export:
    """Two processes, with everything that matters once."""
    export = Export(**how)
    for place in range(2):
        pid = 500 + place
        owner = export.process(pid, domain=1 + place)
        said = {"comm": 0xFEDC_0000_0000_0001, "nranks": 2, "rank": place, "device": place}
        export.nccl_range(owner, pid, "ncclCommInitRankConfig", 10, 90, **said)
        export.range(owner, pid, "step 4", 1000, 90_000)
        export.range(owner, pid, "forward, op_id = 7", 1100, 1200)
        export.kernel(owner, GEMM, 2000, 3000 + place, device=place, tid=pid, at=1500)
        export.copy(owner, 1, 3500, 3600, 4096, deviceId=place, srcKind=1)
        export.add(
            "CUPTI_ACTIVITY_KIND_MEMSET", start=3700, end=3800, deviceId=place, streamId=7, globalPid=owner, bytes=64
        )
        call = ("ncclAllReduce", {"comm": 0xFEDC_0000_0000_0001, "bytes": 1 << 20, "redop": 0})
        kernel = {"name": ALL_REDUCE, "start": 50_000, "end": 51_000, "device": place, "stream": 20}
        grouped(export, owner, pid, 5000, [call], [kernel])
        export.add("ThreadNames", globalTid=owner | pid, nameId=export.string("pt_main"))
    export.environment("X=1", epoch=1_767_225_600_000_000_000)
    return export


def facts(traces: list[RankTrace]) -> list[Any]:
    """Everything but where it was read from."""
    out = []
    for trace in traces:
        tables = (trace.gpu_events, trace.comm_records, trace.launches, trace.cpu_marks, trace.steps, trace.groups)
        out.append([trace.identity, trace.metadata, *(table.to_pylist() for table in tables)])
    return out


FORMS: dict[str, Callable[[Export, Path], Path]] = {
    "parquet": lambda export, folder: export.parquet(folder / "report_pqtdir"),
    "arrow": lambda export, folder: export.arrow_directory(folder / "report_arwdir"),
    "stream": lambda export, folder: export.arrow_stream(folder / "report.arrows"),
    "renamed": lambda export, folder: export.sqlite(folder / "report.json"),
    "gzip": lambda export, folder: _packed(export, folder / "report.sqlite.gz", gzip.compress),
    "xz": lambda export, folder: _packed(export, folder / "report.db.xz", lzma.compress),
}


def _packed(export: Export, path: Path, pack: Callable[[bytes], bytes]) -> Path:
    path.write_bytes(pack(export.sqlite(path.with_suffix(".tmp")).read_bytes()))
    return path


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("payload", ["blob", "hex", "json"])
def test_every_form_gives_the_same(form: str, payload: str, tmp_path: Path) -> None:
    export = report(payload=payload)
    wanted = read(export.sqlite(tmp_path / "report.sqlite"))
    assert [trace.comm_records.column("message_bytes").to_pylist() for trace in wanted] == [[1 << 20]] * 2
    assert [trace.identity.rank for trace in wanted] == [0, 1]
    assert facts(read(FORMS[form](export, tmp_path))) == facts(wanted)


def test_json_lines_hold_all_but_binary_payloads(tmp_path: Path) -> None:
    export = report(payload="json")
    assert facts(read(export.json_lines(tmp_path / "report.jsonl"))) == facts(
        read(export.sqlite(tmp_path / "r.sqlite"))
    )


@pytest.mark.parametrize("year", [2022, 2023])
def test_older_exports_lack_payloads_and_columns(year: int, tmp_path: Path) -> None:
    new, old = report(payload=None), report(payload=None, year=year)
    wanted, found = facts(read(new.sqlite(tmp_path / "n.sqlite"))), facts(read(old.sqlite(tmp_path / "o.sqlite")))
    for one, other in zip(found, wanted, strict=True):
        assert one[1]["nsys_version"].startswith(str(year))
        assert "nccl_version" not in one[1]  # schemas were not exported then
        assert one[2:] == other[2:]
    note = f"nsys {year} does not export the sizes of NCCL's calls: export with a newer one and --include-blobs=true"
    assert note in read(tmp_path / "o.sqlite")[0].health.notes


@pytest.mark.parametrize(
    ("nccl", "said"),
    [
        ((2, 21, 5), "2.16 to 2.22"),
        ((2, 24, 3), "2.23 to 2.25"),
        ((2, 26, 2), "2.26"),
        ((2, 27, 3), "2.27"),
        ((2, 28, 9), "2.28.7 to 2.28.9"),
        ((2, 30, 7), "2.29 or 2.30"),
    ],
)
def test_schemas_date_nccl_even_without_payloads(nccl: tuple[int, ...], said: str, tmp_path: Path) -> None:
    trace = read(report(payload=None, nccl=nccl).sqlite(tmp_path / "report.sqlite"))[0]
    assert trace.metadata["nccl_version"] == said


@pytest.mark.parametrize(
    "table", ["CUPTI_ACTIVITY_KIND_MEMCPY", "CUPTI_ACTIVITY_KIND_RUNTIME", "ThreadNames", "PROCESSES"]
)
def test_a_table_without_rows_is_not_there(table: str, tmp_path: Path) -> None:
    export = report()
    del export.tables[table]
    traces = read(export.sqlite(tmp_path / "report.sqlite"))
    assert [trace.comm_records.num_rows for trace in traces] == [1, 1]
    assert [trace.gpu_events.num_rows for trace in traces] == [3 if "MEMCPY" in table else 4] * 2


def test_columns_may_be_missing(tmp_path: Path) -> None:
    export = report()
    for row in export.tables["CUPTI_ACTIVITY_KIND_KERNEL"]:
        del row["graphNodeId"], row["streamId"], row["demangledName"]
    trace = read(export.sqlite(tmp_path / "report.sqlite"))[0]
    assert trace.gpu_events.column("stream").to_pylist()[:2] == [None, None]
    assert trace.gpu_events.column("name").to_pylist()[0] == GEMM  # the short name


def test_the_domain_may_be_missing(tmp_path: Path) -> None:
    """In files cut out of others: the names of the functions tell."""
    export = report()
    export.tables["NVTX_EVENTS"] = [row for row in export.tables["NVTX_EVENTS"] if row["eventType"] != 75]
    trace = read(export.sqlite(tmp_path / "report.sqlite"))[0]
    assert trace.comm_records.column("message_bytes").to_pylist() == [1 << 20]


def test_times_are_nanoseconds_since_the_epoch(tmp_path: Path) -> None:
    trace = read(report().sqlite(tmp_path / "report.sqlite"))[0]
    assert trace.gpu_events.column("ts_ns").to_pylist()[0] == 1_767_225_600_000_002_000
    assert trace.metadata["baseTimeNanoseconds"] == 1_767_225_600_000_000_000


@pytest.mark.parametrize(
    ("settings", "first"),
    [
        ({"EXPORT_PARAM_TIME_NORMALIZE": "true"}, 2000),  # already since the epoch
        ({"EXPORT_PARAM_TIME_SHIFT": "500"}, 1_767_225_600_000_001_500),
        ({"EXPORT_PARAM_TIME_NORMALIZE": "true", "EXPORT_PARAM_TIME_SHIFT": "-100"}, 2100),
    ],
)
def test_times_that_the_export_moved(settings: dict[str, str], first: int, tmp_path: Path) -> None:
    export = report()
    for name, value in settings.items():
        export.add("META_DATA_EXPORT", name=name, value=value)
    trace = read(export.sqlite(tmp_path / "report.sqlite"))[0]
    assert trace.gpu_events.column("ts_ns").to_pylist()[0] == first


def test_without_a_session_times_have_an_origin_of_their_own(tmp_path: Path) -> None:
    export = report()
    del export.tables["TARGET_INFO_SESSION_START_TIME"]
    trace = read(export.sqlite(tmp_path / "report.sqlite"))[0]
    assert trace.gpu_events.column("ts_ns").to_pylist()[0] == 2000
    assert "baseTimeNanoseconds" not in trace.metadata


def test_copies_and_fills_have_cuptis_names(tmp_path: Path) -> None:
    export = Export()
    owner = export.process(500)
    export.copy(owner, 10, 100, 200, 64, srcDeviceId=0, dstDeviceId=1)
    export.copy(owner, 8, 300, 400, 64, srcDeviceId=0, dstDeviceId=0)
    export.copy(owner, 8, 500, 600, 64, srcDeviceId=0, dstDeviceId=1)
    export.copy(owner, 2, 700, 800, 64, dstKind=0)
    rows = read(export.sqlite(tmp_path / "report.sqlite"))[0].gpu_events.select(["kind", "name", "bytes"]).to_pylist()
    peer = "Memcpy PtoP (Device -> Device)"
    names = [peer, "Memcpy DtoD (Device -> Device)", peer, "Memcpy DtoH (Device -> Pageable)"]
    assert rows == [{"kind": "memcpy", "name": name, "bytes": 64} for name in names]


def test_a_directory_stands_for_its_reports_each_once(tmp_path: Path) -> None:
    export = report()
    export.sqlite(tmp_path / "a" / "r0.sqlite") if (tmp_path / "a").mkdir() is None else None
    export.parquet(tmp_path / "a" / "r0_pqtdir")
    export.parquet(tmp_path / "a" / "r1_pqtdir")
    (tmp_path / "a" / "r0.nsys-rep").write_bytes(b"\x00binary")
    (tmp_path / "a" / "notes.txt").write_text("hello")
    found = expand([tmp_path / "a"])
    assert [Path(path).name for path in found.paths] == ["r0.sqlite", "r1_pqtdir"]
    assert any("r0_pqtdir was left out: another export of the same report" in note for note in found.notes)
    assert expand([tmp_path / "a" / "r1_pqtdir"]).paths == (str(tmp_path / "a" / "r1_pqtdir"),)


def test_a_directory_of_other_parquet_files_is_none(tmp_path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    pq.write_table(pa.table({"x": [1]}), tmp_path / "data.parquet")
    with pytest.raises(InputError, match="no traces in this directory"):
        expand([tmp_path])
