from __future__ import annotations

from collections.abc import Sequence

from analyzer.matching import match
from analyzer.summary.model import RankSummary
from heuristics.labelled import GpuRole
from tests.analyzer.hand_made import Call, Kernel, labelled, read

COMM = GpuRole.COMM
LATE = 10_000.0


def job(
    offsets: Sequence[float], *, calls: int = 3, late: int | None = 2, world: int | None = None, **call: object
) -> list[RankSummary]:
    """Ranks that meet in ``calls`` all-reduces of 30 µs; rank ``late`` arrives 10 ms after the others."""
    world = len(offsets) if world is None else world
    ranks = []
    for r, offset in enumerate(offsets):
        wait = 0.0 if r == late else LATE if late is not None else 0.0
        end = [offset + 20_000 * (i + 1) for i in range(calls)]
        kernels = [Kernel(e - 30 - wait, 30 + wait, COMM, 20, call=i) for i, e in enumerate(end)]
        made = [Call(size=world, **{"seq": i, **call}) for i in range(calls)]  # type: ignore[arg-type]
        ranks.append(
            read(labelled(kernels, made, rank=r, groups=[range(world)], world_size=world, path=f"rank{r}.json"))
        )
    return ranks


def test_waiting_is_not_transfer_when_one_rank_is_late() -> None:
    found = match(job([0, 0, 0, 0]))
    assert [w.tolist() for w in found.wait_ns] == [[10_000_000] * 3] * 2 + [[0] * 3] + [[10_000_000] * 3]
    assert found.matched == 3


def test_clock_offsets_are_taken_out_before_arrivals_are_compared() -> None:
    found = match(job([0, 250, -180, 90]))
    assert found.clock.aligned
    assert found.clock.offset_us == {"0": 0, "1": 250, "2": -180, "3": 90}
    assert found.clock.residual_us == 0
    assert [w.tolist()[0] for w in found.wait_ns] == [10_000_000, 10_000_000, 0, 10_000_000]


def test_a_collective_with_a_missing_participant_is_not_matched() -> None:
    found = match(job([0, 0, 0], world=4))
    assert found.matched == 0
    assert all((w == -1).all() for w in found.wait_ns)
    assert not found.clock.aligned


def test_two_collectives_leave_nothing_to_check_a_clock_with() -> None:
    found = match(job([0, 250], calls=2))
    assert not found.clock.aligned
    assert all((w == -1).all() for w in found.wait_ns)


def test_one_rank_cannot_know_how_long_it_waited() -> None:
    found = match(job([0, 0])[:1])
    assert (found.wait_ns[0] == -1).all()
    assert found.clock.residual_us is None


def test_without_sequence_numbers_the_order_within_a_group_matches() -> None:
    found = match(job([0, 40], late=1, seq=None))
    assert found.matched == 3
    assert found.clock.offset_us == {"0": 0, "1": 40}


def test_identifiers_match_across_ranks_that_see_different_parts() -> None:
    def rank(r: int, first: int) -> RankSummary:
        ids = range(first, first + 4)
        kernels = [Kernel(1000 * i - 30 - 5 * r, 30 + 5 * r, COMM, 20, call=n) for n, i in enumerate(ids, 0)]
        made = [Call(size=2, comms_id=100 + i) for i in ids]
        return read(labelled(kernels, made, rank=r, path=f"rank{r}.json"))

    found = match([rank(0, 10), rank(1, 11)])
    assert found.matched == 3
    assert found.wait_ns[0].tolist() == [-1, 0, 0, 0]
    assert found.wait_ns[1].tolist() == [5000, 5000, 5000, -1]


def test_calls_on_a_cpu_are_not_compared() -> None:
    ranks = [read(labelled((), [Call(ts=0, dur=10, seq=i) for i in range(4)], rank=r)) for r in range(2)]
    assert match(ranks).matched == 0


def test_messages_between_two_ranks_are_not_matched_as_collectives() -> None:
    assert match(job([0, 0], late=None, primitive="send_recv")).matched == 0


def test_a_clock_that_runs_fast_is_straightened() -> None:
    ranks = []
    for r in range(4):
        fast = 50e-6 if r == 1 else 0.0
        ends = [20_000.0 * (i + 1) for i in range(40)]
        late = [5_000.0 if r != 3 else 0.0 for _ in ends]
        kernels = [
            Kernel((e - 30 - w) * (1 + fast), (30 + w) * (1 + fast), COMM, 20, call=i)
            for i, (e, w) in enumerate(zip(ends, late, strict=True))
        ]
        calls = [Call(size=4, seq=i) for i in range(40)]
        ranks.append(read(labelled(kernels, calls, rank=r, groups=[range(4)], world_size=4, path=f"rank{r}.json")))
    found = match(ranks)
    # 50 ppm over 0.8 s are 40 us; unstraightened, half of it remains at either end.
    assert found.clock.residual_us is not None
    assert found.clock.residual_us < 1
    assert found.wait_ns[3].max() < 1000
    assert abs(found.wait_ns[1] - 5_000_000).max() < 2000


def test_ranks_that_never_meet_have_no_common_clock() -> None:
    ranks = []
    for r in range(4):
        kernels = [Kernel(1000.0 * i + 7 * r, 30, COMM, 20, call=i) for i in range(4)]
        group = [0, 1] if r < 2 else [2, 3]
        calls = [Call(size=2, seq=i) for i in range(4)]
        ranks.append(read(labelled(kernels, calls, rank=r, groups=[group], world_size=4, path=f"rank{r}.json")))
    found = match(ranks)
    assert found.matched == 8
    assert not found.clock.aligned
    assert found.clock.offset_us == {"0": 0, "1": 7}
    assert [w.tolist() for w in found.wait_ns] == [[0] * 4] * 4


def rooted(primitive: str, arrivals: Sequence[float]) -> list[list[int]]:
    """Three all-reduces fix the clocks; then a rooted call with the given arrivals (root: rank 0) ends at 10 ms."""
    ranks = []
    for r, arrival in enumerate(arrivals):
        kernels = [Kernel(1000.0 * i, 30, COMM, 20, call=i) for i in range(3)]
        kernels.append(Kernel(arrival, 10_000 - arrival, COMM, 20, call=3))
        calls = [Call(size=3, seq=i) for i in range(3)] + [Call(size=3, seq=3, primitive=primitive, root=0)]
        ranks.append(read(labelled(kernels, calls, rank=r, groups=[range(3)], world_size=3, path=f"rank{r}.json")))
    return [w.tolist()[3:] for w in match(ranks).wait_ns]


def test_a_broadcast_waits_for_its_root_and_for_nobody_else() -> None:
    assert rooted("broadcast", [8000, 5000, 9000]) == [[0], [3_000_000], [0]]


def test_only_the_root_of_a_reduction_waits() -> None:
    assert rooted("reduce", [5000, 8000, 9000]) == [[4_000_000], [0], [0]]


def message(send: tuple[float, float], receive: tuple[float, float]) -> list[int]:
    """Waits of a send and its receive, each (begin, end); all-reduces before them fix the clocks."""
    ranks = []
    for r, (begin, end) in enumerate((send, receive)):
        kernels = [Kernel(1000.0 * i, 30, COMM, 20, call=i) for i in range(3)]
        kernels.append(Kernel(begin, end - begin, COMM, 28, call=3))
        calls = [Call(seq=i) for i in range(3)]
        calls.append(Call(primitive="send_recv", direction="recv" if r else "send", peer=1 - r))
        ranks.append(read(labelled(kernels, calls, rank=r, path=f"rank{r}.json")))
    return [int(w[3]) for w in match(ranks).wait_ns]


def test_a_receive_waits_for_its_send() -> None:
    assert message(send=(9000, 9050), receive=(5000, 9060)) == [0, 4_000_000]


def test_a_send_that_needs_its_receiver_waits_for_it() -> None:
    assert message(send=(5000, 9060), receive=(9000, 9060)) == [4_000_000, 0]


def test_a_short_send_leaves_before_its_receiver_comes() -> None:
    assert message(send=(5000, 5010), receive=(9000, 9060)) == [0, 0]


def test_ranks_that_do_not_agree_on_a_collective_are_named() -> None:
    ranks = []
    for r in range(3):
        kernels = [Kernel(1000.0 * i, 30, COMM, 20, call=i) for i in range(6)]
        calls = [Call(size=3, seq=i) for i in range(6)]
        if r == 2:
            calls[3] = Call(size=3, seq=3, size_bytes=2048)
            calls[4] = Call(size=3, seq=4, primitive="all_gather")
        if r == 1:
            del kernels[2]
        ranks.append(read(labelled(kernels, calls, rank=r, groups=[range(3)], world_size=3, path=f"rank{r}.json")))
    said = {d.state: (d.ranks, d.count) for d in match(ranks).differences}
    assert said == {
        "COLLECTIVE_TYPE_MISMATCH": ((0, 1, 2), 1),
        "SIZE_OR_SYNTAX_MISMATCH": ((0, 1, 2), 1),
        "UNDECIDED": ((1,), 1),
    }


def groupless(jitter: float) -> int:
    ranks = []
    for r in range(4):
        end = [1000.0 * (i + 1) + (jitter * ((r * 7 + i * 3) % 5) if r else 0.0) for i in range(5)]
        kernels = [Kernel(e - 200, 200, COMM, 20, call=i) for i, e in enumerate(end)]
        calls = [Call(group=None, size=None) for _ in end]
        ranks.append(read(labelled(kernels, calls, rank=r, groups=(), world_size=4, path=f"rank{r}.json")))
    return match(ranks).matched


def test_calls_without_a_group_are_matched_where_they_end_together() -> None:
    assert groupless(0.5) == 5


def test_calls_without_a_group_that_do_not_end_together_stay_apart() -> None:
    assert groupless(100.0) == 0
