"""From a spec to a folder: ``rank<r>.json.gz`` and ``truth.json``."""

from __future__ import annotations

import gc
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from benchmarks.synthesis.faults import Fault, injected, slowed
from benchmarks.synthesis.frameworks import program
from benchmarks.synthesis.groups import Mesh
from benchmarks.synthesis.kineto import Writer
from benchmarks.synthesis.links import Links
from benchmarks.synthesis.program import Program
from benchmarks.synthesis.simulate import Simulator, Timeline
from benchmarks.synthesis.spec import Spec, Writing
from benchmarks.synthesis.truth import truth

ALL_UP_TO = 64
"""Worlds that are simulated whole; of larger ones the written ranks and the pipelines they belong to."""


@dataclass(frozen=True)
class Job:
    """A simulated job: it can be written at several metadata levels."""

    spec: Spec
    programs: Mapping[int, Program]
    timelines: Mapping[int, Timeline]
    written: tuple[int, ...]

    def write(self, folder: Path | str, writing: Writing | None = None) -> Path:
        """Write the traces and the truth; ``writing`` may differ in level, marks and time format from the spec's."""
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        writing = writing or self.spec.writing
        for rank in self.written:
            Writer(self.spec, self.programs[rank], self.timelines[rank], writing).write(folder)
        answer = truth(replace(self.spec, writing=writing), folder.name, self.programs, self.written)
        (folder / "truth.json").write_text(json.dumps(answer, indent=1) + "\n")
        return folder


def simulate(spec: Spec, faults: Sequence[Fault] = ()) -> Job:
    """Run a job; faults may also be named by the option ``fault`` (`faults.Fault.parse`)."""
    faults = (*faults, *(Fault.parse(text) for text in str(spec.option("fault", "")).split(",") if text))
    written = tuple(range(spec.world)) if spec.ranks is None else tuple(sorted(set(spec.ranks)))
    with _no_collection():
        programs = {rank: program(spec, rank) for rank in sorted(_company(spec, written))}
        if faults:
            programs = injected(programs, spec, faults)
        timelines = Simulator(programs, spec, slowed(Links(spec.gpus_per_node), faults)).run()
    return Job(spec, programs, timelines, written)


def generate(spec: Spec, folder: Path | str) -> Path:
    """Write the traces of one job and its truth; the same spec gives the same bytes of JSON."""
    return simulate(spec).write(folder)


def _company(spec: Spec, written: tuple[int, ...]) -> set[int]:
    """The ranks to simulate: all of a small world; else the written ones and the rest of their pipelines."""
    if spec.world <= ALL_UP_TO:
        return set(range(spec.world))
    if spec.option("order", None) == "tp-pp-dp":
        mesh = Mesh({"rest": spec.tp * spec.cp, "pp": spec.pp, "dp": spec.dp})
    else:
        mesh = Mesh({"rest": spec.world // spec.pp, "pp": spec.pp})
    return {member for rank in written for member in mesh.members(rank, ("pp",))}


@contextmanager
def _no_collection() -> Iterator[None]:
    """Programs are millions of small objects without cycles: spare the collector."""
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()
