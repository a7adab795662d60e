"""May two runs be held against each other? What differs is named before any number is shown.

The number of steps does not stand in the way: bytes need no statistics, and each noisy metric says itself that it has
too few.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from analyzer.gate.record import Facts, ModelFacts, Record, layout_name

KINDS = ("world", "ranks", "layout", "model", "gpu", "libraries", "graphs", "profiler")
"""What is looked at, and what ``--allow`` may name."""


@dataclass(frozen=True)
class Difference:
    """Something that makes times incomparable.

    Attributes:
        kind: one of `KINDS`.
        baseline: what it is there.
        current: what it is here.
        allowed: whether the user wants to compare all the same.
    """

    kind: str
    baseline: str
    current: str
    allowed: bool = False

    def __str__(self) -> str:
        return f"{self.kind}: {self.baseline} in the baseline, {self.current} here"


def differences(baseline: Record, current: Record, allow: Sequence[str] = ()) -> list[Difference]:
    """Everything that differs, in the order of `KINDS`; what one of the two does not say is no difference.

    Args:
        baseline: one run.
        current: the other.
        allow: kinds that do not stand in the way; a different layout brings a different world, ranks and model with it.
    """
    allowed = set(allow) | ({"world", "ranks", "model"} if "layout" in allow else set())
    found = _facts(baseline.facts, current.facts)
    return [Difference(d.kind, d.baseline, d.current, d.kind in allowed) for d in found]


def _facts(a: Facts, b: Facts) -> Iterator[Difference]:
    if None not in (a.world_size, b.world_size) and a.world_size != b.world_size:
        yield Difference("world", f"{a.world_size} ranks", f"{b.world_size} ranks")
    elif a.ranks != b.ranks and a.ranks and b.ranks:
        yield Difference("ranks", _ranks(a.ranks), _ranks(b.ranks))
    known = [dim for dim in a.layout if None not in (a.layout[dim], b.layout.get(dim))]
    if any(a.layout[dim] != b.layout[dim] for dim in known):
        yield Difference("layout", layout_name(a.layout), layout_name(b.layout))
    yield from _model(a.model, b.model)
    if a.gpus and b.gpus and a.gpus != b.gpus:
        yield Difference("gpu", ", ".join(a.gpus), ", ".join(b.gpus))
    for name in sorted(a.libraries.keys() & b.libraries.keys()):
        if a.libraries[name] != b.libraries[name]:
            yield Difference("libraries", f"{name} {a.libraries[name]}", f"{name} {b.libraries[name]}")
    if None not in (a.graphs, b.graphs) and a.graphs != b.graphs:
        yield Difference("graphs", _graphs(a.graphs), _graphs(b.graphs))
    for flag in sorted(a.profiler.keys() & b.profiler.keys()):
        if a.profiler[flag] != b.profiler[flag]:
            yield Difference("profiler", f"{flag} {_on(a.profiler[flag])}", f"{flag} {_on(b.profiler[flag])}")


def _ranks(ranks: Sequence[int]) -> str:
    from analyzer.reporters import format as fmt

    return f"ranks {fmt.ranks(ranks)}"


def _graphs(on: bool | None) -> str:
    return "kernels from CUDA graphs" if on else "no CUDA graphs"


def _on(flag: bool) -> str:
    return "on" if flag else "off"


def _model(a: ModelFacts, b: ModelFacts) -> Iterator[Difference]:
    """A different model moves arrays of different sizes; a bug in the same model changes some of them.

    The model is the same where at least half of the distinct sizes occur in both runs, or where some dimension moves
    the same number of elements in all (buckets that are only cut differently).
    """
    if a.name and b.name and a.name != b.name:
        yield Difference("model", a.name, b.name)
        return
    if a.hidden and b.hidden and a.hidden != b.hidden:
        yield Difference("model", f"hidden {a.hidden}", f"hidden {b.hidden}")
        return
    one, two = _sizes(a), _sizes(b)
    same_total = any(a.total[dim] == b.total.get(dim) for dim in a.total)
    if one and two and not same_total and 2 * len(one & two) < min(len(one), len(two)):
        yield Difference("model", _shown(one - two), _shown(two - one))


def _sizes(model: ModelFacts) -> set[tuple[str, int]]:
    return {(row, size) for row, sizes in model.elements.items() for size in sizes}


def _shown(sizes: set[tuple[str, int]]) -> str:
    """The largest arrays by name."""
    largest = sorted(sizes, key=lambda item: (-item[1], item[0]))[:3]
    return "arrays of " + ", ".join(f"{size:,} elements ({row})" for row, size in largest)
