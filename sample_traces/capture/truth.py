"""The files that say what a captured job really was: ``truth.json``, and the table made from all of them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

DEGREES = ("tp", "cp", "pp", "dp", "ep")

_ABOUT = """# Sample traces

Small jobs with a known parallel layout, run with PyTorch on CPU processes that talk over gloo and traced with the
PyTorch profiler. Every folder holds one job: `rank{r}.json.gz`, the Kineto trace of each rank, and `truth.json`, what
the job really was. They are the first thing to try:

```
analyze sample_traces/tp2_pp2_dp2
```

"""

_MEANING = """
`N` is the number of parameters, `m` the number of micro-batches. "ZeRO" is the stage that the traffic shows.

## What the files hold

* The traces are genuine: real programs, real collectives, real order and sizes. Durations are those of four or eight
  processes sharing a small machine; they say nothing about hardware.
* `record_param_comms` events carry the collective metadata that NCCL traces have. Gloo writes none of its own, so the
  jobs run on a backend that calls PyTorch's recording macro and passes every call on to gloo
  (`capture/recorder.cpp`). `ddp4_raw` is the same job as `ddp4` without it.
* `capture/trim.py` says what was left out to make the files small: operators inside kept operators, the shortest
  operators up to 2 % of operator time, arguments of operators that do not communicate, and the names of the machine.
* `observed_per_step` in `truth.json` lists, per rank, every distinct collective with its group, elements in and out,
  type, peer and number per step. It does not come from the traces: each job runs twice from the same seed, once under
  the profiler and once under a dispatch mode that reads the calls off PyTorch's dispatcher (`capture/counter.py`).

## Making them again

```
pip install -e '.[capture]'                      # PyTorch; a C++ compiler must be there
python -m sample_traces.capture --list
python -m sample_traces.capture tp4 --out /tmp/traces
python -m sample_traces.capture --readme         # this file
python -m sample_traces.capture.check            # the divided programs against one process
```
"""


def dump(facts: dict[str, Any]) -> str:
    """``truth.json`` with a line per fact and per row of ``observed_per_step``, so that differences can be read."""
    observed = facts["observed_per_step"]
    lines = [f" {json.dumps(key)}: {json.dumps(value)}," for key, value in facts.items() if key != "observed_per_step"]
    ranks = []
    for rank, rows in observed.items():
        body = ",\n".join(f"   {json.dumps(row)}" for row in rows)
        ranks.append(f"  {json.dumps(rank)}: [\n{body}\n  ]")
    inside = ",\n".join(ranks)
    return "\n".join(["{", *lines, f' "observed_per_step": {{\n{inside}\n }}', "}", ""])


def layout_name(truth: dict[str, Any]) -> str:
    """Degrees greater than one: ``tp2-pp2-dp2``."""
    return "-".join(f"{key}{truth[key]}" for key in DEGREES if truth[key] > 1)


def _traits(truth: dict[str, Any]) -> Iterator[str]:
    if truth["sp"]:
        yield "SP"
    if truth["cp_kind"]:
        yield truth["cp_kind"]
    if truth["schedule"]:
        virtual = f", {truth['vp']} chunks" if truth["vp"] > 1 else ""
        yield f"{truth['schedule'].replace('_', ' ')}{virtual}"
    if truth["hsdp_shard"]:
        yield f"HSDP {truth['hsdp_replicate']} x {truth['hsdp_shard']}"
    if not truth["param_comms"]:
        yield "no metadata"


def _row(folder: Path, truth: dict[str, Any]) -> str:
    size = sum(file.stat().st_size for file in folder.iterdir())
    calls = sum(
        row["calls_per_step"] if isinstance(row["calls_per_step"], int) else sum(row["calls_per_step"]) / truth["steps"]
        for row in truth["observed_per_step"]["0"]
    )
    cells = (
        f"`{truth['case']}`",
        truth["world_size"],
        layout_name(truth),
        ", ".join(_traits(truth)) or "-",
        truth["zero_by_traffic"],
        truth["microbatches"],
        truth["layers"],
        truth["hidden"],
        f"{truth['params']:,}",
        f"{calls:.0f}",
        f"{size / 1000:.0f}",
        truth["about"],
    )
    return "| " + " | ".join(str(cell) for cell in cells) + " |"


def readme(folder: Path) -> str:
    """The text of ``README.md``: the table of the cases under `folder`, by name."""
    head = [
        "case",
        "ranks",
        "layout",
        "traits",
        "ZeRO",
        "m",
        "layers",
        "hidden",
        "N",
        "calls/step of rank 0",
        "kB",
        "what runs",
    ]
    align = [":---", "---:", ":---", ":---", *["---:"] * 7, ":---"]
    rows = [
        _row(path.parent, json.loads(path.read_text(encoding="utf-8"))) for path in sorted(folder.glob("*/truth.json"))
    ]
    table = ["| " + " | ".join(line) + " |" for line in (head, align)]
    return _ABOUT + "\n".join([*table, *rows, ""]) + _MEANING
