"""The simulator obeys what a GPU does: order on a stream, everyone at a collective, waiting for the last."""

from __future__ import annotations

import json
from collections import defaultdict
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from benchmarks.synthesis.generate import Job, generate, simulate
from benchmarks.synthesis.groups import Group
from benchmarks.synthesis.links import Links
from benchmarks.synthesis.messages import all_reduce, receive, send
from benchmarks.synthesis.program import Kernel, Launch, Program
from benchmarks.synthesis.simulate import DeadlockError, Done, Simulator
from benchmarks.synthesis.spec import Spec

PAIR = Group("0", "default_pg", (0, 1))


@pytest.fixture(scope="module")
def job() -> Job:
    return simulate(Spec.parse("megatron", "tp2-pp2-dp2", steps=1))


def by_stream(done: list[Done]) -> dict[str, list[Done]]:
    streams = defaultdict(list)
    for item in done:
        streams[item.stream].append(item)
    return streams


def test_a_stream_runs_one_thing_at_a_time_in_order(job: Job) -> None:
    for timeline in job.timelines.values():
        for items in by_stream(timeline.done).values():
            for before, after in pairwise(items):
                assert after.start_us >= before.end_us


def test_nothing_starts_before_it_was_asked_for(job: Job) -> None:
    assert all(d.start_us > d.cpu_us for t in job.timelines.values() for d in t.done)


def test_members_end_a_collective_as_those_of_real_traces_do() -> None:
    """Published ones: calls of 20 µs within 2 µs; long ones within 5 % of the transfer at the median, 22 % at 0.9."""
    job = simulate(Spec.parse("torchtitan", "dp4"))
    spans: dict[tuple[str, int, int], list[tuple[float, float]]] = defaultdict(list)
    for timeline in job.timelines.values():
        count: dict[tuple[str, int], int] = defaultdict(int)
        for done in timeline.done:
            if isinstance(done.operation, Launch) and done.operation.messages[0].peer is None:
                group = done.operation.messages[0].group
                key = (group.name, group.ranks[0])
                if group.size > 1:
                    spans[(*key, count[key])].append((done.start_us, done.end_us))
                count[key] += 1
    assert len(spans) > 80
    last_us = np.array([max(e for _, e in own) - min(e for _, e in own) for own in spans.values()])
    transfer_us = np.array([min(e for _, e in own) - max(s for s, _ in own) for own in spans.values()])
    assert min(transfer_us) > 5.0  # nobody leaves before the last has come
    assert 0.3 < np.median(last_us[transfer_us < 20]) < 2.0
    share = np.quantile((last_us / transfer_us)[transfer_us > 50], [0.5, 0.9])
    assert 0.02 < share[0] < 0.07
    assert 0.08 < share[1] < 0.30


def pair(late_us: float) -> dict[int, Program]:
    programs = {rank: Program(rank) for rank in (0, 1)}
    programs[1].compute("slow", late_us)
    for program in programs.values():
        program.collective(all_reduce(PAIR, 1 << 20, "Float"))
    return programs


def test_who_comes_early_waits_and_who_comes_late_does_not() -> None:
    timelines = Simulator(pair(5000.0), Spec(tp=2), Links()).run()
    early, late = (next(d for d in timelines[r].done if isinstance(d.operation, Launch)) for r in (0, 1))
    assert early.end_us - early.start_us > 4500
    assert late.end_us - late.start_us < 300
    assert abs(early.end_us - late.end_us) < 2


def test_transfer_time_is_what_a_ring_sends_over_the_bandwidth() -> None:
    links = Links(node_gbps=100.0, node_us=10.0)
    assert links.transfer_us(all_reduce(Group("0", "", range(4)), 10**6, "Float"), 0) == pytest.approx(
        10.0 + 2 * 3 / 4 * 4e6 / 100e3
    )
    assert links.transfer_us(send(Group("0", "", range(4)), 1, 10**6, "BFloat16"), 0) == pytest.approx(10.0 + 20.0)


def test_groups_across_nodes_use_the_network() -> None:
    links = Links(gpus_per_node=8, node_gbps=300.0, network_gbps=40.0)
    inside = links.transfer_us(all_reduce(Group("0", "", range(8)), 10**7, "Float"), 0)
    across = links.transfer_us(all_reduce(Group("0", "", range(0, 64, 8)), 10**7, "Float"), 0)
    assert across > 6 * inside


def test_ranks_that_wait_for_each_other_are_reported() -> None:
    programs = {rank: Program(rank) for rank in (0, 1)}
    for rank, program in programs.items():
        program.wait(program.launch(receive(PAIR, 1 - rank, 10, "Float")))
        program.wait(program.launch(send(PAIR, 1 - rank, 10, "Float")))
    with pytest.raises(DeadlockError, match="2 ranks wait"):
        Simulator(programs, Spec(tp=2), Links()).run()


def test_work_beside_a_collective_is_not_delayed_by_it() -> None:
    program = Program(0)
    place = program.collective(all_reduce(PAIR, 1 << 28, "Float"), is_async=True)
    program.compute("beside", 50.0)
    program.wait(place)
    program.compute("after", 50.0)
    other = Program(1)
    other.wait(other.collective(all_reduce(PAIR, 1 << 28, "Float"), is_async=True))
    done = Simulator({0: program, 1: other}, Spec(tp=2), Links()).run()[0].done
    times = {d.operation.name if isinstance(d.operation, Kernel) else "collective": d for d in done}
    assert times["beside"].start_us < times["collective"].end_us
    assert times["after"].start_us > times["collective"].end_us


def test_a_synchronous_call_runs_on_the_callers_stream_from_torch_2_8_on() -> None:
    for torch, stream in (("2.7", "pg:0"), ("2.8", "compute")):
        spec = Spec(tp=2, writing=replace(Spec().writing, torch=torch))
        timelines = Simulator(pair(10.0), spec, Links()).run()
        assert next(d.stream for d in timelines[0].done if isinstance(d.operation, Launch)) == stream


def test_a_large_world_costs_the_pipelines_of_the_ranks_that_are_written() -> None:
    spec = Spec.parse("megatron", "tp8-pp16-dp128-m16", steps=1, ranks=(0, 9000))
    done = simulate(spec)
    assert spec.world == 16_384
    assert sorted(done.programs) == sorted({r * 1024 for r in range(16)} | {9000 % 1024 + r * 1024 for r in range(16)})
    assert done.written == (0, 9000)


def test_the_same_spec_gives_the_same_files(tmp_path: Path) -> None:
    spec = Spec.parse("torchtitan", "dp2", steps=1)
    one, two = generate(spec, tmp_path / "a"), generate(spec, tmp_path / "b")
    other = generate(replace(spec, seed=1), tmp_path / "c")

    def text(folder: Path) -> bytes:
        import gzip

        return gzip.decompress((folder / "rank1.json.gz").read_bytes())

    assert text(one) == text(two) != text(other)
    assert json.loads((one / "truth.json").read_text())["world_size"] == 2


def test_truth_names_what_was_asked_for(tmp_path: Path) -> None:
    spec = Spec.parse("megatron", "tp2-cp2-pp2-dp2", steps=1, ranks=(0,))
    told = json.loads((generate(spec, tmp_path / "x") / "truth.json").read_text())
    said = {key: told[key] for key in ("tp", "cp", "pp", "dp", "ep", "zero_stage", "sp", "schedule", "microbatches")}
    assert said == {
        "tp": 2,
        "cp": 2,
        "pp": 2,
        "dp": 2,
        "ep": 1,
        "zero_stage": 1,
        "sp": True,
        "schedule": "1F1B",
        "microbatches": 4,
    }
    assert list(told["observed_per_step"]) == ["0"]
