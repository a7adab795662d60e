"""Bytes: compressed, cut, damaged, growing without bound, or not there."""

from __future__ import annotations

import gzip
import importlib
import io
import lzma
import random
import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
import zstandard

from parsers import read
from parsers.decompress import Fault
from parsers.errors import InputError
from parsers.source import Limits, Source, open_source, peek

DATA = b'{"traceEvents":[' + b",".join(b'{"ph":"X","ts":%d}' % number for number in range(60_000))


def drain(source: Source, step: int = 100_000) -> bytes:
    buffer = memoryview(bytearray(step))
    out = bytearray()
    while size := source.readinto(buffer):
        out += buffer[:size]
    return bytes(out)


@pytest.fixture
def stored(tmp_path: Path) -> Callable[[bytes], tuple[bytes, list[Fault]]]:
    def run(data: bytes) -> tuple[bytes, list[Fault]]:
        path = tmp_path / "file"
        path.write_bytes(data)
        with open_source(path) as source:
            return drain(source), source.faults

    return run


COMPRESS: dict[str, Callable[[bytes], bytes]] = {
    "plain": bytes,
    "gzip": gzip.compress,
    "zstd": zstandard.ZstdCompressor().compress,
    "xz": lzma.compress,
}


@pytest.mark.parametrize("kind", sorted(COMPRESS))
def test_every_compression_gives_the_same_bytes(kind: str, stored: Callable[..., tuple[bytes, list[Fault]]]) -> None:
    assert stored(COMPRESS[kind](DATA)) == (DATA, [])


@pytest.mark.parametrize("kind", ["gzip", "zstd", "xz"])
def test_members_follow_each_other(kind: str, stored: Callable[..., tuple[bytes, list[Fault]]]) -> None:
    pack = COMPRESS[kind]
    assert stored(pack(DATA) + pack(b"more") + pack(b"") + pack(DATA)) == (DATA + b"more" + DATA, [])


def test_zeros_after_gzip_are_padding_but_other_bytes_are_told(
    stored: Callable[..., tuple[bytes, list[Fault]]],
) -> None:
    packed = gzip.compress(DATA)
    assert stored(packed + bytes(700)) == (DATA, [])
    data, faults = stored(packed + b"junk")
    assert data == DATA
    assert faults == [Fault("bytes after the end of the gzip data", len(DATA), cut=False)]


@pytest.mark.parametrize("kind", ["gzip", "zstd", "xz"])
@pytest.mark.parametrize("share", [0.02, 0.3, 0.7, 0.999])
def test_a_cut_stream_gives_what_it_holds(
    kind: str, share: float, stored: Callable[..., tuple[bytes, list[Fault]]]
) -> None:
    noise = random.Random(1).randbytes(400_000).hex().encode()
    packed = COMPRESS[kind](noise)
    data, faults = stored(packed[: int(len(packed) * share)])
    assert noise.startswith(data)
    assert len(data) >= (share * 0.5 * len(noise) if kind == "gzip" else 0)
    assert [(fault.message, fault.cut) for fault in faults] == [(f"{kind} data cut off", True)]
    assert faults[0].at_byte == len(data)


@pytest.mark.parametrize("tail", [5, 1])
def test_a_wrong_checksum_loses_nothing(tail: int, stored: Callable[..., tuple[bytes, list[Fault]]]) -> None:
    packed = bytearray(gzip.compress(DATA))
    packed[-tail] ^= 0xFF
    data, faults = stored(bytes(packed))
    assert data == DATA
    assert len(faults) == 1
    assert not faults[0].cut


def test_damaged_deflate_gives_every_byte_before_the_damage(stored: Callable[..., tuple[bytes, list[Fault]]]) -> None:
    packed = bytearray(gzip.compress(DATA, 6))
    middle = len(packed) // 2
    packed[middle : middle + 40] = b"\xff" * 40
    data, faults = stored(bytes(packed))
    alike = next((at for at, (a, b) in enumerate(zip(data, DATA, strict=False)) if a != b), min(len(data), len(DATA)))
    assert alike > len(DATA) * 0.4
    assert len(faults) == 1


def test_reading_without_isal_gives_the_same(
    monkeypatch: pytest.MonkeyPatch, stored: Callable[..., tuple[bytes, list[Fault]]]
) -> None:
    monkeypatch.setattr("parsers.source.importlib.import_module", _absent)
    assert stored(gzip.compress(DATA)) == (DATA, [])


def _absent(name: str) -> object:
    raise ImportError(name)


@pytest.mark.parametrize("kind", ["gzip", "zstd", "xz"])
def test_a_bomb_is_refused(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "bomb"
    path.write_bytes(COMPRESS[kind](bytes(40_000_000)))
    limits = Limits(max_ratio=100, ratio_free_bytes=1 << 20)
    with (
        pytest.raises(InputError, match=r"times its size.* when decompressed") as caught,
        open_source(path, limits) as source,
    ):
        drain(source)
    assert str(path) in str(caught.value)


def test_the_absolute_cap_holds_at_any_ratio(tmp_path: Path) -> None:
    path = tmp_path / "big.gz"
    path.write_bytes(gzip.compress(random.Random(2).randbytes(3_000_000)))
    with pytest.raises(InputError, match="grows to more than"), open_source(path, Limits(max_bytes=1 << 20)) as source:
        drain(source)


def test_a_real_trace_s_ratio_is_allowed(tmp_path: Path) -> None:
    path = tmp_path / "steps.json.gz"
    path.write_bytes(gzip.compress(DATA * 20))
    with open_source(path) as source:
        assert drain(source) == DATA * 20


def test_no_thread_is_left_behind(tmp_path: Path) -> None:
    path = tmp_path / "a.gz"
    path.write_bytes(gzip.compress(random.Random(3).randbytes(4_000_000)))
    source = open_source(path)
    assert any(thread.name == "commlens-read-ahead" for thread in threading.enumerate())
    source.close()
    assert all(thread.name != "commlens-read-ahead" for thread in threading.enumerate())


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda path: None, "no such file"),
        (lambda path: path.write_bytes(b""), "the file is empty"),
        (lambda path: path.mkdir(), "is a directory"),
    ],
)
def test_what_cannot_be_opened_is_told_in_one_line(
    tmp_path: Path, make: Callable[[Path], object], message: str
) -> None:
    path = tmp_path / "x.json"
    make(path)
    with pytest.raises(InputError) as caught:
        open_source(path)
    assert message in str(caught.value)
    assert str(caught.value).startswith(str(path))


def test_a_url_needs_fsspec(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("parsers.source.importlib.import_module", _absent)
    with pytest.raises(InputError, match="fsspec") as caught:
        open_source("s3://bucket/rank0.json")
    assert "pip install" in str(caught.value)


def test_peek_reads_the_beginning_only(tmp_path: Path) -> None:
    path = tmp_path / "a.gz"
    path.write_bytes(gzip.compress(DATA))
    assert peek(path, 1000) == DATA[:1000]


def test_a_url_is_read_like_a_file(monkeypatch: pytest.MonkeyPatch) -> None:
    class Opened:
        def __init__(self, name: str) -> None:
            self.name = name

        def open(self) -> io.BytesIO:
            if self.name != "mem://a":
                raise FileNotFoundError(self.name)
            return io.BytesIO(gzip.compress(DATA))

    fsspec = SimpleNamespace(open=lambda name, mode, compression: Opened(name))
    real = importlib.import_module
    monkeypatch.setattr(
        "parsers.source.importlib.import_module", lambda name: fsspec if name == "fsspec" else real(name)
    )
    with open_source("mem://a") as source:
        assert drain(source) == DATA
    with pytest.raises(InputError, match="no such file"):
        open_source("mem://b")


def test_a_fault_of_the_store_reaches_the_notes(tmp_path: Path) -> None:
    text = b'{"traceEvents":[' + b",".join([b'{"ph":"X","cat":"kernel","name":"k","ts":1,"dur":1}'] * 9000)
    path = tmp_path / "rank0.json.gz"
    packed = gzip.compress(text + b"]}")
    path.write_bytes(packed[: len(packed) * 9 // 10])
    (trace,) = read(path)
    assert not trace.health.complete
    assert any(note.startswith("gzip data cut off after") for note in trace.health.notes)
    assert trace.gpu_events.num_rows > 5000
