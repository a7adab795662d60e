"""When everything happens: programs of many ranks run against each other.

CPU threads launch and run ahead; streams run what they are given in order; a collective starts on a rank when its
stream and the work it depends on are done, and ends on all ranks a transfer time after the last of them has started, or
a little later (`scatter`). A rank whose partner is not simulated waits for a drawn time instead: a few ranks of a very
large job cost a few ranks.
"""

from __future__ import annotations

import random
from collections import defaultdict, deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from math import log
from typing import TypeAlias

from benchmarks.synthesis.groups import Group
from benchmarks.synthesis.links import Links
from benchmarks.synthesis.program import (
    AUTOGRAD,
    COMPUTE,
    MAIN,
    Begin,
    End,
    Idle,
    Kernel,
    Launch,
    Message,
    OnThread,
    Program,
    Synchronize,
    Wait,
)
from benchmarks.synthesis.scatter import Lateness, lateness
from benchmarks.synthesis.spec import Spec

KERNEL_CPU_US, LAUNCH_CPU_US, QUEUE_US = 7.0, 60.0, 9.0
"""CPU time of an operator with one launch; of a collective call; from launch to start on an idle stream."""
DISPATCH = "deep_ep::"
"""What kernels of expert dispatch are called."""
EVENT_US = 1.0
"""From the end of what a stream waits for to the start of what waits."""


@dataclass(slots=True)
class Done:
    """An operation with its times, in microseconds since the start of the job."""

    operation: Kernel | Launch
    thread: str
    cpu_us: float
    cpu_dur_us: float
    stream: str
    start_us: float
    end_us: float
    number: int  # of the launch, one counter per rank: the correlation
    graph: int = 0  # the launch of the CUDA graph it was replayed from


@dataclass(slots=True)
class Range:
    """A closed range of the profiler."""

    name: str
    category: str
    thread: str
    start_us: float
    end_us: float


@dataclass(slots=True)
class Timeline:
    """All that happened on one rank."""

    done: list[Done] = field(default_factory=list)
    ranges: list[Range] = field(default_factory=list)


@dataclass(slots=True)
class _Meeting:
    """Ranks at one collective or message: when each was ready."""

    expected: int
    ready: dict[int, float] = field(default_factory=dict)


Key: TypeAlias = tuple[object, ...]
"""One meeting: the group (or the pair of ranks in it) and how many there were before."""


class DeadlockError(RuntimeError):
    """No rank can go on: the programs do not fit each other."""


class _Rank:
    """The state of one rank."""

    def __init__(self, program: Program, noise: random.Random) -> None:
        self.program = program
        self.noise = noise
        self.place = 0
        self.cpu = 0.0
        self.thread = MAIN
        self.tail: dict[str, float] = defaultdict(float)
        self.pending: dict[str, int] = {}  # stream -> launch that is not over
        self.ends: dict[int, float] = {}  # launch -> end
        self.open_keys: dict[int, list[Key]] = {}
        self.calls: dict[object, int] = defaultdict(int)
        self.launched: dict[int, Done] = {}
        self.marks: list[tuple[Begin, str, float]] = []
        self.timeline = Timeline()
        self.numbers = 0
        self.graph = 0


class Simulator:
    """Runs programs, one per simulated rank."""

    def __init__(self, programs: Mapping[int, Program], spec: Spec, links: Links) -> None:
        self.spec, self.links = spec, links
        self.ranks = {r: _Rank(p, random.Random(f"{spec.seed}:{r}")) for r, p in programs.items()}
        self.meetings: dict[Key, _Meeting] = {}
        self.settled: dict[Key, tuple[float, Lateness]] = {}  # when the first can end it, and how late the others do
        self.present: dict[tuple[str, int], int] = {}  # group -> how many of its ranks are simulated
        self.waiting: dict[Key, list[_Rank]] = defaultdict(list)
        self.ready = deque(self.ranks.values())
        self.missing: Key = ()  # what the last operation that could not be done waits for

    def run(self) -> dict[int, Timeline]:
        """The timeline of every simulated rank.

        Raises:
            DeadlockError: ranks wait for each other.
        """
        while self.ready:
            rank = self.ready.popleft()
            self._advance(rank)
        stuck = {r: s.program.operations[s.place] for r, s in self.ranks.items() if s.place < len(s.program.operations)}
        if stuck:
            raise DeadlockError(f"{len(stuck)} ranks wait: {dict(list(stuck.items())[:4])}")
        for rank in self.ranks.values():
            self._close(rank)
        return {r: s.timeline for r, s in self.ranks.items()}

    def _advance(self, rank: _Rank) -> None:
        """As far as the rank can go; then it waits for the meeting that is missing."""
        operations = rank.program.operations
        while rank.place < len(operations):
            if not self._step(rank, operations[rank.place], rank.place):
                self.waiting[self.missing].append(rank)
                return
            rank.place += 1

    def _step(self, rank: _Rank, op: object, place: int) -> bool:
        """Do one operation if what it depends on is known."""
        if isinstance(op, Kernel):
            return self._kernel(rank, op)
        if isinstance(op, Launch):
            return self._launch(rank, op, place)
        if isinstance(op, Wait):
            end = self._end(rank, op.launch)
            if end is None or not self._free(rank, op.stream):
                return False
            rank.tail[op.stream] = max(rank.tail[op.stream], end + EVENT_US)
            return True
        if isinstance(op, Synchronize):
            if not all(self._free(rank, stream) for stream in list(rank.pending)):
                return False
            rank.cpu = max([rank.cpu, *rank.tail.values()]) + 8.0
            return True
        if isinstance(op, Begin):
            rank.marks.append((op, rank.thread, rank.cpu))
            rank.cpu += 1.0
            if op.category == "graph":
                rank.numbers += 1
                rank.graph = rank.numbers
        elif isinstance(op, End):
            self._end_mark(rank)
        elif isinstance(op, OnThread):
            rank.thread = op.thread
            rank.cpu += 15.0 if op.thread == AUTOGRAD else 5.0
        elif isinstance(op, Idle):
            rank.cpu += op.us if op.exact else op.us * rank.noise.uniform(0.9, 1.2)
        return True

    def _end_mark(self, rank: _Rank) -> None:
        begin, thread, start = rank.marks.pop()
        rank.cpu += 1.0
        if begin.category == "graph":
            rank.cpu += 120.0
            rank.timeline.ranges.append(Range(str(rank.graph), "graph", thread, start, rank.cpu))
            rank.graph = 0
            return
        rank.timeline.ranges.append(Range(begin.name, begin.category, thread, start, rank.cpu))

    def _kernel(self, rank: _Rank, op: Kernel) -> bool:
        if not self._free(rank, op.stream):
            return False
        us = max(1.2, op.us * rank.noise.lognormvariate(0.0, 0.04))
        start = max(rank.tail[op.stream], rank.cpu + KERNEL_CPU_US + QUEUE_US * rank.noise.uniform(0.7, 1.5))
        self._record(rank, op, op.stream, start, start + us, KERNEL_CPU_US)
        rank.tail[op.stream] = start + us + 0.6
        return True

    def _record(self, rank: _Rank, op: Kernel | Launch, stream: str, start: float, end: float, cpu_us: float) -> Done:
        rank.numbers += 1
        cpu_us *= rank.noise.uniform(0.9, 1.4)
        done = Done(op, rank.thread, rank.cpu, cpu_us, stream, start, end, rank.numbers, rank.graph)
        rank.timeline.done.append(done)
        if not rank.graph:
            rank.cpu += cpu_us + 1.0
        return done

    def stream_of(self, rank: int, op: Launch) -> str:
        """Where a launch runs (torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp, before and after 2.8)."""
        if op.stream is not None:
            return op.stream
        message = op.messages[0]
        if message.peer is not None and not op.batched and not self.spec.writing.eager_init:
            return f"p2p:{min(rank, message.peer)}-{max(rank, message.peer)}"
        if op.is_async or op.batched or not self.spec.writing.sync_on_current_stream:
            return f"pg:{message.group.name}"
        return COMPUTE

    def _launch(self, rank: _Rank, op: Launch, place: int) -> bool:
        stream = self.stream_of(rank.program.rank, op)
        if not self._free(rank, stream) or (op.waits_compute and not self._free(rank, COMPUTE)):
            return False
        ready = rank.cpu + LAUNCH_CPU_US + QUEUE_US * rank.noise.uniform(0.7, 1.5)
        ready = max(ready, rank.tail[stream], rank.tail[COMPUTE] if op.waits_compute else 0.0)
        cpu = LAUNCH_CPU_US * (0.6 + 0.4 * len(op.messages))
        rank.launched[place] = self._record(rank, op, stream, ready, ready, cpu)
        keys = [self._meet(rank, message, ready, op.kernel) for message in op.messages]
        rank.open_keys[place] = keys
        rank.pending[stream] = place
        return True

    def _meet(self, rank: _Rank, message: Message, ready: float, kernel: str | None) -> Key:
        """Register at a collective or message; settle it when all who are simulated have come."""
        me, group = rank.program.rank, message.group
        if message.peer is None:
            count = rank.calls[group.name]
            rank.calls[group.name] += 1
            key: Key = (group.name, group.ranks[0], count)
            expected = self._present(group)
        else:
            way = (me, message.peer) if message.words[0] == "send" else (message.peer, me)
            count = rank.calls[group.name, way]
            rank.calls[group.name, way] += 1
            key = (group.name, way, count)
            expected = 1 + (message.peer in self.ranks)
        meeting = self.meetings.get(key)
        if meeting is None:
            meeting = self.meetings[key] = _Meeting(expected)
        meeting.ready[me] = ready
        if len(meeting.ready) == expected:
            self._settle(key, meeting, message, kernel)
        return key

    def _present(self, group: Group) -> int:
        name = (group.name, group.ranks[0])
        if name not in self.present:
            members = group.ranks if isinstance(group.ranks, range) else frozenset(group.ranks)
            self.present[name] = sum(rank in members for rank in self.ranks)
        return self.present[name]

    def _settle(self, key: Key, meeting: _Meeting, message: Message, kernel: str | None) -> None:
        drawn = random.Random(f"{self.spec.seed}:{key}")
        chance = drawn.random()
        last = max(meeting.ready.values())
        people = 2 if message.peer is not None else message.group.size
        if meeting.expected < people:
            last -= self.links.absent_wait_us * log(1.0 - chance)
        us = self.links.transfer_us(message, next(iter(meeting.ready))) * (0.94 + 0.16 * (chance * 1024 % 1.0))
        self.settled[key] = last + us, lateness(message, us, DISPATCH in (kernel or ""), drawn)
        del self.meetings[key]
        self.ready.extend(self.waiting.pop(key, ()))

    def _end(self, rank: _Rank, place: int) -> float | None:
        """When a launch was over, or None while that is open."""
        if place in rank.ends:
            return rank.ends[place]
        settled = []
        for key in rank.open_keys[place]:
            if key not in self.settled:
                self.missing = key
                return None
            settled.append(self.settled[key])
        done = rank.launched[place]
        assert isinstance(done.operation, Launch)
        latest = max(
            end + late.of(message, rank.program.rank, rank.noise)
            for (end, late), message in zip(settled, done.operation.messages, strict=True)
        )
        done.end_us = max(latest, done.start_us + 2.0)
        rank.ends[place] = done.end_us
        return done.end_us

    def _free(self, rank: _Rank, stream: str) -> bool:
        """Whether all that was put on the stream has an end; keeps the tail up to date."""
        place = rank.pending.get(stream)
        if place is None:
            return True
        end = self._end(rank, place)
        if end is None:
            return False
        rank.tail[stream] = max(rank.tail[stream], end + 0.6)
        del rank.pending[stream]
        return True

    def _close(self, rank: _Rank) -> None:
        for stream in list(rank.pending):
            if not self._free(rank, stream):
                raise DeadlockError(f"rank {rank.program.rank}: {stream} never ends")
        while rank.marks:
            self._end_mark(rank)
