from __future__ import annotations

from pathlib import Path

import pytest

from tests.analyzer.time_files import GEMM, Writer, analysed


def job(sizes: list[int], latency: float, gbps: float) -> list[Writer]:
    """All-reduces of 4 ranks in bfloat16: a rank sends 2·3/4 of the payload; rank 1 is 400 us late."""
    ranks = []
    for r in range(4):
        rank = Writer(r, 4)
        for n in range(3):
            b = 1_000.0 + n * 100_000
            rank.step(n, b, 100_000)
            for i, elements in enumerate(sizes):
                at = b + 100 + i * 9_000
                late = 400.0 if r == 1 else 0.0
                rank.kernel(GEMM, at, 50)
                moving = latency + 1.5 * 2 * elements / (gbps * 1_000)
                rank.collective("allreduce", at + 60 + late, 400 - late + moving, elements)
        ranks.append(rank)
    return ranks


@pytest.mark.parametrize(("latency", "gbps"), [(20.0, 150.0), (55.0, 40.0)])
def test_latency_and_bandwidth_come_out_of_varying_payloads(tmp_path: Path, latency: float, gbps: float) -> None:
    found = analysed(tmp_path, job([100_000, 1_000_000, 4_000_000, 20_000_000], latency, gbps))
    (fit,) = (f for f in found.findings if f.id == "link.speed")
    assert f"{latency:.1f} µs + bytes / {gbps:.1f} GB/s" in fit.title


def test_one_payload_tells_no_latency(tmp_path: Path) -> None:
    found = analysed(tmp_path, job([4_000_000] * 4, 20.0, 150.0))
    assert "link.speed" not in {f.id for f in found.findings}
