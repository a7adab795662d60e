"""Who takes part in a call, told from the ends of real ones: all ranks of these jobs are in every group."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from heuristics.kernels_only.calls import Calls, timed
from heuristics.kernels_only.clocks import align
from heuristics.kernels_only.partners import Meetings, meetings
from heuristics.kernels_only.together import together
from heuristics.label import label
from heuristics.observe import view
from heuristics.timing import timing_of
from heuristics.view import UNKNOWN, RankView
from parsers import read


def ranks(folder: Path) -> list[RankView]:
    """The ranks of a folder, without groups and phases."""
    found = []
    for file in sorted(folder.glob("rank*.json.gz")):
        for trace in read(file):
            rank = label(trace)
            seen = view(rank)
            times = timing_of(rank, np.full(len(seen.family_of_call), UNKNOWN))
            found.append(replace(seen, timing=times))
    return found


def met(folder: Path) -> tuple[list[Calls], list[Meetings]]:
    """The calls of a folder and who takes part in them."""
    calls = timed(ranks(folder))
    return calls, meetings(calls, together(calls, align(calls), 1.0))


@pytest.mark.parametrize(
    ("job", "world", "long"),
    [
        ("megatron_tp8_2024", 8, {"all_reduce": 81}),
        ("torchtitan_fsdp4_2026", 4, {"all_gather": 15, "reduce_scatter": 8}),
        ("lightllm_tp8_decode", 8, {"all_reduce": 123}),
        ("hta/dlrm_8rank_v100", 8, {"all_to_all": 5, "all_reduce": 3}),
    ],
)
def test_every_call_of_one_group_is_on_all_ranks(shared: Path, job: str, world: int, long: dict[str, int]) -> None:
    calls, found = met(shared / "data" / "real" / job)
    for one, own in zip(calls, found, strict=True):
        on_all = [call for call in range(len(one)) if own.group(call) == tuple(range(world))]
        counted = Counter(one.primitive(call) for call in on_all)
        assert {name: counted[name] >= number for name, number in long.items()} == dict.fromkeys(long, True)


def test_clocks_of_files_are_put_right(shared: Path) -> None:
    """The two files of the job are 31 µs apart in all of its 12 calls."""
    offsets = align(timed(ranks(shared / "data" / "real" / "torchrec_resnet_dp2"))).offset_ns
    assert offsets[0] - offsets[1] == pytest.approx(31_000, abs=1_500)
