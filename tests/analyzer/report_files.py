"""Inputs of reports whose every name tries to break out, and a job that hangs."""

from __future__ import annotations

from pathlib import Path

from tests.analyzer.time_files import GEMM, Writer
from tests.parsers.flight_dumps import as_pickle, dump, entry

BIDI = "\u202e"
HOSTILE = f"</script></svg><script>window.hacked=1</script><img src=x onerror=window.hacked=1>\"'{BIDI}gnp.exe`|*$x$"
"""Ends a script, a picture and an attribute, turns the text around, and means something in Markdown and in formulas."""


def hostile_job(folder: Path) -> Path:
    """Two ranks whose kernels, annotations, groups, GPUs and directory are named to break out of a page."""
    place = folder / f"<img src=x onerror=window.hacked=1>{BIDI}"
    place.mkdir(parents=True)
    for rank in range(2):
        writer = Writer(rank, 2)
        for step in range(4):
            at = 10_000 + 1000 * step
            writer.step(step, at, 1000)
            writer.event("user_annotation", f"dataloader {HOSTILE}", at + 1, 300 * rank + 10, 1)
            writer.kernel(GEMM, at + 50 + 300 * rank, 300)
            writer.kernel(f"ncclDevKernel_{HOSTILE}", at + 900, 50, 21)
            writer.collective("allreduce", at + 350 + 300 * rank, 500 - 300 * rank, 1 << 20, group="7")
        text = writer.text().replace("group_7", HOSTILE.replace('"', '\\"')).replace("SYNTH", "A100<b>")
        (place / f"rank{rank}.json").write_text(text)
    return place


def hung_job(folder: Path) -> list[Path]:
    """Dumps of three ranks; rank 2 did not come to the second all-reduce of a group with a hostile name."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for rank in range(3):
        group = ("0", HOSTILE)
        frames = [(f"step {HOSTILE}", "train.py", 5)]
        calls = [entry("all_reduce", 1, group), entry("all_reduce", 2, group, state="started", frames=frames)]
        path = folder / f"trace_rank_{rank}"
        path.write_bytes(
            as_pickle(dump(calls[: 1 if rank == 2 else 2], {"0": (HOSTILE, range(3)), str(rank + 5): ("", (rank,))}))
        )
        paths.append(path)
    return paths
