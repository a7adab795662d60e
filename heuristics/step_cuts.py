"""Where one step ends and the next begins, between the last work of the one and the first certain work of the other."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from heuristics.columns import Bools, Ints
from heuristics.host_line import HostLine

UNSEEN = 0.0025
"""Share of a step that may pass, unrecorded, between its begin and the first thing recorded of it, as in fetching a
batch."""

BOOKKEEPING_NS = 75_000
"""What may pass in a step however short. A profiler needs 45 us between two marks, and the program 50 more until the
first thing is recorded (medians over the boundaries of real GPU traces; 70 and 55 on CPUs): the middle between the
marks lies so long before it."""

_RECOGNISED_BY = 16
"""So many things in a row are compared at most to tell where the order of a step begins."""

_ALIKE = 4
"""Two steps that begin with so many equal things begin alike."""


@dataclass(frozen=True, eq=False)
class Closings:
    """What closes each step, and what is certain to belong to the next.

    Attributes:
        tid: the thread that does it.
        opened_first: when the first certain work of the first step begins, ns.
        closed: when the last certain work of each step ends, ns, ascending.
        opened: when the first certain work after it begins; beyond all moments if there is none.
    """

    tid: int
    opened_first: int
    closed: Ints
    opened: Ints


class StepCuts(NamedTuple):
    """Inferred steps.

    Attributes:
        edges: begin and end of each in ns, ``(n, 2)``.
        whole: whether the record holds it from its begin to its end, ``(n,)``.
        unsure_ns: how far from the boundaries given the true ones may lie, as far as the record tells.
    """

    edges: Ints
    whole: Bools
    unsure_ns: int


NO_CUTS = StepCuts(np.empty((0, 2), dtype=np.int64), np.empty(0, dtype=np.bool_), 0)


def cut_steps(line: HostLine, closings: Closings, window_start_ns: int | None) -> StepCuts:
    """Cut the time of a thread into steps.

    Between the closing of one step (the optimizer's last) and what is certain of the next (its backward) lie the end of
    the one (gathered parameters, metrics) and the begin of the other (a batch, the forward). A record that begins with
    a step shows how steps begin; the same order is looked for after every closing, and believed if nothing but
    communication is left to the end of a step, or if the record ends as such a step ends. Else the first work after the
    closing is the boundary.

    Args:
        line: the thread.
        closings: what closes its steps.
        window_start_ns: when the recording began, if the file says so.
    """
    spans = [line.between(*edges) for edges in zip(closings.closed, closings.opened + 1, strict=True)]
    opening = line.what[line.between(0, closings.opened_first + 1)]
    rows, believed = _rows(line, spans, opening, closings)
    step_ns = int(np.diff(closings.closed).min())
    cuts = boundaries(line, line.begin[np.array(rows, dtype=np.int64)], step_ns)
    first = int(line.begin[0]) if len(line.begin) else int(closings.closed[0])
    from_begin = believed or _starts_alike(line, rows, opening)
    if from_begin:
        first = max(first - cuts.lag_ns, window_start_ns or 0)
    begin, end = np.append(first, cuts.moments), cuts.moments
    to_end = True
    if len(rows) < len(closings.closed):
        end = np.append(end, _end_of_record(line, spans[-1]))
        to_end = len(rows) > 0 and spans[-1].stop - spans[-1].start >= rows[-1] - spans[len(rows) - 1].start
    whole = np.ones(len(end), dtype=np.bool_)
    whole[0], whole[-1] = whole[0] and from_begin, whole[-1] and to_end
    unsure_ns = cuts.unsure_ns if believed else step_ns
    return StepCuts(np.stack([begin[: len(end)], end], axis=1), whole, unsure_ns)


def _rows(line: HostLine, spans: list[slice], opening: Ints, closings: Closings) -> tuple[list[int], bool]:
    """The row of the line with which each step but the first begins, and whether the record itself shows it."""
    forever = closings.opened[-1] > line.ends[-1]
    inner = spans[:-1] if forever else spans
    placed = [_place(line, span, opening) for span in inner]
    believed = all(place is not None for place in placed) and _believed(line, inner, placed, spans[-1])
    if not believed:
        placed = [None] * len(inner)
    rows = [
        span.start + (_before_work(line, span) if place is None else place)
        for span, place in zip(inner, placed, strict=True)
    ]
    if forever and placed and placed[-1] is not None:
        # The record may go on into a step that has not come to anything certain.
        tail, rest = placed[-1], spans[-1]
        place = _place(line, rest, opening[: max(rest.stop - rest.start - tail, 0)])
        if place is not None and place <= tail:
            rows.append(rest.start + place)
    return [row for row in rows if row < len(line.begin)], believed


def _place(line: HostLine, span: slice, opening: Ints) -> int | None:
    """Where in a span the order of an opening begins, by as much of it as occurs there.

    Of several such places it is the one after the longest pause. One thing alone is no order.
    """
    if len(opening) < 2:
        return None
    seen = line.what[span]
    places = np.flatnonzero(seen[:-1] == opening[0])
    places = places[seen[places + 1] == opening[1]]
    if not len(places):
        return None
    for length in range(3, min(len(opening), _RECOGNISED_BY, len(seen)) + 1):
        longer = places[places + length <= len(seen)]
        longer = longer[seen[longer + length - 1] == opening[length - 1]]
        if not len(longer):
            break
        places = longer
    return int(places[line.paused(line.begin[places + span.start]).argmax()])


def _believed(line: HostLine, spans: list[slice], placed: list[int | None], rest: slice) -> bool:
    """Whether the record ends as a step ends, or nothing but gathered parameters lies between the two."""
    places = [place or 0 for place in placed]
    last, waits = line.what[rest], line.waits[rest]
    for span, place in zip(spans, places, strict=True):
        if np.array_equal(last[:place], line.what[span][:place]) and bool(waits[place:].all()):
            return True
    return all(
        _only_gathers(line, span, place) and _before_work(line, span) <= place
        for span, place in zip(spans, places, strict=True)
    )


def _before_work(line: HostLine, span: slice) -> int:
    """The place in a span after the communication that only ends a step: the gathering of updated parameters."""
    other = ~(line.calls[span] | line.waits[span])
    first = int(other.argmax()) if other.any() else 0
    return first if _only_gathers(line, span, first) else 0


def _only_gathers(line: HostLine, span: slice, place: int) -> bool:
    """Whether a span holds no work up to a place, and calls of a kind that does not occur behind it."""
    tail = slice(span.start, span.start + place)
    called = line.what[tail][line.calls[tail]]
    return not line.works[tail].any() and not (len(called) and np.isin(called, line.what[span][place:]).all())


def _starts_alike(line: HostLine, rows: list[int], opening: Ints) -> bool:
    """Whether the record begins as its steps begin."""
    length = min(len(opening), _ALIKE)
    return length > 1 and any(np.array_equal(line.what[row : row + length], opening[:length]) for row in rows)


def _end_of_record(line: HostLine, rest: slice) -> int:
    """When the last thing ended that is more than a wait for the GPU at the end of the record."""
    waits = line.waits[rest]
    trailing = int(np.argmin(waits[::-1])) if not waits.all() else len(waits)
    if not trailing:
        return int(line.ends[-1])
    moment = line.begin[rest][len(waits) - trailing]
    return int(moment - line.paused(np.array([moment]))[0])


class Boundaries(NamedTuple):
    """Where steps begin.

    Attributes:
        moments: of each boundary, ns.
        lag_ns: how long after it the step shows itself, usually.
        unsure_ns: how far from the moments given the true ones may lie.
    """

    moments: Ints
    lag_ns: int
    unsure_ns: int


def boundaries(line: HostLine, shown: Ints, step_ns: int) -> Boundaries:
    """When each step began that first shows itself at a moment.

    A step begins a little before the first thing recorded of it: half the pause before that, and no more than `UNSEEN`
    and `BOOKKEEPING_NS` allow, since in a longer pause the host was held up, and nothing tells on which side of the
    boundary.

    Args:
        line: the host.
        shown: when the first thing of each step was recorded, ns.
        step_ns: how long the shortest step takes.
    """
    pause = line.paused(shown)
    lag = np.minimum(pause // 2, max(int(UNSEEN * step_ns), BOOKKEEPING_NS))
    unsure = np.maximum(lag, pause - lag)
    return Boundaries(shown - lag, int(np.median(lag)) if len(lag) else 0, int(unsure.max()) if len(unsure) else 0)
