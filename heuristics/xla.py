"""What the ranges of XLA say: JAX names every operation after the program that it came from.

The compiled step is one list of thunks (xla/service/gpu: ``Thunk:#name=...,hlo_op=...#``), in which those of the
backward pass carry ``transpose(jvp(`` in their name. Collectives that the partitioner added have no name; they
belong to the backward pass where they lie between its first and its last thunk.
"""

from __future__ import annotations

import re

import numpy as np

from heuristics.columns import Bools, Ints, distinct

BACKWARD_THUNK = re.compile(r"(?:TSL:)?Thunk:#(?:[^#]*,)?name=[^#]*\btranspose\(jvp\(")
FORWARD_THUNK = re.compile(r"(?:TSL:)?Thunk:#(?:[^#]*,)?name=[^#]*\bjvp\(")


def backward_stretches(wanted: Bools, tid: Ints, ts: Ints, end: Ints, edges: Ints) -> tuple[Ints, Ints, Ints]:
    """From the first to the last thunk of the backward pass, in each step of each thread.

    Args:
        wanted: which ranges are such thunks.
        tid: thread of each range.
        ts: when it begins, ns.
        end: when it ends.
        edges: when each step begins, ns, ascending; thunks before the first step make a stretch of their own.

    Returns:
        Thread, begin and end of each stretch.
    """
    rows = np.flatnonzero(wanted)
    _, which = distinct(tid[rows], np.searchsorted(edges, ts[rows], side="right"))
    count = int(which.max(initial=-1)) + 1
    thread, begin, close = np.zeros(count, np.int64), np.full(count, np.iinfo(np.int64).max), np.zeros(count, np.int64)
    thread[which] = tid[rows]
    np.minimum.at(begin, which, ts[rows])
    np.maximum.at(close, which, end[rows])
    return thread, begin, close
