"""Flight Recorder dumps written down by hand, in the layouts that versions of torch write."""

from __future__ import annotations

import json
import pickle
from collections.abc import Mapping, Sequence
from typing import Any

Frame = tuple[str, str, int]


def entry(
    name: str,
    seq: int,
    group: tuple[str, str] = ("0", "default_pg"),
    *,
    given: Sequence[Sequence[int]] = ((1024,),),
    taken: Sequence[Sequence[int]] | None = None,
    dtype: str = "Float",
    taken_dtype: str | None = None,
    state: str = "completed",
    frames: Sequence[Frame] = (),
    **more: Any,
) -> dict[str, Any]:
    """One entry as torch 2.5 to 2.13 write it; ``name`` without the library."""
    p2p = name.startswith(("send", "recv"))
    taken = given if taken is None else taken
    return {
        "record_id": seq,
        "pg_id": int(group[0]) if group[0].isdigit() else 0,
        "process_group": group,
        "collective_seq_id": 0 if p2p else seq,
        "p2p_seq_id": seq if p2p else 0,
        "op_id": seq,
        "profiling_name": f"nccl:{name}",
        "time_created_ns": 1_700_000_000_000_000_000 + seq * 1000,
        "input_sizes": [list(shape) for shape in given],
        "input_dtypes": [dtype] * len(given),
        "output_sizes": [list(shape) for shape in taken],
        "output_dtypes": [taken_dtype or dtype] * len(taken),
        "state": state,
        "time_discovered_started_ns": None,
        "time_discovered_completed_ns": None,
        "retired": state == "completed",
        "timeout_ms": 600_000,
        "is_p2p": p2p,
        "frames": [{"name": n, "filename": f, "line": line} for n, f, line in frames],
        **more,
    }


def dump(
    entries: Sequence[Mapping[str, Any]],
    groups: Mapping[str, tuple[str, Sequence[int]]],
    *,
    version: str = "2.10",
    status: Mapping[int, tuple[int, int, int]] | None = None,
) -> dict[str, Any]:
    """A dump: groups are name -> (description, ranks), status is pg_id -> (enqueued, started, completed)."""
    words = ("last_enqueued_collective", "last_started_collective", "last_completed_collective")
    return {
        "version": version,
        "comm_lib_version" if version == "2.10" else "nccl_version": "2.27.5",
        "pg_config": {n: {"name": n, "desc": d, "ranks": str(list(r))} for n, (d, r) in groups.items()},
        "pg_status": {str(number): dict(zip(words, said, strict=True)) for number, said in (status or {}).items()},
        "entries": [dict(e) for e in entries],
    }


def as_pickle(document: Any) -> bytes:
    """Protocol 2, as the C++ pickler writes it."""
    return pickle.dumps(document, 2)


def as_json(document: Mapping[str, Any]) -> bytes:
    """As ``dump_json`` writes it: no stacks, numbers of the status as text, 0 for times that are not known."""
    status = {n: {k: str(v) for k, v in said.items()} for n, said in document["pg_status"].items()}
    entries = [
        {
            key: 0 if value is None else list(value) if isinstance(value, tuple) else value
            for key, value in said.items()
            if key != "frames"
        }
        for said in document["entries"]
    ]
    return json.dumps({**document, "pg_status": status, "entries": entries}, sort_keys=True).encode()
