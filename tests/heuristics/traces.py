"""Traces made by hand, event by event, as a parser would deliver them. Times are in microseconds, unless told else."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from parsers import tables
from parsers.tables import Health, RankIdentity, RankTrace

MAIN, AUTOGRAD = 100, 200
"""Two CPU threads."""


class TraceMaker:
    """Collects events; `done` turns them into a `RankTrace`. Times are given in units of ``unit_ns``."""

    def __init__(
        self, rank: int = 0, world_size: int = 8, groups: dict[str, list[int]] | None = None, unit_ns: int = 1000
    ) -> None:
        self.rank, self.world_size, self.unit_ns = rank, world_size, unit_ns
        self.gpu: list[dict[str, Any]] = []
        self.records: list[dict[str, Any]] = []
        self.launches: list[dict[str, Any]] = []
        self.marks: list[dict[str, Any]] = []
        self.steps: list[dict[str, Any]] = []
        self.groups = [
            {"name": name, "size": len(ranks), "ranks": ranks, "ranks_source": "pg_config", "declared": True}
            for name, ranks in (groups or {}).items()
        ]
        self.correlation = 0

    def step(self, number: int, start: float, length: float) -> None:
        """A `ProfilerStep#` mark."""
        self.steps.append({"number": number, **self._time(start, length)})
        self.mark("step", f"ProfilerStep#{number}", start, length)

    def mark(self, kind: str, name: str, start: float, length: float, tid: int = MAIN) -> None:
        """Something that the CPU says about the step."""
        self.marks.append({"kind": kind, "name": name, "tid": tid, **self._time(start, length)})

    def record(self, layer: str, name: str, start: float, length: float, tid: int | None = MAIN, **more: Any) -> None:
        """Something that says what is communicated."""
        self.records.append({"layer": layer, "name": name, "tid": tid, **self._time(start, length), **more})

    def metadata(self, collective: str, start: float, length: float, tid: int = MAIN, **more: Any) -> None:
        """`record_param_comms` with its arguments."""
        self.record("record_param_comms", "record_param_comms", start, length, tid, collective=collective, **more)

    def kernel(
        self,
        name: str,
        start: float,
        length: float,
        stream: int = 7,
        *,
        launch: float | None = None,
        tid: int = MAIN,
        kind: str = "kernel",
        correlation: int | None = None,
        graph: int | None = None,
        arguments: dict[str, Any] | None = None,
    ) -> None:
        """A GPU event, with its launch where ``launch`` is given, and with a copy of a collective's arguments."""
        if correlation is None:
            self.correlation += 1
            correlation = self.correlation
        if launch is not None:
            self.launches.append({"tid": tid, "correlation": correlation, **self._time(launch, 2)})
        where = {"device": 0, "stream": stream, "correlation": correlation}
        if arguments is not None:
            row = {"layer": "kernel", "name": name, "gpu_event": len(self.gpu), **where, **arguments}
            self.records.append({**row, **self._time(start, length)})
        self.gpu.append({"kind": kind, "name": name, "graph": graph, **where, **self._time(start, length)})

    def done(self, **more: Any) -> RankTrace:
        """The trace."""
        return RankTrace(
            path="made by hand",
            format="kineto",
            identity=RankIdentity(rank=self.rank, rank_source="metadata", world_size=self.world_size),
            gpu_events=pa.Table.from_pylist(self.gpu, schema=tables.GPU_EVENTS),
            comm_records=pa.Table.from_pylist(self.records, schema=tables.COMM_RECORDS),
            launches=pa.Table.from_pylist(self.launches, schema=tables.LAUNCHES),
            cpu_marks=pa.Table.from_pylist(self.marks, schema=tables.CPU_MARKS),
            steps=pa.Table.from_pylist(self.steps, schema=tables.STEPS),
            groups=pa.Table.from_pylist(self.groups, schema=tables.GROUPS),
            **{"health": Health(), **more},
        )

    def _time(self, start: float, length: float) -> dict[str, int]:
        return {"ts_ns": round(start * self.unit_ns), "dur_ns": round(length * self.unit_ns)}
