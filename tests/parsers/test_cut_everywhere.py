"""A real capture cut at every single byte: never a crash, and what is found never gets less as the cut moves right."""

from __future__ import annotations

import gzip
import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from parsers.decompress import Fault, Stored, gunzip
from parsers.errors import InputError
from parsers.kineto import read
from parsers.source import Source

EVENTS = 16


@pytest.fixture(scope="module")
def capture(sample_traces: Path) -> bytes:
    """The first events of a captured rank, in the profiler's own layout."""
    document: dict[str, Any] = json.loads(gzip.decompress((sample_traces / "ddp4" / "rank0.json.gz").read_bytes()))
    document["traceEvents"] = document["traceEvents"][:EVENTS]
    return json.dumps(document).encode()


def events(pieces: list[bytes], faults: list[Fault]) -> int:
    """How many events are read; 0 where the file is refused in one line."""
    said, found = "", 0
    try:
        found = read(Source("rank0.json", (piece for piece in pieces), 0, faults))[0].health.events
    except InputError as error:
        said = str(error)
    assert bool(found) != bool(said)
    assert "\n" not in said
    return found


def test_plain(capture: bytes) -> None:
    found = [events([capture[:cut]], []) for cut in range(1, len(capture) + 1)]
    assert all(before <= after for before, after in pairwise(found))
    assert (found[0], found[-1]) == (0, EVENTS)
    assert set(found) == set(range(EVENTS + 1))


def test_gzip(capture: bytes, tmp_path: Path) -> None:
    packed = gzip.compress(capture, mtime=0)
    path = tmp_path / "cut.gz"
    found = []
    for cut in range(1, len(packed) + 1):
        path.write_bytes(packed[:cut])
        faults: list[Fault] = []
        with path.open("rb") as file:
            found.append(events(list(gunzip(Stored(file, lambda: path.open("rb")), faults)), faults))
        assert bool(faults) == (cut < len(packed))
    assert all(before <= after for before, after in pairwise(found))
    assert (found[0], found[-1]) == (0, EVENTS)
    assert found[-9] == EVENTS  # only the checksum is missing: every event is there
