"""Calls without a size or a group: what order and number alone tell."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from analyzer.pipeline import analyze
from heuristics.label import label
from heuristics.layout import infer_views
from heuristics.observe import view
from heuristics.view import GroupView, RankView
from tests.heuristics.jobs import Call, gather, group, rank, recv, reduce, scatter, send
from tests.heuristics.traces import TraceMaker

if TYPE_CHECKING:
    from heuristics.verdict import Layout

UNNAMED = GroupView(0, None, "", "", declared=False)


def job(calls: list[Call], world: int = 4) -> Layout:
    views: list[RankView] = [rank(calls, [UNNAMED], world=world, number=number) for number in range(world)]
    return infer_views(views).layout


def test_parameters_gathered_before_use_and_again_are_sharded_over_every_rank() -> None:
    # FSDP: each of twelve units is gathered in forward and again in backward, where its gradient is scattered.
    calls = [gather(-1, "F")] * 12 + [reduce(-1, "F")] + [gather(-1, "B"), scatter(-1, "B")] * 12
    layout = job(calls)
    assert (layout.tp, layout.cp, layout.pp, layout.dp, layout.ep) == (1, 1, 1, 4, 1)
    assert (layout.zero_stage, layout.data_parallel, layout.dp_shard) == (3, "zero3", 4)
    # Keys and values of context parallelism can look the same, so this is no promise.
    assert 0.5 <= layout.confidence < 0.9
    said = " ".join(layout.dimensions["dp"].evidence)
    assert "12 tensors of unknown size per step are reduce-scattered in or after backward" in said
    assert "24 gathers for 12 reduce-scatters: parameters are gathered again" in said


def test_gathers_in_pairs_around_attention_may_be_keys_and_values() -> None:
    pair = [gather(-1, "F", attention=1), gather(-1, "F")]
    calls = pair * 8 + [scatter(-1, "B"), scatter(-1, "B")] * 8
    layout = job(calls)
    assert layout.zero_stage is None
    assert layout.confidence < 0.9


def test_a_loss_among_gradients_of_unknown_size_is_no_tensor_parallelism() -> None:
    layout = job([reduce(-1, "F")] + [reduce(-1, "B")] * 20)
    assert layout.tp != 4
    assert layout.confidence < 0.9


def test_layer_outputs_of_unknown_size_speak_for_it() -> None:
    layout = job([reduce(-1, "F")] * 24 + [reduce(-1, "B")] * 24)
    assert "tensors of unknown size are all-reduced 24 times in forward" in " ".join(layout.dimensions["tp"].evidence)


def test_messages_between_ranks_of_no_mesh_are_no_pipeline() -> None:
    # Ranks 0 and 3, and 1 and 2, exchange as much both ways: on a mesh of 2 x 2 no line leads both ways.
    def one(number: int) -> RankView:
        tp, dp = (0, 1) if number < 2 else (2, 3), (number % 2, number % 2 + 2)
        calls = [reduce(4_194_304, "F")] * 2 + [scatter(1_048_576, "B", group=1), gather(1_048_576, "O", group=1)]
        exchange = [send(131_072, 3 - number, group=2), recv(131_072, 3 - number, group=2)]
        return rank(calls + exchange * 2, [group(*tp), group(*dp), group(0, 1, 2, 3)], world=4, number=number)

    layout = infer_views([one(number) for number in range(4)]).layout
    assert (layout.tp, layout.pp, layout.dp) == (2, 1, 2)
    assert "nearest partners at different distances" in " ".join(layout.dimensions["pp"].against)


def test_large_tensors_reduced_in_forward_alone_are_activations() -> None:
    calls = [reduce(4_194_304, "F")] * 2 + [scatter(1_048_576, "B", group=1)]
    views = [rank(calls, [group(0, 1), group(0, 2)], world=4, number=0)]
    assert infer_views(views).layout.tp == 2
    small = [reduce(2_048, "F")] * 2 + [scatter(1_048_576, "B", group=1)]
    assert infer_views([rank(small, [group(0, 1), group(0, 2)], world=4)]).layout.tp != 2


def test_ranks_that_split_a_model_do_not_reduce_over_all() -> None:
    # The groups of the all-reduces are not known; whatever they are, gradients cannot go to every rank.
    calls = [reduce(4_194_304, "F", group=1)] * 4 + [reduce(4_194_304, "B", group=1)] * 4
    calls += [scatter(1_048_576, "B")] * 4
    views = [rank(calls, [group(0, 1, 2, 3), UNNAMED], world=4, number=number) for number in range(4)]
    layout = infer_views(views).layout
    assert layout.tp != 1
    assert layout.dp != 4


def test_bytes_of_an_unknown_type_have_the_elements_of_the_unit_that_is_reduced() -> None:
    maker = TraceMaker(0, 2, {"7": [0, 1]})
    dims = {"group_name": "7", "group_size": 2}
    for step in range(2):
        at = 1000 * step
        sized = {"dtype": "Float", "in_nelems": 1 << 20, "out_nelems": 1 << 19}
        maker.record("nvtx", "ncclReduceScatter", at, 10, collective="_reduce_scatter_base", **sized, **dims)
        maker.record("nvtx", "ncclAllGather", at + 100, 10, message_bytes=1 << 20, **dims)
        maker.record("nvtx", "ncclAllGather", at + 200, 10, message_bytes=12, **dims)
        maker.record("nvtx", "ncclAllGather", at + 300, 10, message_bytes=7 << 20, **dims)
    families = view(label(maker.done())).families
    sizes = sorted((f.primitive, f.size, f.is_tensor) for f in families)
    assert sizes == [
        ("all_gather", -1, True),  # 14 MiB are no unit that is reduced
        ("all_gather", 3, False),
        ("all_gather", 1 << 20, True),  # 2 MiB, half of what is reduced: a type of two bytes
        ("reduce_scatter", 1 << 20, True),
    ]


def test_a_synthetic_job_of_nsight_systems(shared: Path) -> None:
    folder = shared / "data/formats/nsys_synthetic"
    one = sorted(folder.glob("one_report_*.sqlite"))
    jobs = [*([path] for path in one), sorted(folder.glob("per_rank_*.sqlite"))]
    assert len(jobs) == 7
    for paths in jobs:
        layout = analyze([str(path) for path in paths]).layout
        found = (layout.tp, layout.cp, layout.pp, layout.dp)
        if "nopayload" in paths[0].name or "nohash" in paths[0].name:  # nothing says who is in a group
            assert None in found
            assert all(degree in (None, wanted) for degree, wanted in zip(found, (2, 1, 1, 2), strict=True))
            continue
        assert found == (2, 1, 1, 2), paths[0].name
        assert layout.dimensions["tp"].groups == [[0, 1], [2, 3]]
        assert layout.dimensions["dp"].groups == [[0, 2], [1, 3]]


def test_single_ranks_of_a_synthetic_job_claim_no_pipeline(shared: Path) -> None:
    for path in sorted((shared / "data/formats/nsys_synthetic").glob("per_rank_*.sqlite")):
        document = analyze(str(path))
        layout = document.layout
        assert (layout.tp, layout.cp, layout.dp) == (2, 1, 2), path.name
        assert layout.pp in (None, 1), path.name
        assert (layout.pp_schedule, layout.microbatches, layout.rank_order) == (None, None, None), path.name
        assert ("unknown", "send_recv") in {(row.dim, row.primitive) for row in document.collectives}


def test_a_captured_job_of_jax_without_sizes(shared: Path) -> None:
    document = analyze(str(shared / "data/formats/nsys_jax/pax_fsdp4_4proc"))
    layout = document.layout
    assert (layout.tp, layout.cp, layout.pp, layout.dp, layout.ep) == (1, 1, 1, 4, 1)
    assert (layout.data_parallel, layout.zero_stage, layout.dp_shard) == ("zero3", 3, 4)
    assert {(row.dim, row.primitive) for row in document.collectives} == {
        ("dp", "all_gather"),
        ("dp", "reduce_scatter"),
        ("control", "all_reduce"),
    }
