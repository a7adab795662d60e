"""Forward, backward or optimizer: in which part of the step a call was asked for.

PyTorch marks backward work as ``autograd::engine::evaluate_function: ...`` on the thread that runs it (a thread of its
own on a GPU, the caller's on a CPU: torch/csrc/autograd/engine.cpp) and optimizers as ``Optimizer.step#...``. FSDP, DDP
and torch.distributed.pipelining mark their hooks and actions.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import numpy as np

from heuristics import nesting
from heuristics.arrays import NULL, codes, ints
from heuristics.columns import Bools, Ints, at, distinct
from heuristics.primitives import SEND_RECV
from heuristics.xla import BACKWARD_THUNK, FORWARD_THUNK, backward_stretches
from parsers.columns import distinct_values

if TYPE_CHECKING:
    from heuristics.labelled import Steps
    from parsers.tables import RankTrace

PHASES = ("forward", "backward", "optimizer", "unknown")
"""Values of `COLLECTIVES.phase`; ``optimizer`` stands for all that follows the step's backward."""

FORWARD, BACKWARD, OPTIMIZER, UNKNOWN = range(4)

_MARKS = (
    # torch/distributed/fsdp/_fully_shard/_fsdp_param_group.py, fsdp/_runtime_utils.py, nn/parallel/distributed.py
    (BACKWARD, re.compile(r"FSDP::(?:pre_backward|post_backward|backward_prefetch|root_post_backward)")),
    (BACKWARD, re.compile(r"FullyShardedDataParallel\._(?:pre_backward|post_backward)")),
    (BACKWARD, re.compile(r"torch\.distributed\.ddp\.reducer::")),
    (FORWARD, re.compile(r"FSDP::(?:pre_forward|post_forward|forward_prefetch)")),
    (FORWARD, re.compile(r"FullyShardedDataParallel\.(?:forward|_pre_forward|_post_forward)")),
    (FORWARD, re.compile(r"DistributedDataParallel\.forward")),
    # torch/distributed/pipelining/schedules.py: PP:<stage><action><microbatch>
    (FORWARD, re.compile(r"PP:\d+F\d")),
    (BACKWARD, re.compile(r"PP:\d+[BIW]\d")),
    # ranges that users and frameworks push (megatron-core, NeMo, Lightning): forward_step, backward, Forward 3
    (FORWARD, re.compile(r"(?i:forward|fwd)(?:[ _-](?i:step|pass|compute))?(?:[ _#:-]{0,2}\d+)?$")),
    (BACKWARD, re.compile(r"(?i:backward|bwd)(?:[ _-](?i:step|pass|compute))?(?:[ _#:-]{0,2}\d+)?$")),
    (BACKWARD, BACKWARD_THUNK),
    (FORWARD, FORWARD_THUNK),
)
AUTOGRAD_THREAD = "pt_autograd"


def phase_of(trace: RankTrace, steps: Steps, thread: Ints, asked: Ints, primitive: Ints) -> Ints:
    """The phase of each call, as a position in `PHASES`.

    Marks that enclose the call decide; then the thread (autograd's own); then the order: what precedes backward work of
    its step is forward, what follows all of it is the optimizer's. Messages between stages outside of all marks stay
    unknown: those of the backward are sent before and after it, too.

    Args:
        trace: the facts.
        steps: the rank's steps.
        thread: per call, the thread that asked for it.
        asked: per call, when, ns; `NULL` where not recorded.
        primitive: per call, the position in `PRIMITIVES`.
    """
    kind, kinds = codes(trace.cpu_marks, "kind")
    name, names = codes(trace.cpu_marks, "name")
    meaning = _meaning(kinds, kind, names, name)
    tid, ts, dur = (ints(trace.cpu_marks, c) for c in ("tid", "ts_ns", "dur_ns"))
    rows = np.flatnonzero(meaning != UNKNOWN)
    meaning, tid, ts, end = meaning[rows], tid[rows], ts[rows], (ts + dur)[rows]
    optimized = end[np.array([*(n.startswith("Optimizer.step") for n in names), False])[name[rows]]]
    thunk = np.array([*(BACKWARD_THUNK.match(n) is not None for n in names), False])[name[rows]]
    stretch = backward_stretches(thunk, tid, ts, end, ints(steps.table, "ts_ns"))
    tid, ts, end = (np.concatenate(pair) for pair in zip((tid, ts, end), stretch, strict=True))
    meaning = np.concatenate([meaning, np.full(len(stretch[0]), BACKWARD)])
    found = _enclosing(meaning, tid, ts, end, thread, asked)
    backward = meaning == BACKWARD
    found = np.where((found == UNKNOWN) & np.isin(thread, _autograd_threads(trace, tid, backward)), BACKWARD, found)
    order = _by_order(steps, ts[backward], optimized, asked)
    order[primitive == SEND_RECV] = UNKNOWN
    found = np.where(found == UNKNOWN, order, found)
    return np.where(asked == NULL, UNKNOWN, found)


def marked_phases(trace: RankTrace) -> tuple[Ints, Ints, Ints]:
    """All marks of a known phase: its position in `PHASES`, begin and end in ns."""
    kind, kinds = codes(trace.cpu_marks, "kind")
    name, names = codes(trace.cpu_marks, "name")
    meaning = _meaning(kinds, kind, names, name)
    rows = np.flatnonzero(meaning != UNKNOWN)
    begin = ints(trace.cpu_marks, "ts_ns")[rows]
    return meaning[rows], begin, begin + ints(trace.cpu_marks, "dur_ns", 0)[rows]


def _meaning(kinds: list[str], kind: Ints, names: list[str], name: Ints) -> Ints:
    by_kind = {"optimizer": OPTIMIZER, "autograd": BACKWARD}
    of_kind = np.array([*(by_kind.get(k, UNKNOWN) for k in kinds), UNKNOWN], dtype=np.int64)
    of_name = np.array(
        [*(next((phase for phase, mark in _MARKS if mark.match(n)), UNKNOWN) for n in names), UNKNOWN], dtype=np.int64
    )
    return np.where(of_kind[kind] != UNKNOWN, of_kind[kind], of_name[name])


def _enclosing(meaning: Ints, tid: Ints, ts: Ints, end: Ints, thread: Ints, asked: Ints) -> Ints:
    """The meaning of the innermost mark around each call."""
    example, kind = distinct(thread, asked)  # calls of one moment would lie in each other
    thread, asked = thread[example], asked[example]
    who, start = np.concatenate([tid, thread]), np.concatenate([ts, asked])
    rank = np.concatenate([np.zeros(len(tid), np.int64), np.ones(len(thread), np.int64)])
    above = nesting.parents(who, start, np.concatenate([end, asked]), rank)
    inside = nesting.nearest(above, above[len(tid) :], np.arange(len(who)) < len(tid))
    return at(meaning, inside, UNKNOWN)[kind]


def _autograd_threads(trace: RankTrace, tid: Ints, backward: Bools) -> Ints:
    """Threads that only ever run backward: named so, or with backward marks and neither steps nor optimizers."""
    kind, kinds = codes(trace.cpu_marks, "kind")
    callers = [k for k, value in enumerate(kinds) if value in ("step", "optimizer")]
    main = distinct_values(ints(trace.cpu_marks, "tid")[np.isin(kind, callers)])
    threads = trace.metadata.get("threads")
    named = [t for t, n in threads.items() if AUTOGRAD_THREAD in str(n)] if isinstance(threads, dict) else []
    own = distinct_values(tid[backward])
    own = own[~np.isin(own, main)] if len(main) else own[:0]
    return distinct_values(np.concatenate([own, np.array(named, dtype=np.int64)]))


def _by_order(steps: Steps, backward: Ints, optimized: Ints, asked: Ints) -> Ints:
    """Before, or after, the backward work of the step (without steps, of the stretch between two optimizer steps)."""
    out = np.full(len(asked), UNKNOWN, dtype=np.int64)
    if not len(backward):
        return out
    edges = ints(steps.table, "ts_ns") if steps.table.num_rows else np.sort(optimized)
    backward = np.sort(backward)
    stretch, of_backward = np.searchsorted(edges, asked, side="right"), np.searchsorted(edges, backward, side="right")
    following = np.searchsorted(backward, asked)
    before = following < len(backward)
    before &= of_backward[np.minimum(following, len(backward) - 1)] == stretch
    after = ~before & (following > 0)
    after &= of_backward[np.maximum(following - 1, 0)] == stretch
    out[before] = FORWARD
    out[after] = OPTIMIZER
    return out
