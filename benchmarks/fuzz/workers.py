"""Many files in child processes, so that one that dies or hangs in C takes nothing with it."""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from pathlib import Path
from random import Random
from typing import Any

from benchmarks.fuzz.case import DIED, HANG, Outcome, limit_memory, run, write
from benchmarks.fuzz.mutations import mutate
from benchmarks.fuzz.seeds import Seed

WALL_SECONDS = 120
"""A child that says nothing for so long waits for what never comes (it may be last in line for the processor)."""

CHILD_BYTES = 4 * 2**30
CASES_PER_CHILD = 5000
"""Then a new one takes over, so that leaks do not add up to a false alarm."""


SHARES = {"kineto": 6, "nsys": 3, "flight_recorder": 2, "nccl_log": 2}
"""Of the mutants, by format; the others have one each."""


def schedule(seeds: Sequence[Seed]) -> list[str]:
    """The formats in the order in which their turns come."""
    return [kind for kind in sorted({seed.format for seed in seeds}) for _ in range(SHARES.get(kind, 1))]


def mutant(seeds: Sequence[Seed], kinds: Sequence[str], run_seed: int, number: int) -> tuple[Seed, str]:
    """The mutant of a number."""
    random = Random(f"{run_seed}:{number}")
    kind = kinds[number % len(kinds)]
    seed = random.choice([s for s in seeds if s.format == kind])
    return mutate(seed, random.choice(seeds), random)


def run_all(plan: Plan, numbers: range, processes: int) -> Iterator[tuple[int, str, str, Outcome]]:
    """Every mutant's number, format, mutation and outcome, in the order in which they are done."""
    kinds = plan.kinds
    chunks = [numbers[at : at + CASES_PER_CHILD] for at in range(0, len(numbers), CASES_PER_CHILD)]
    todo = list(reversed(chunks))
    children: list[_Child] = []
    while todo or children:
        while todo and len(children) < processes:
            children.append(_Child(plan, todo.pop()))
        ready = wait([child.pipe for child in children], timeout=1)
        for child in list(children):
            outcome = child.poll(child.pipe in ready)
            if outcome is None:
                continue
            number = child.at
            if isinstance(outcome, Outcome):
                yield number, kinds[number % len(kinds)], child.how, outcome
                if outcome.kind in (DIED, HANG) and not child.alive:
                    children.remove(child)
                    rest = [n for n in child.numbers if n > number]
                    if rest:
                        todo.append(range(rest[0], rest[-1] + 1))
            else:
                children.remove(child)


@dataclass(frozen=True)
class Plan:
    """What a child needs to know: the seeds, their order, the run's seed, how many are analysed whole, a folder."""

    seeds: Sequence[Seed]
    kinds: Sequence[str]
    run_seed: int
    whole_every: int
    folder: Path


class _Child:
    def __init__(self, plan: Plan, numbers: range) -> None:
        context = multiprocessing.get_context("fork")
        self.pipe, theirs = context.Pipe()
        self.numbers = numbers
        self.at = numbers[0]
        self.how = ""
        self.alive = True
        self._next = numbers[0]
        self._heard = time.monotonic()
        self._process = context.Process(target=_work, args=(theirs, plan, numbers), daemon=True)
        self._process.start()
        theirs.close()

    def poll(self, ready: bool) -> Outcome | str | None:
        """What happened to case `at`; "done" at the end; None for nothing new."""
        if ready:
            try:
                answer: Any = self.pipe.recv()
            except (EOFError, OSError):
                self._process.join()
                return self._lost(DIED, f"exit code {self._process.exitcode}")
            self._heard = time.monotonic()
            if answer is None:
                self._process.join()
                self.alive = False
                return "done"
            self.at, self.how, outcome = answer
            self._next = self.at + 1
            return outcome  # type: ignore[no-any-return]
        if time.monotonic() - self._heard > WALL_SECONDS:
            self._process.kill()
            self._process.join()
            return self._lost(HANG, f"silent for {WALL_SECONDS} s")
        return None

    def _lost(self, kind: str, detail: str) -> Outcome:
        self.alive = False
        self.at, self.how = self._next, "?"
        return Outcome(kind, "", detail, 0.0, 0)


def _work(pipe: Connection, plan: Plan, numbers: range) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    limit_memory(CHILD_BYTES)
    place = plan.folder / f"child{os.getpid()}"
    for number in numbers:
        seed, how = mutant(plan.seeds, plan.kinds, plan.run_seed, number)
        whole = plan.whole_every > 0 and number // len(plan.kinds) % plan.whole_every == 0
        pipe.send((number, how, run(seed, write(seed, place), whole=whole)))
    pipe.send(None)
