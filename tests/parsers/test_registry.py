"""Which format a file has: told from what is in it."""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest
from click.testing import CliRunner

from analyzer.cli import main
from parsers import read
from parsers.errors import InputError
from parsers.known_formats import KNOWN, PROVES
from parsers.registry import formats
from parsers.source import peek

SAMPLES = {
    "flight_recorder": "flight_recorder/nvrx_megatron16/gpu_error_1st/_dump_3",
    "nccl_log": "nccl_logs/nccl2.22.3_h200_1node_nvlink_retinanet.log",
    "nccl_inspector": "nccl_inspector/inspector_v4.3_synthetic.jsonl",
    "nccl_profiler": "nccl_profiler_plugin/example_profiler_2.28_README_trace.txt",
    "deepspeed_log": "deepspeed/comms_logger_summary.txt",
    "execution_trace": "chakra/small_chakra.0.json",
}


@pytest.mark.parametrize("name", SAMPLES)
def test_a_wrong_extension_does_not_matter(shared: Path, tmp_path: Path, name: str) -> None:
    data = (shared / "data/formats" / SAMPLES[name]).read_bytes()
    for extension, content in (
        (".png", data),
        (".sqlite", data),
        (".txt.gz", gzip.compress(data)),
        ("", gzip.compress(data)),
    ):
        path = tmp_path / f"sample{extension}"
        path.write_bytes(content)
        assert {trace.format for trace in read(path)} == {name}


ALL = {
    "nsys": (
        "nsys_synthetic/one_report_4proc_2026.2_nccl2.28_blob.sqlite",
        "nsys_synthetic/one_report_4proc_2023.4_nccl2.21_nopayload.sqlite",
        "nsys_own_capture/nsys2023.4_cap_old_json_excerpt.json",
        "nsys_stats_csv/mfu_2gpu_before_cuda_kern_exec_trace.csv.gz",
    ),
    "nccl_log": (
        "nccl_logs/nccl2.18.5_h200_2node_roce_bert.log",
        "nccl_logs/rccl2.22.3_mi300x_2node_llama2_70b_lora.log.gz",
    ),
    "nccl_inspector": (
        "nccl_inspector/inspector_v4.0_real_line.jsonl",
        "nccl_inspector/inspector_v4.0_readme_examples.jsonl",
    ),
    "nccl_profiler": (
        "nccl_profiler_plugin/comma_doc_sample.json",
        "nccl_profiler_plugin/example_profiler_2.26_README_trace.txt",
    ),
    "deepspeed_log": ("deepspeed/comms_logger_verbose.txt", "deepspeed/comms_logger_summary_debug.txt"),
}
"""Further forms of the formats."""


@pytest.mark.parametrize(("name", "sample"), [(name, sample) for name, samples in ALL.items() for sample in samples])
def test_every_form_is_told_from_its_content(shared: Path, tmp_path: Path, name: str, sample: str) -> None:
    data = (shared / "data/formats" / sample).read_bytes()
    data = gzip.decompress(data) if sample.endswith(".gz") else data
    wanted = sum(trace.comm_records.num_rows for trace in read(shared / "data/formats" / sample))
    for extension, content in ((".pdf", data), (".json", data), ("", gzip.compress(data))):
        path = tmp_path / f"sample{extension}"
        path.write_bytes(content)
        traces = read(path)
        assert {trace.format for trace in traces} == {name}
        assert sum(trace.comm_records.num_rows for trace in traces) == wanted


def test_kineto_and_summaries_are_told_from_their_content(sample_traces: Path, tmp_path: Path) -> None:
    trace = sample_traces / "ddp4" / "rank0.json.gz"
    for name, content in (("a.log", gzip.decompress(trace.read_bytes())), ("b.sqlite", trace.read_bytes())):
        (tmp_path / name).write_bytes(content)
        assert [one.format for one in read(tmp_path / name)] == ["kineto"]
    result = CliRunner().invoke(main, ["summarize", str(trace), "-o", str(tmp_path / "c.json"), "-q"])
    assert result.exit_code == 0
    result = CliRunner().invoke(main, ["run", str(tmp_path / "c.json"), "--format", "json", "-q"])
    assert [one["format"] for one in json.loads(result.stdout)["inputs"]] == ["kineto"]


@pytest.mark.parametrize("content", [b"\x00\x01\x02\x03" * 32, b"once upon a time\n", b"GIF89a" + bytes(64)])
def test_the_command_says_unknown_content_in_one_line(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "rank0.json"
    path.write_bytes(content)
    result = CliRunner().invoke(main, ["run", str(path)])
    assert result.exit_code == 2
    assert result.stderr.count("\n") == 1
    assert result.stdout == ""
    assert f"{path}: is not a trace in a known format" in result.stderr


@pytest.mark.parametrize(("name", "mode"), [("job.tar", "w"), ("job.tar.gz", "w:gz"), ("job.tar.xz", "w:xz")])
def test_an_archive_is_to_be_unpacked(tmp_path: Path, name: str, mode: str) -> None:
    (tmp_path / "rank0.json").write_text('{"traceEvents": []}')
    with tarfile.open(tmp_path / name, mode) as archive:
        archive.add(tmp_path / "rank0.json", "rank0.json")
    with pytest.raises(InputError, match="is a tar archive; unpack it and give what is in it"):
        read(tmp_path / name)


def test_a_zip_is_to_be_unpacked(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "job.zip", "w") as archive:
        archive.writestr("rank0.json", '{"traceEvents": []}')
    with pytest.raises(InputError, match="is a zip archive; unpack it"):
        read(tmp_path / "job.zip")


def test_hdf5_names_the_export_that_is_read(tmp_path: Path) -> None:
    path = tmp_path / "report.h5"
    path.write_bytes(b"\x89HDF\r\n\x1a\n" + bytes(512))
    with pytest.raises(InputError, match=r"is HDF5, which is not read; .*nsys export --type sqlite") as caught:
        read(path)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "content",
    [
        b"\x89PNG\r\n\x1a\n" + bytes(64),
        b"just some text about NCCL INFO lines\n",
        b"\x80\x04K\x01.",
        bytes(64),
        b"%PDF-1.7\n",
    ],
)
def test_unknown_content_is_one_line_that_names_the_formats(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "rank0.json"
    path.write_bytes(content)
    with pytest.raises(InputError, match="not a trace in a known format") as caught:
        read(path)
    assert "\n" not in str(caught.value)
    for known in ("kineto", *SAMPLES):
        assert known in str(caught.value)


def test_every_sample_is_claimed_by_its_own_format_first(shared: Path) -> None:
    for name, sample in SAMPLES.items():
        head = peek(shared / "data/formats" / sample)
        assert next(known.name for known in formats() if known.sniff(head)) == name


def test_every_format_says_what_it_can_prove() -> None:
    assert len({known.name for known in KNOWN}) == len(KNOWN)
    for known in formats():
        assert len(known.known.proves) == len(PROVES)
        assert known.known.detected_by
        assert callable(known.parser.sniff)
        assert callable(known.parser.read)


def test_the_quick_refusal_never_contradicts_a_parser(shared: Path, sample_traces: Path) -> None:
    files = [*(shared / "data/formats").rglob("*"), *sample_traces.rglob("*.json.gz")]
    claimed: set[str] = set()
    for path in (file for file in files if file.is_file() and file.stat().st_size):
        head = peek(path, 1 << 19)
        for known in formats():
            assert known.sniff(head) == known.parser.sniff(head), (known.name, path)
            claimed |= {known.name} if known.sniff(head) else set()
    assert claimed == {known.name for known in KNOWN}
    for known in formats():
        assert hasattr(known.parser, "takes") == bool(known.known.suffixes or known.known.directories)


def test_a_trace_is_recognised_without_importing_the_other_parsers(sample_traces: Path) -> None:
    trace = next((sample_traces / "tp2_pp2_dp2").glob("rank0*.json.gz"))
    program = (
        "import sys\n"
        "from parsers import read\n"
        "read(sys.argv[1])\n"
        "print(*(name for name in sys.modules if name.startswith('parsers.')))"
    )
    run = subprocess.run([sys.executable, "-c", program, str(trace)], capture_output=True, text=True, check=True)
    imported = set(run.stdout.split())
    assert "parsers.kineto" in imported
    assert not imported & {known.module for known in KNOWN if known.name != "kineto"}
