"""The layout that groups declare."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from heuristics.declared import TRUSTED, declared_layout
from heuristics.label import label
from heuristics.observe import view
from heuristics.verdict import Layout
from heuristics.view import RankView
from parsers import read
from tests.parsers.flight_dumps import as_pickle, dump, entry

Groups = Mapping[str, Sequence[int]]


def _rank(folder: Path, groups: Groups, world: int, calls: Sequence[Mapping[str, Any]] = (), own: int = 0) -> RankView:
    """A rank whose dump declares these groups (description -> ranks), and one of its own, which names the rank."""
    named = {"0": ("default_pg", range(world))}
    named |= {str(number): (desc, ranks) for number, (desc, ranks) in enumerate(groups.items(), 1)}
    named["99"] = ("", (own,))
    path = folder / "dump"
    path.write_bytes(as_pickle(dump(calls, named)))
    return view(label(read(path)[0]))


def _degrees(layout: Layout | None) -> tuple[int | None, ...]:
    assert layout is not None
    return layout.tp, layout.cp, layout.pp, layout.dp, layout.ep


def test_megatrons_descriptions(tmp_path: Path) -> None:
    groups = {
        "TENSOR_MODEL_PARALLEL_GROUP": (0, 1),
        "TENSOR_AND_CONTEXT_PARALLEL_GROUP": (0, 1, 2, 3),
        "DATA_PARALLEL_GROUP_WITH_CP": (0, 2, 4, 6),
        "PIPELINE_MODEL_PARALLEL_GROUP": (0, 8),
        "EXPERT_MODEL_PARALLEL_GROUP": (0, 2),
        "EMBEDDING_GROUP": (0, 8),
    }
    layout = declared_layout([_rank(tmp_path, groups, 16)])
    # cp = (tp and cp) / tp = 2, dp = (dp and cp) / cp = 2, and 2·2·2·2 is the world.
    assert _degrees(layout) == (2, 2, 2, 2, 2)
    assert layout is not None
    assert layout.confidence == TRUSTED
    assert layout.source == "metadata"


def test_device_mesh_names(tmp_path: Path) -> None:
    groups = {"mesh_tp": (0, 1), "mesh_dp": (0, 2), "mesh_pp": (0, 4)}
    layout = declared_layout([_rank(tmp_path, groups, 8)])
    assert _degrees(layout) == (2, 1, 2, 2, None)
    assert layout is not None
    assert layout.rank_order == "tp-dp-pp"
    assert layout.dimensions["ep"].evidence == ("no group is described as ep: it may be 1, or not used yet",)


def test_what_is_left_of_the_world_is_data_parallel(tmp_path: Path) -> None:
    groups = {"mesh_tp": (0, 1), "mesh_cp": (0, 2), "mesh_pp": (0, 4)}
    assert _degrees(declared_layout([_rank(tmp_path, groups, 32)]))[:4] == (2, 2, 2, 4)


def test_an_open_rest_is_not_divided_up(tmp_path: Path) -> None:
    layout = declared_layout([_rank(tmp_path, {"mesh_tp": (0, 1)}, 8)])
    assert _degrees(layout) == (2, None, None, None, None)
    assert layout is not None
    assert layout.confidence < TRUSTED


def test_degrees_that_do_not_multiply_to_the_world(tmp_path: Path) -> None:
    groups = {"mesh_tp": (0, 1), "mesh_cp": (0, 2), "mesh_pp": (0, 4), "mesh_dp": (0, 8)}
    layout = declared_layout([_rank(tmp_path, groups, 64)])
    assert layout is not None
    assert layout.dp is None
    assert layout.dimensions["dp"].against == ("the declared degrees do not multiply to the world of 64",)


def test_ranks_that_declare_other_sizes(tmp_path: Path) -> None:
    ranks = [_rank(tmp_path, {"mesh_tp": (0, 1)}, 4), _rank(tmp_path, {"mesh_tp": (1, 2, 3)}, 4, own=1)]
    layout = declared_layout(ranks)
    assert layout is not None
    assert layout.tp is None
    assert layout.dimensions["tp"].against == ("ranks declare groups of 2 and 3 for tp",)


def test_groups_that_share_more_than_the_rank_are_no_axes(tmp_path: Path) -> None:
    layout = declared_layout([_rank(tmp_path, {"mesh_tp": (0, 1), "mesh_dp": (0, 1)}, 2)])
    assert layout is not None
    assert layout.tp is None


def test_a_call_that_contradicts_the_description(tmp_path: Path) -> None:
    calls = [entry("send 0->1", 1, ("1", "mesh_tp"))]
    layout = declared_layout([_rank(tmp_path, {"mesh_tp": (0, 1), "mesh_pp": (0, 2)}, 4, calls)])
    assert layout is not None
    assert layout.tp is None
    assert layout.dimensions["tp"].against == ("send_recv runs on groups described as tp",)


def test_without_telling_descriptions_there_is_no_layout(tmp_path: Path) -> None:
    assert declared_layout([_rank(tmp_path, {"undefined": (0, 1), "EMBEDDING_GROUP": (0, 1)}, 2)]) is None


@pytest.mark.parametrize(
    ("job", "degrees", "stages"),
    [("lock_gil_1st", (4, 1, 2, 2, 8), 8), ("gpu_error_1st", (2, 1, 4, 2, 4), 4)],
)
def test_sixteen_real_dumps(shared: Path, job: str, degrees: tuple[int, ...], stages: int) -> None:
    folder = shared / "data/formats/flight_recorder/nvrx_megatron16" / job
    ranks = [view(label(read(folder / f"_dump_{rank}")[0])) for rank in range(16)]
    layout = declared_layout(ranks)
    assert layout is not None
    assert _degrees(layout) == degrees
    assert layout.sequence_parallel is True
    assert layout.rank_order == "tp-dp-pp"
    assert dict(layout.stage_of_rank) == {rank: rank // stages for rank in range(16)}
    assert len(layout.dimensions["tp"].groups) == 16 // degrees[0]
    assert _degrees(declared_layout(ranks[5:6])) == degrees
