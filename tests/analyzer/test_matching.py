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
