"""Payloads that look like something else: bytes, norms, keys, pieces of units."""

from __future__ import annotations

from dataclasses import replace

from heuristics.layout import infer_views
from tests.heuristics.jobs import gather, group, rank, reduce, scatter

A, UNIT = 4_194_304, 30_000_000


def test_activations_gathered_as_bytes_are_sequence_parallelism() -> None:
    """TransformerEngine gathers fp8 as uint8 and scatters bfloat16; amaxes are reduced over more ranks."""
    forward = [gather(A, "F", dtype="uint8"), scatter(A, "F")] * 4
    backward = [gather(A, "B", dtype="uint8"), scatter(A, "B")] * 4
    amax = [reduce(96, "F", group=1, dtype="float32")] * 4 + [reduce(96, "B", group=1, dtype="float32")] * 4
    sync = [reduce(UNIT, "O", group=2, dtype="float32")]
    view = rank(forward + backward + amax + sync, [group(0, 1), group(0, 1, 2, 3), group(0, 2)], world=4)
    layout = infer_views([view]).layout
    assert (layout.tp, layout.dp, layout.sequence_parallel) == (2, 2, True)


def test_pairs_of_gathers_around_attention_are_keys_and_values() -> None:
    """All-gather context parallelism (Llama 3, section 3.3.2) beside buckets of a sharded optimizer."""
    pair = [gather(A, "F", attention=1), gather(A, "F")]
    back = [gather(A, "B", attention=1), gather(A, "B"), scatter(A, "B"), scatter(A, "B")]
    buckets = [scatter(UNIT, "B", group=1, dtype="float32"), gather(UNIT, "O", group=1)]
    view = rank(pair * 8 + back * 8 + buckets, [group(0, 1), group(0, 1, 2, 3)], world=4)
    layout = infer_views([view]).layout
    assert (layout.cp, layout.dp, layout.cp_kind, layout.zero_stage) == (2, 2, "all_gather", 1)


def test_units_gathered_again_from_a_part_of_the_ranks_are_stage_three() -> None:
    """FSDP2 with reshard_after_forward given as a number."""
    forward = [gather(UNIT, "F")] * 4
    backward = [call for _ in range(4) for call in (gather(UNIT, "B", group=1), scatter(UNIT, "B", dtype="float32"))]
    layout = infer_views([rank(forward + backward, [group(0, 1, 2, 3), group(0, 1)], world=4)]).layout
    assert (layout.dp, layout.zero_stage, layout.tp, layout.cp) == (4, 3, 1, 1)


def test_gradients_of_norms_among_tensor_parallel_ranks_are_no_replicas() -> None:
    calls = [reduce(20_000, "O", dtype="float32"), reduce(UNIT, "B", group=1, dtype="float32")]
    view = rank(calls, [group(0, 1, 2, 3), group(0, 4)], world=8)
    layout = infer_views([view]).layout
    assert layout.dp is None  # two replicas, but what the other ranks of each do does not show
    assert "gradients are reduced over 2 ranks" in layout.dimensions["dp"].evidence


def test_stage_zero_is_not_claimed_beside_unexplained_gathers() -> None:
    calls = [reduce(UNIT, "B", dtype="float32"), gather(UNIT + 1_000_000, "F", group=1, ndim=2)]
    layout = infer_views([rank(calls, [group(0, 1), replace(group(0, 1), name="other")], world=2)]).layout
    assert layout.zero_stage is None
