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

WAYS = ("data_parallel", "zero_stage", "sequence_parallel", "cp_kind", "pp_schedule", "virtual_stages")
"""How degrees are used."""


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
    found = [*_facts(baseline.facts, current.facts), *_kind_of_job(baseline, current)]
    found.sort(key=lambda d: KINDS.index(d.kind))
    return [Difference(d.kind, d.baseline, d.current, d.kind in allowed) for d in found]


def _facts(a: Facts, b: Facts) -> Iterator[Difference]:
    if None not in (a.world_size, b.world_size) and a.world_size != b.world_size:
        yield Difference("world", f"{a.world_size} ranks", f"{b.world_size} ranks")
    elif a.ranks != b.ranks and a.ranks and b.ranks:
        yield Difference("ranks", _ranks(a.ranks), _ranks(b.ranks))
    known = [dim for dim in a.layout if None not in (a.layout[dim], b.layout.get(dim))]
    if any(a.layout[dim] != b.layout[dim] for dim in known):
        yield Difference("layout", layout_name(a.layout), layout_name(b.layout))
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


def _kind_of_job(a: Record, b: Record) -> Iterator[Difference]:
    """Another model, or the same degrees used in another way (another ZeRO stage, sequence parallelism).

    Either moves arrays of different sizes by different collectives, where a fault in the same job changes some of them.
    So runs are of one kind where at least half of the distinct sizes occur in both, or where some dimension moves the
    same number of elements in all (buckets that are only cut differently).
    """
    one, two = a.facts.model, b.facts.model
    alike = _alike(one, two)
    values = [(way, a.exact.get(f"layout.{way}"), b.exact.get(f"layout.{way}")) for way in WAYS]
    ways = [(way, before, after) for way, before, after in values if None not in (before, after) and before != after]
    for way, before, after in ways if not alike else []:
        name = way.replace("_", " ")
        yield Difference("layout", f"{name} {before}", f"{name} {after}")
    if one.name and two.name and one.name != two.name:
        yield Difference("model", one.name, two.name)
    elif one.hidden and two.hidden and one.hidden != two.hidden:
        yield Difference("model", f"hidden {one.hidden}", f"hidden {two.hidden}")
    elif not alike and not ways:
        yield Difference("model", _shown(_sizes(one) - _sizes(two)), _shown(_sizes(two) - _sizes(one)))


def _alike(a: ModelFacts, b: ModelFacts) -> bool:
    one, two = _sizes(a), _sizes(b)
    if not one or not two or any(a.total[dim] == b.total.get(dim) for dim in a.total):
        return True
    return 2 * len(one & two) >= min(len(one), len(two))


def _sizes(model: ModelFacts) -> set[tuple[str, int]]:
    return {(row, size) for row, sizes in model.elements.items() for size in sizes}


def _shown(sizes: set[tuple[str, int]]) -> str:
    """The largest arrays by name."""
    largest = sorted(sizes, key=lambda item: (-item[1], item[0]))[:3]
    return "arrays of " + ", ".join(f"{size:,} elements ({row})" for row, size in largest)
