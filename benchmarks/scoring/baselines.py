"""Three guesses a reader of a trace might make, in a few lines each: the product has to beat them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence

from benchmarks.scoring.answers import DEGREES, Answer
from heuristics.labelled import LabelledRank

_USUALLY = {
    "all_gather": ("dp", 3),
    "reduce_scatter": ("dp", 3),
    "all_reduce": ("dp", 0),
    "send_recv": ("pp", None),
    "all_to_all": ("pp", None),
}
"""What a kernel's name says -> the dimension it is usually taken for, and the ZeRO stage that goes with it. NCCL calls
sends and all-to-alls alike: ``SendRecv``."""


def _answer(degrees: Mapping[str, int | None], zero: int | None) -> Answer:
    return Answer({**degrees, "zero": zero}, 0.0, {})


def _world(ranks: Sequence[LabelledRank]) -> int | None:
    return next((r.trace.identity.world_size for r in ranks if r.trace.identity.world_size), None)


def everything_is_dp(ranks: Sequence[LabelledRank]) -> Answer:
    """One replica a rank."""
    return _answer({**dict.fromkeys(DEGREES, 1), "dp": _world(ranks)}, 0)


def kernel_names(ranks: Sequence[LabelledRank]) -> Answer:
    """All-reduce is DDP, all-gather and reduce-scatter are FSDP, send-receive is a pipeline; shares are not known."""
    called = {word for rank in ranks for word in rank.collectives.column("primitive").unique().to_pylist()}
    seen = [guess for word, guess in _USUALLY.items() if word in called]
    dims = {dim for dim, _ in seen}
    degrees: dict[str, int | None] = {dim: None if dim in dims else 1 for dim in DEGREES}
    if len(dims) == 1:
        degrees[dims.pop()] = _world(ranks)
    return _answer(degrees, next((zero for _, zero in seen if zero is not None), None))


def group_size(ranks: Sequence[LabelledRank], node: int = 8) -> Answer:
    """Groups within a node are tensor parallel, larger ones data parallel; send-receive groups are pipelines and
    all-to-all groups experts; the sizes that were called most.
    """
    sizes: dict[str, Counter[int]] = {dim: Counter() for dim in DEGREES}
    for rank in ranks:
        table = rank.collectives
        pairs = Counter(zip(table.column("primitive").to_pylist(), table.column("group_size").to_pylist(), strict=True))
        for (primitive, size), calls in pairs.items():
            if not size or size < 2:
                continue
            by_size = "tp" if size <= node else "dp"
            sizes[{"send_recv": "pp", "all_to_all": "ep"}.get(primitive, by_size)][size] += calls
    degrees: dict[str, int | None] = {dim: count.most_common(1)[0][0] if count else 1 for dim, count in sizes.items()}
    return _answer(degrees, None)


BASELINES: Mapping[str, Callable[[Sequence[LabelledRank]], Answer]] = {
    "kernel names only": kernel_names,
    "group size only": group_size,
    "everything is DP": everything_is_dp,
}
