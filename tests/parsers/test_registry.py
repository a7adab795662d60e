"""Which format a file has: told from what is in it."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

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


@pytest.mark.parametrize(
    "content",
    [
        b"\x89PNG\r\n\x1a\n" + bytes(64),
        b"just some text about NCCL INFO lines\n",
        b"PK\x03\x04" + bytes(64),
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
