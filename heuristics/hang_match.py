"""Whether the ranks of a group made the same call, in the terms of PyTorch's own Flight Recorder analysis.

The terms and what they look at are those of torch/distributed/flight_recorder/components/types.py (`MatchState`,
`Op.match`); here every rank is held against the majority, not against whichever comes first.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

TYPE = "COLLECTIVE_TYPE_MISMATCH"
SIZE = "SIZE_OR_SYNTAX_MISMATCH"
DTYPE = "COLLECTIVE_DTYPE_MISMATCH"
STATE = "COLLECTIVE_STATE_MISMATCH"
UNDECIDED = "UNDECIDED"
MATCHED = "FULLY_MATCHED"

_EACH_ITS_OWN_INPUT = frozenset({"scatter"})
_EACH_ITS_OWN_OUTPUT = frozenset({"gather"})
_GATHERS = frozenset({"all_gather", "_all_gather_base", "all_gather_into_tensor_coalesced", "all_gather_single"})
_SCATTERS = frozenset(
    {"reduce_scatter", "_reduce_scatter_base", "reduce_scatter_tensor_coalesced", "reduce_scatter_single"}
)

Shapes = Sequence[Sequence[int]]


@dataclass(frozen=True)
class CallOfRank:
    """One rank's call, as its dump has it."""

    rank: int
    op: str
    state: str | None
    input_sizes: Shapes
    output_sizes: Shapes
    input_dtypes: Sequence[str]
    output_dtypes: Sequence[str]
    stack: str | None = None
    created_ns: int | None = None

    @property
    def finished(self) -> bool:
        """Whether the watchdog had seen its end."""
        return self.state == "completed"

    @property
    def signature(self) -> tuple[object, ...]:
        """What must be equal on all ranks of the group."""
        exchange = self.op.startswith("all_to_all")
        inputs = () if exchange or self.op in _EACH_ITS_OWN_INPUT else (_tuple(self.input_sizes), *self.input_dtypes)
        outputs = (
            () if exchange or self.op in _EACH_ITS_OWN_OUTPUT else (_tuple(self.output_sizes), *self.output_dtypes)
        )
        return (self.op, inputs, outputs, tuple(sorted(set(self.input_dtypes))) if exchange else ())


@dataclass(frozen=True)
class Match:
    """How the calls of a group's ranks compare.

    Attributes:
        state: one of the terms above; the gravest that was found.
        outliers: ranks that differ from the majority; empty where no majority exists.
        details: sentences.
    """

    state: str
    outliers: tuple[int, ...] = ()
    details: tuple[str, ...] = ()


def match(calls: Sequence[CallOfRank], size: int) -> Match:
    """Compare the calls that the ranks of a group made under one sequence number.

    Args:
        calls: of the ranks whose dump has the call.
        size: members of the group.
    """
    if not calls:
        return Match(UNDECIDED)
    majority = _majority(calls)
    by_rank = {call.rank: _differs(call, majority) for call in calls} if majority is not None else {}
    found = {rank: state for rank, state in by_rank.items() if state is not None}
    if majority is None:
        first = calls[0]
        states = [state for call in calls[1:] if (state := _differs(call, first)) is not None]
        return Match(_gravest(states), (), tuple(_sentences(calls)))
    if found:
        return Match(_gravest(found.values()), tuple(sorted(found)), tuple(_sentences(calls)))
    syntax = _syntax(majority, size) or _exchange(calls, size)
    if syntax is not None:
        return Match(SIZE, (), (syntax,))
    if len({call.finished for call in calls}) > 1:
        return Match(STATE, tuple(sorted(call.rank for call in calls if not call.finished)), ())
    if majority.op.startswith("all_to_all") and len(calls) < size:
        return Match(UNDECIDED)
    return Match(MATCHED)


def _tuple(sizes: Shapes) -> tuple[tuple[int, ...], ...]:
    return tuple(tuple(shape) for shape in sizes)


def _majority(calls: Sequence[CallOfRank]) -> CallOfRank | None:
    """A call that more ranks made than any other; null at a tie."""
    counts = Counter(call.signature for call in calls).most_common(2)
    if len(counts) > 1 and counts[0][1] == counts[1][1]:
        return None
    return next(call for call in calls if call.signature == counts[0][0])


def _differs(call: CallOfRank, other: CallOfRank) -> str | None:
    if call.op != other.op:
        return TYPE
    if call.signature == other.signature:
        return None
    if not call.op.startswith("all_to_all"):
        own_input, own_output = call.op in _EACH_ITS_OWN_INPUT, call.op in _EACH_ITS_OWN_OUTPUT
        if not own_input and _tuple(call.input_sizes) != _tuple(other.input_sizes):
            return SIZE
        if not own_output and _tuple(call.output_sizes) != _tuple(other.output_sizes):
            return SIZE
    return DTYPE


def _gravest(states: Iterable[str]) -> str:
    found = set(states)
    return next((state for state in (TYPE, SIZE, DTYPE) if state in found), MATCHED)


def _elements(sizes: Shapes) -> int:
    return sum(math.prod(shape) for shape in sizes)


def _syntax(call: CallOfRank, size: int) -> str | None:
    """What contradicts itself within one call, in a group of ``size``."""
    given, taken = _elements(call.input_sizes), _elements(call.output_sizes)
    if not call.input_sizes or not call.output_sizes:
        return None
    if call.op in _GATHERS and taken != given * size:
        return f"{call.op} of {given:,} elements on {size} ranks gives {taken:,}, not {given * size:,}"
    if call.op in _SCATTERS and given != taken * size:
        return f"{call.op} of {given:,} elements on {size} ranks gives {taken:,} each"
    if call.op == "all_reduce" and given != taken:
        return f"all_reduce of {given:,} elements gives {taken:,}"
    return None


def _exchange(calls: Sequence[CallOfRank], size: int) -> str | None:
    """All that the ranks hand to an all-to-all must come out of it, if all of them are here."""
    if not calls[0].op.startswith("all_to_all") or len(calls) < size:
        return None
    given = sum(_elements(call.input_sizes) for call in calls)
    taken = sum(_elements(call.output_sizes) for call in calls)
    return None if given == taken else f"{calls[0].op}: {given:,} elements go in on all ranks, {taken:,} come out"


def _sentences(calls: Sequence[CallOfRank]) -> list[str]:
    """Who calls what, most ranks first."""
    groups: dict[tuple[object, ...], list[CallOfRank]] = {}
    for call in calls:
        groups.setdefault(call.signature, []).append(call)
    ordered = sorted(groups.values(), key=lambda group: (-len(group), group[0].rank))
    return [f"{_ranks([call.rank for call in group])} {_say(group[0])}" for group in ordered]


def _say(call: CallOfRank) -> str:
    types = "/".join(sorted({*call.input_dtypes, *call.output_dtypes})) or "unknown type"
    return f"{call.op} {_shapes(call.input_sizes)} -> {_shapes(call.output_sizes)} {types}"


def _shapes(sizes: Shapes) -> str:
    return ", ".join("x".join(map(str, shape)) or "scalar" for shape in sizes) or "nothing"


def _ranks(ranks: Sequence[int]) -> str:
    shown = ", ".join(map(str, sorted(ranks)[:8]))
    more = f" and {len(ranks) - 8} more" if len(ranks) > 8 else ""
    return f"rank{'s' if len(ranks) > 1 else ''} {shown}{more}:"


def by_stack(stacks: Mapping[int, str | None]) -> tuple[tuple[tuple[int, ...], str], ...]:
    """Ranks by where in the code they are, the largest party first; ranks without a stack are left out."""
    groups: dict[str, list[int]] = {}
    for rank, stack in stacks.items():
        if stack:
            groups.setdefault(stack, []).append(rank)
    ordered = sorted(groups.items(), key=lambda item: (-len(item[1]), item[1]))
    return tuple((tuple(sorted(ranks)), stack) for stack, ranks in ordered)
