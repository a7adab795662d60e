"""Faults of known size put into a job before it runs: what held a rank up, a slow link, more work than the others."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from benchmarks.synthesis.links import Links
from benchmarks.synthesis.program import Begin, End, Idle, Kernel, Launch, Operation, Program, Synchronize
from benchmarks.synthesis.spec import Spec

HOST = {
    "data_loading": Begin("enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__", "user_annotation"),
    "garbage_collection": Begin("Python GC", "user_annotation"),
    "device_sync": Begin("aten::item", "cpu_op"),
    "host_gap": None,
}
"""What keeps the CPU of one rank from launching, and the range that says so."""

SLOW_COMPUTE, LONG_SEQUENCES, SLOW_LINK = "slow_compute", "long_sequences", "slow_link"
KINDS = (*HOST, SLOW_COMPUTE, LONG_SEQUENCES, SLOW_LINK)


@dataclass(frozen=True)
class Fault:
    """One fault.

    Attributes:
        kind: one of `KINDS`.
        rank: where; of longer sequences the ranks of its tensor-parallel group.
        us: for how long the host is busy in each step; of a slow link, what each call of a group with the rank takes
            longer.
        factor: by how much kernels take longer; of longer sequences messages as well.
        steps: in which steps, counted from 0; None: in all.
    """

    kind: str
    rank: int
    us: float = 0.0
    factor: float = 1.0
    steps: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        """Refuse an unknown kind.

        Raises:
            ValueError: there is no such fault.
        """
        if self.kind not in KINDS:
            raise ValueError(f"unknown fault {self.kind!r}; known: {', '.join(KINDS)}")

    @classmethod
    def parse(cls, text: str) -> Fault:
        """A fault from ``kind:rank:amount``: µs, or with an ``x`` in front a factor (``slow_compute:3:x1.3``).

        Raises:
            ValueError: not of that form.
        """
        kind, rank, amount = text.split(":")
        if amount.startswith("x"):
            return cls(kind, int(rank), factor=float(amount[1:]))
        return cls(kind, int(rank), us=float(amount))


def injected(programs: Mapping[int, Program], spec: Spec, faults: Sequence[Fault]) -> dict[int, Program]:
    """The programs with the faults of hosts and of compute; where a host is held up, every step of every rank begins
    with an idle GPU, so that no work in flight hides a part of it."""
    drained = any(fault.kind in HOST for fault in faults)
    out = {}
    for rank, program in programs.items():
        mine = [fault for fault in faults if _concerns(fault, rank, spec)]
        operations = list(_with_faults(program.operations, mine, drained))
        out[rank] = replace(program, operations=operations)
    return out


def slowed(links: Links, faults: Sequence[Fault]) -> Links:
    """The links, slow where a fault says so."""
    return replace(links, slow=tuple((fault.rank, fault.us) for fault in faults if fault.kind == SLOW_LINK))


def _concerns(fault: Fault, rank: int, spec: Spec) -> bool:
    if fault.kind == LONG_SEQUENCES:
        return rank // spec.tp == fault.rank // spec.tp
    return rank == fault.rank


def _with_faults(operations: Sequence[Operation], faults: Sequence[Fault], drained: bool) -> Iterator[Operation]:
    """Waits refer to launches by place, so what is put in front of a step moves them."""
    step, shift = -1, 0
    moved: dict[int, int] = {}
    for place, operation in enumerate(operations):
        moved[place] = place + shift
        yield _changed(_at(operation, moved), [f for f in faults if f.steps is None or step in f.steps])
        if isinstance(operation, Begin) and operation.name.startswith("ProfilerStep"):
            step += 1
            for extra in _in_front(faults, step, drained):
                shift += 1
                yield extra


def _at(operation: Operation, moved: Mapping[int, int]) -> Operation:
    return replace(operation, launch=moved[operation.launch]) if hasattr(operation, "launch") else operation  # type: ignore[call-arg]


def _in_front(faults: Sequence[Fault], step: int, drained: bool) -> Iterator[Operation]:
    if drained:
        yield Synchronize()
    for fault in faults:
        if fault.kind not in HOST or (fault.steps is not None and step not in fault.steps):
            continue
        mark = HOST[fault.kind]
        if mark is not None:
            yield mark
        yield Idle(fault.us, exact=True)
        if mark is not None:
            yield End()


def _changed(operation: Operation, faults: Sequence[Fault]) -> Operation:
    for fault in faults:
        if isinstance(operation, Kernel) and fault.kind in (SLOW_COMPUTE, LONG_SEQUENCES) and not operation.bytes:
            operation = replace(operation, us=operation.us * fault.factor)
        if isinstance(operation, Launch) and fault.kind == LONG_SEQUENCES:
            messages = tuple(
                replace(m, in_n=round(m.in_n * fault.factor), out_n=round(m.out_n * fault.factor))
                if "TENSOR" in m.group.desc or m.group.desc in ("tp", "mesh_tp")
                else m
                for m in operation.messages
            )
            operation = replace(operation, messages=messages)
    return operation
