"""Layers that run forward again inside backward: seen by what backward scatters beyond what forward gathered."""

from __future__ import annotations

import pytest

from heuristics.layout import infer_views
from tests.heuristics.jobs import Call, exchange, gather, group, rank, reduce, scatter

A = 1_048_576


def tensor_parallel(layers: int, again: list[Call]) -> str | None:
    """Sequence parallelism with a split vocabulary; ``again`` is what backward repeats of each layer's forward."""
    sublayer = [gather(A, "F", ndim=3), scatter(A, "F", ndim=3, attention=1)]
    mlp = [gather(A, "F", ndim=3), scatter(A, "F", ndim=3)]
    back = [gather(A, "B", ndim=3), scatter(A, "B", ndim=3)]
    calls = [scatter(A, "F", ndim=3), *[*sublayer, *mlp] * layers, gather(A, "F", ndim=3), scatter(A, "B", ndim=3)]
    calls += [*again, *back, *back] * layers + [gather(A, "B", ndim=3)]
    return infer_views([rank(calls, [group(0, 1)], world=2, number=number) for number in range(2)]).layout.recompute


@pytest.mark.parametrize("layers", [1, 2, 24])
def test_layers_of_tensor_parallel_ranks(layers: int) -> None:
    gathered, summed = gather(A, "B", ndim=3), scatter(A, "B", ndim=3)
    assert tensor_parallel(layers, []) is None
    assert tensor_parallel(layers, [gathered, gathered]) is None  # inputs gathered once more, for weight gradients
    assert tensor_parallel(layers, [gathered, summed, gathered]) == "full"  # torch stops before the last sum
    assert tensor_parallel(layers, [gathered, summed, gathered, summed]) == "full"  # Megatron does not


@pytest.mark.parametrize(("times", "said"), [(1, None), (2, "full")])
def test_heads_that_are_exchanged_again(times: int, said: str | None) -> None:
    forward, back = (
        [*[exchange(A, phase, ndim=4)] * 3, exchange(A, phase, ndim=4, attention=1)] for phase in ("F", "B")
    )
    calls = [*forward * 4, *back * 4 * times, reduce(4 * A, "B")]
    found = infer_views([rank(calls, [group(0, 1)], world=2, number=number) for number in range(2)]).layout
    assert (found.cp, found.recompute) == (2, said)
