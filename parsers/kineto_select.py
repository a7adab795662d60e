"""Which CPU events are kept, and as what: told from the name alone, once per name."""

from __future__ import annotations

import re
from collections.abc import Callable

from parsers.kineto_comm import COMM_LAYERS

MARK_KINDS = ("step", "optimizer", "autograd", "annotation", "op", "sync")
"""The kinds of `CPU_MARKS`; a choice below `COMM_BASE` is a place in here."""

STEP, OPTIMIZER, AUTOGRAD, NOTE, OPERATOR, SYNC = range(len(MARK_KINDS))
DROP = -1
COMM_BASE = 10
"""A choice from here on is a place in `COMM_LAYERS`, plus this."""

UNKNOWN_CALL = "INVALID"
"""What Kineto writes for a runtime call that its CUPTI has no name for; it may have been a launch."""

BACKEND_RANGE = re.compile(r"(?:nccl|gloo|rccl|hccl|xccl|mpi|ucc):")
"""The ranges that process groups put around a collective, on the CPU and (as annotations) on the GPU."""

PROFILER_STEP = re.compile(r"ProfilerStep#(\d{1,18})\Z")

_FUNCTIONAL = re.compile(r"_?c10d_functional")
_NO_TRAFFIC = re.compile(r"\w+::(?:wait_tensor|_wrap_tensor)")
_SERVING = re.compile(
    r"(?:vllm|sglang)::\w*(?:all_?reduce|all_?gather|reduce_?scatter|all_?to_?all|broadcast|send|recv)"
)
_LAUNCH = re.compile(r"launch(?!hostfunc|\w*attribute)|memcpy|memset|invokekernel|enqueue|appendmem", re.IGNORECASE)
_SYNC = re.compile(r"(?:cuda|hip|cu|musa)(?:Device|Stream|Event|Ctx)Synchronize")
_READS = frozenset({"aten::item", "aten::_local_scalar_dense", "aten::is_nonzero", "aten::nonzero", "aten::equal"})
"""Operators that need a value from the GPU, and so make the CPU wait for it."""

_COLLECTOR = re.compile(r"\bgc\b|garbage.?collect", re.IGNORECASE)
_REGIONS = ("## ", "Torch-Compiled Region", "enumerate(", "DistributedDataParallel.")


class Choice(dict[str, int]):
    """A choice per name, made when the name is first met."""

    _CAPACITY = 1 << 20

    def __init__(self, choose: Callable[[str], int]) -> None:
        super().__init__()
        self._choose = choose

    def __missing__(self, name: str) -> int:
        if len(self) >= self._CAPACITY:  # names that never repeat must not fill the memory
            self.clear()
        choice = self._choose(name)
        self[name] = choice
        return choice


def choose_annotation(name: str) -> int:
    """A range of the user, the framework or the communication backend."""
    mark = _mark(name)
    return NOTE if mark is None else mark


def choose_operator(name: str) -> int:
    """Operators are communication, autograd's marks, marks of older writers, or compute."""
    if name == "record_param_comms":
        return _layer("record_param_comms")
    head, _, tail = name.partition("::")
    if not tail:
        mark = _mark(name)
        if mark is not None:
            return mark
        if name.startswith(_REGIONS) or _COLLECTOR.search(name):
            return NOTE
        return OPERATOR if "fused" in name else DROP
    if head == "autograd" or tail.startswith("autograd::"):
        return AUTOGRAD if name.startswith("autograd::engine::evaluate_function") else DROP
    if head in {"c10d", "symm_mem"}:
        return _layer(head)
    if _FUNCTIONAL.match(head):
        return DROP if _NO_TRAFFIC.match(name) else _layer("functional")
    if name in _READS:
        return SYNC
    return _layer("functional") if _SERVING.match(name) else OPERATOR


def is_launch(name: str) -> bool:
    """Whether a runtime or driver call (of any vendor) puts work on a GPU, as far as its name tells."""
    return bool(_LAUNCH.search(name)) or name == UNKNOWN_CALL


def is_sync(name: str) -> bool:
    """Whether a runtime or driver call stands still until the GPU has done something."""
    return bool(_SYNC.match(name))


def _mark(name: str) -> int | None:
    if PROFILER_STEP.match(name):
        return STEP
    if name.startswith("Optimizer."):
        return OPTIMIZER
    return _layer("annotation") if BACKEND_RANGE.match(name) else None


def _layer(name: str) -> int:
    return COMM_BASE + COMM_LAYERS.index(name)
