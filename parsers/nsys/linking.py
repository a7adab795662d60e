"""Which kernels and copies belong to which calls of NCCL.

NCCL launches the work of a group when the group closes: inside the outermost ``ncclGroupEnd``, not inside the call
(src/group.cc `groupLaunch`). Calls and launches are therefore matched region by region, a region being a stretch of one
thread from the outermost ``ncclGroupStart`` to the end of its ``ncclGroupEnd``, or a call outside of any group.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from parsers.columns import NULL, Ints
from parsers.nsys.functions import ANY_KERNEL, CALL, COLLECTIVE_WORDS, END, START, word_of_function
from parsers.nsys.nvtx import NcclRanges

_SENDRECV = COLLECTIVE_WORDS.index("sendrecv")


@dataclass(frozen=True)
class Work:
    """What NCCL put on a GPU, or into a graph.

    Attributes:
        owner: number of the process.
        tid: thread that launched it, or made the graph's node; `NULL` where not recorded.
        moment: when it did, ns; `NULL` where not recorded.
        began: when it ran first, ns.
        word: place in `functions.COLLECTIVE_WORDS`, or `ANY_KERNEL`.
    """

    owner: Ints
    tid: Ints
    moment: Ints
    began: Ints
    word: Ints


@dataclass(frozen=True)
class Links:
    """Numbers of links; what has the same number belongs together, `NULL` belongs to nothing.

    Attributes:
        of_call: per row of the ranges; only calls have one.
        of_work: per entry of the work.
        by_order: links made by counting alone, where launches could not be placed in a region.
    """

    of_call: Ints
    of_work: Ints
    by_order: int


def link(ranges: NcclRanges, calls: Ints, work: Work, *, regions_only: bool = False) -> Links:
    """Match calls with the work that they led to.

    Args:
        ranges: all ranges of NCCL.
        calls: rows of the calls that may have led to the work, each with an end.
        work: kernels and copies.
        regions_only: whether calls and work that no region brings together stay apart.

    Within a region, calls and kernels of one function are matched one by one where there are as many of the one as of
    the other; communicator by communicator where the kernels are as many as those (NCCL fuses what it can); else all
    of them form one link. What is left in a region is matched in the same way, whatever it is called: some releases run
    several functions under one kernel's name. Launches outside of all regions (by another thread, or by a group whose
    beginning was not recorded) are matched in order, per process and function, where the numbers agree and no work
    begins before its call.
    """
    words = np.array([*(word_of_function(n) if k == CALL else -1 for n, k in _kinds(ranges)), -1], np.int64)
    call_word = words[ranges.name[calls]]
    comm = np.where(ranges.said["comm"][calls] == NULL, 0, ranges.said["comm"][calls])
    call_region, work_region = _regions(ranges, calls, work)
    matcher = _Matcher(len(calls), len(work.word))
    exact = work.word != ANY_KERNEL
    inside = work_region != NULL
    matcher.match(call_region, call_word, comm, np.where(exact & inside, work_region, NULL), work.word)
    same = np.zeros(len(calls), np.int64)
    matcher.match(call_region, same, comm, work_region, np.zeros(len(work.word), np.int64))
    before = matcher.count
    if not regions_only:
        _by_order(ranges, calls, call_word, comm, call_region, work, matcher)
    of_call = np.full(len(ranges.start), NULL, np.int64)
    of_call[calls] = matcher.of_call
    return Links(of_call, matcher.of_work, matcher.count - before)


def _kinds(ranges: NcclRanges) -> list[tuple[str, int]]:
    kind = np.full(len(ranges.names), -1, np.int64)
    kind[ranges.name] = ranges.kind
    return list(zip(ranges.names, kind.tolist(), strict=True))


def _regions(ranges: NcclRanges, calls: Ints, work: Work) -> tuple[Ints, Ints]:
    """The region of each call and of each launch; `NULL` for launches outside of all regions."""
    opens = np.flatnonzero(ranges.kind == START)
    closes = np.flatnonzero((ranges.kind == END) & (ranges.end != NULL))
    placed = np.flatnonzero(work.moment != NULL)
    rows = [opens, calls, closes, calls]
    owner = np.concatenate([*(ranges.owner[r] for r in rows), work.owner[placed]])
    tid = np.concatenate([*(ranges.tid[r] for r in rows), work.tid[placed]])
    ends = [np.maximum(ranges.end[r], ranges.start[r] + 1) for r in (closes, calls)]
    time = np.concatenate([ranges.start[opens], ranges.start[calls], *ends, work.moment[placed]])
    step = np.repeat([1, 1, -1, -1, 0], [len(opens), len(calls), len(closes), len(calls), len(placed)])
    tie = np.repeat([1, 1, 0, 0, 2], [len(opens), len(calls), len(closes), len(calls), len(placed)])
    order = np.lexsort((tie, time, tid, owner))
    lane = np.zeros(len(order), np.int64)
    lane[1:] = (np.diff(owner[order]) != 0) | (np.diff(tid[order]) != 0)
    lane = np.cumsum(lane)
    depth = _depth(step[order], lane)
    before = np.concatenate([[0], depth[:-1]])
    before[np.flatnonzero(np.diff(lane, prepend=-1))] = 0
    region = np.cumsum((depth > 0) & (before == 0)) - 1
    found = np.full(len(order), NULL, np.int64)
    found[order] = np.where(depth > 0, region, NULL)
    first = len(opens)
    of_call = found[first : first + len(calls)]
    of_work = np.full(len(work.moment), NULL, np.int64)
    of_work[placed] = found[len(order) - len(placed) :]
    return of_call, of_work


def _depth(step: Ints, lane: Ints) -> Ints:
    """How many ranges are open after each step of its lane; an end without a beginning opens nothing."""
    if not len(step):
        return step
    total = np.cumsum(step)
    starts = np.flatnonzero(np.diff(lane, prepend=-1))
    total -= (total[starts] - step[starts])[lane]
    apart = 2 * len(step) + 2  # lanes are pushed so far apart that a running minimum starts anew in each
    lowest = np.minimum.accumulate(np.minimum(total, 0) - lane * apart) + lane * apart
    depth: Ints = total - lowest
    return depth


class _Matcher:
    """Gives out the numbers of links."""

    def __init__(self, calls: int, works: int) -> None:
        self.of_call = np.full(calls, NULL, np.int64)
        self.of_work = np.full(works, NULL, np.int64)
        self.count = 0

    def match(self, call_place: Ints, call_word: Ints, comm: Ints, work_place: Ints, work_word: Ints) -> None:
        """Match what has no link yet, per place and word. Both sides are in order of time within a place."""
        calls = np.flatnonzero((self.of_call == NULL) & (call_place != NULL))
        works = np.flatnonzero((self.of_work == NULL) & (work_place != NULL))
        if not len(calls) or not len(works):
            return
        pairs = np.concatenate(
            [
                np.stack([call_place[calls], call_word[calls]], axis=1),
                np.stack([work_place[works], work_word[works]], axis=1),
            ]
        )
        _, key = np.unique(pairs, axis=0, return_inverse=True)
        key = key.ravel()
        mine, theirs = key[: len(calls)], key[len(calls) :]
        size = int(key.max()) + 1
        n, m = np.bincount(mine, minlength=size), np.bincount(theirs, minlength=size)
        turn, group = _turns(mine), _groups_of(mine, comm[calls])
        groups = np.zeros(size, np.int64)
        np.maximum.at(groups, mine, group + 1)
        one_by_one = (n == m)[mine]
        by_comm = ~one_by_one & (groups == m)[mine]
        place = np.where(one_by_one, turn, np.where(by_comm, group, 0))
        work_turn = np.where((n == m)[theirs] | (groups == m)[theirs], _turns(theirs), 0)
        linked, works_linked = (m > 0)[mine], (n > 0)[theirs]
        longest = int(max(n.max(), m.max())) + 1
        number = np.concatenate(
            [mine[linked] * longest + place[linked], theirs[works_linked] * longest + work_turn[works_linked]]
        )
        _, dense = np.unique(number, return_inverse=True)
        dense = dense.ravel() + self.count
        self.of_call[calls[linked]] = dense[: int(linked.sum())]
        self.of_work[works[works_linked]] = dense[int(linked.sum()) :]
        self.count = int(dense.max(initial=self.count - 1)) + 1


def _turns(key: Ints) -> Ints:
    """Per row, how many rows before it have the same key."""
    order = np.argsort(key, kind="stable")
    sorted_ = key[order]
    starts = np.flatnonzero(np.diff(sorted_, prepend=-1))
    turn = np.arange(len(key)) - np.repeat(starts, np.diff(np.append(starts, len(key))))
    out = np.empty(len(key), np.int64)
    out[order] = turn
    return out


def _groups_of(key: Ints, value: Ints) -> Ints:
    """Per row, the number of its value among the distinct values of its key, in order of first appearance."""
    _, first, which = np.unique(np.stack([key, value], axis=1), axis=0, return_index=True, return_inverse=True)
    which = which.ravel()
    by_time = np.argsort(first, kind="stable")
    turn = np.empty(len(first), np.int64)
    turn[by_time] = _turns(key[first[by_time]])
    out: Ints = turn[which]
    return out


def _by_order(
    ranges: NcclRanges, calls: Ints, word: Ints, comm: Ints, region: Ints, work: Work, matcher: _Matcher
) -> None:
    """Match what no region brought together: the k-th call of a function and the k-th kernel of it, per process."""
    for owner in np.unique(work.owner[matcher.of_work == NULL]).tolist():
        for number in range(len(COLLECTIVE_WORDS)):
            mine = np.flatnonzero((matcher.of_call == NULL) & (word == number) & (ranges.owner[calls] == owner))
            theirs = np.flatnonzero((matcher.of_work == NULL) & (work.word == number) & (work.owner == owner))
            if not len(mine) or not len(theirs):
                continue
            mine = mine[np.argsort(ranges.start[calls[mine]], kind="stable")]
            theirs = theirs[np.argsort(work.began[theirs], kind="stable")]
            unit = _turns(np.zeros(len(mine), np.int64))
            if number == _SENDRECV:  # sends and receives of a group fuse into one kernel per communicator
                pairs = np.stack([region[mine], comm[mine]], axis=1)
                _, pair = np.unique(pairs, axis=0, return_inverse=True)
                unit = _groups_of(np.zeros(len(mine), np.int64), pair.ravel())
            if int(unit.max()) + 1 != len(theirs) or (work.began[theirs][unit] < ranges.start[calls[mine]]).any():
                continue
            matcher.of_call[mine] = matcher.count + unit
            matcher.of_work[theirs] = matcher.count + np.arange(len(theirs))
            matcher.count += len(theirs)
