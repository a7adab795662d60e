"""How far apart the members of one collective end it in real traces, and what their clocks differ by.

    python -m benchmarks.end_scatter --shared ../shared

Per trace of two ranks or more and kind of call: the k-th call of a kind on one rank is the k-th on the others. Clocks
are set by the median difference of each rank's ends; the transfer is from the start on the last rank to the first end.
The laws in `benchmarks.synthesis.scatter` and `heuristics.kernels_only.ends` are read off this table.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from benchmarks.docs import ROOT
from benchmarks.scoring.run import files
from heuristics.label import label
from parsers import read

if TYPE_CHECKING:
    import numpy.typing as npt

    Spans = tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]

REAL = (
    "megatron_tp8_2024",
    "megatron_tp2_2024",
    "torchtitan_fsdp4_2026",
    "torchrec_mp4",
    "torchrec_resnet_dp2",
    "lightllm_ep8_decode",
    "lightllm_tp8_decode",
    "hta/dlrm_8rank_v100",
)
"""Folders of `data/real` that hold all ranks of one job, or several."""

PAX = "formats/nsys_jax/pax_fsdp4_4proc"
LONG_US = 50.0
"""Transfers from here on carry enough for a share of them to show over the microsecond or two of any call."""


@dataclass(frozen=True)
class Scatter:
    """What one kind of call shows, in microseconds; shapes (calls,), but clocks per rank."""

    job: str
    kind: str
    transfer_us: npt.NDArray[np.float64]
    last_us: npt.NDArray[np.float64]  # of the last member, from the first
    clocks_us: npt.NDArray[np.float64]


def measured(job: str, kind: str, spans: Sequence[Spans]) -> Scatter | None:
    """The scatter of one kind of call; None if the ranks do not make as many. ``spans``: starts and ends, per rank."""
    if len(spans) < 2 or len({len(starts) for starts, _ in spans}) != 1 or not len(spans[0][0]):
        return None
    starts, ends = (np.stack([one[side] for one in spans]) for side in (0, 1))
    clocks = np.median(ends - ends[0], axis=1)
    starts, ends = starts - clocks[:, None], ends - clocks[:, None]
    return Scatter(
        job, kind, ends.min(axis=0) - starts.max(axis=0), np.ptp(ends, axis=0), clocks - float(np.median(clocks))
    )


def of_folder(job: str, folder: Path) -> Iterator[Scatter]:
    """All kinds of calls of a folder of traces."""
    ranks = [_spans(trace) for file in files(folder) for trace in read(file)]
    for kind in sorted({kind for rank in ranks for kind in rank}):
        found = measured(job, kind, [rank[kind] for rank in ranks if kind in rank])
        if found is not None:
            yield found


def _spans(trace: object) -> Mapping[str, Spans]:
    """Starts and ends in microseconds, per kind of call, in order."""
    table = label(trace).collectives  # type: ignore[arg-type]
    start, took = (np.array(table.column(name).to_pylist(), dtype=np.float64) / 1e3 for name in ("ts_ns", "dur_ns"))
    words = [table.column(name).to_pylist() for name in ("primitive", "dtype", "library")]
    kinds = np.array([" ".join(filter(None, row)) for row in zip(*words, strict=True)])
    found = {}
    for kind in np.unique(kinds):
        rows = np.flatnonzero((kinds == kind) & (took > 0))
        rows = rows[np.argsort(start[rows], kind="stable")]
        found[str(kind)] = (start[rows], start[rows] + took[rows])
    return found


def of_pax(folder: Path) -> Iterator[Scatter]:
    """The NCCL groups of the JAX job, which Nsight Systems projected on the GPU."""
    import pyarrow.parquet as pq

    spans = []
    for file in sorted(folder.glob("proc*/nvtx_gpu_proj_trace/trace.parquet")):
        table = pq.read_table(file, columns=["Name", "Projected Start", "Projected Duration"])
        named = np.array(table.column("Name").to_pylist()) == "NCCL:ncclGroupEnd"
        start, took = (np.array(table.column(i).to_pylist(), dtype=np.float64)[named] / 1e3 for i in (1, 2))
        order = np.argsort(start, kind="stable")
        spans.append((start[order], (start + took)[order]))
    found = measured("pax_fsdp4", "all", spans)
    if found is not None:
        yield found


def rows(found: Scatter) -> Iterator[tuple[str, ...]]:
    """One row for short transfers and one for long ones."""
    clocks = f"{np.ptp(found.clocks_us):.1f}"
    for name, chosen in (("short", found.transfer_us < LONG_US), ("long", found.transfer_us >= LONG_US)):
        if chosen.any():
            last, transfer = found.last_us[chosen], found.transfer_us[chosen]
            middle, most, worst = (f"{v:.1f}" for v in np.quantile(last, [0.5, 0.9, 1.0]))
            shares = [f"{100 * v:.1f} %" for v in np.quantile(last / np.maximum(transfer, 1.0), [0.5, 0.9])]
            shares = shares if name == "long" else ["–", "–"]
            number = str(int(chosen.sum()))
            yield (
                found.job,
                found.kind,
                name,
                number,
                f"{np.median(transfer):.0f}",
                middle,
                most,
                worst,
                *shares,
                clocks,
            )


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.end_scatter", description=__doc__.splitlines()[0])
    parser.add_argument("--shared", type=Path, default=os.environ.get("COMMLENS_SHARED", ROOT.parent / "shared"))
    data = Path(parser.parse_args().shared) / "data"
    print("| job | calls | transfer | number | µs | last one µs | 90 % | most | share | 90 % | clocks µs |")
    print("|---|---|---|---:|---:|---:|---:|---:|---:|---:|---:|")
    found = [scatter for name in REAL for scatter in of_folder(name, data / "real" / name)]
    for scatter in (*found, *of_pax(data / PAX)):
        for row in rows(scatter):
            print("| " + " | ".join(row) + " |")


if __name__ == "__main__":
    main()
