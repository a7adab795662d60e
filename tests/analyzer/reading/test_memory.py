"""What a process that reads many files does with the memory that each of them frees."""

from __future__ import annotations

import subprocess
import sys

import pytest

from analyzer.reading.memory import keep_freed_memory

_FAULTS = """
import resource
from analyzer.reading.memory import keep_freed_memory
if {keep}:
    keep_freed_memory()
def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(20):
        blocks = [bytearray(2 << 20) for _ in range(4)]
        del blocks
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
faults()
print(faults())
"""


def _faults(keep: bool) -> int:
    done = subprocess.run([sys.executable, "-c", _FAULTS.format(keep=keep)], capture_output=True, text=True, check=True)
    return int(done.stdout)


@pytest.mark.skipif(sys.platform != "linux", reason="mallopt is of glibc")
def test_memory_of_one_file_serves_the_next() -> None:
    # 20 times 8 MiB are 40,960 pages of 4 KiB.
    assert _faults(keep=True) < 1_000


def test_other_systems_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str | None] = []

    def without_mallopt(name: str | None) -> object:
        asked.append(name)
        return object()

    monkeypatch.setattr("ctypes.CDLL", without_mallopt)
    monkeypatch.setattr(sys, "platform", "darwin")
    keep_freed_memory()
    assert asked == []
    monkeypatch.setattr(sys, "platform", "linux")  # musl: another C library
    keep_freed_memory()
    assert asked == [None]
