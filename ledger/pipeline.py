"""Pipelines: idle share and sends per rank, by schedule.

A *stage* here is a pipeline rank, 0 to p-1. With virtual stages a rank holds v chunks of the model: chunk c of rank r
is global stage ``c*p + r`` when looped (interleaved), and ``r`` and ``2p-1-r`` when V-shaped.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

from ledger.config import SCHEDULES
from ledger.errors import LedgerError


@dataclass(frozen=True)
class PassCosts:
    """Time of one forward, backward-for-input and backward-for-weight pass of one rank, in any common unit.

    ``overlapped`` is a forward and a whole backward run at once (DualPipe); null means that nothing is won by it.
    """

    forward: Fraction = Fraction(1)
    backward_input: Fraction = Fraction(1)
    backward_weight: Fraction = Fraction(1)
    overlapped: Fraction | None = None

    @property
    def whole(self) -> Fraction:
        """One microbatch, forward and backward."""
        return self.forward + self.backward_input + self.backward_weight


EQUAL_COSTS = PassCosts()
"""Forward, backward-for-input and backward-for-weight take the same time: the assumption of the zero-bubble papers."""


@dataclass(frozen=True)
class Bubble:
    """Idle time of a pipeline rank in both conventions in use.

    Attributes:
        share_of_total: idle time over the whole step, (p-1)/(m+p-1) for 1F1B.
        relative_to_ideal: idle time over the time the work itself takes, (p-1)/m for 1F1B; above 1 where a rank
            idles longer than it works.
        formula: the second, in symbols.
        source: where it is published.
    """

    share_of_total: float
    relative_to_ideal: float
    formula: str
    source: str


_GPIPE = "Huang et al. 2019 (GPipe); Narayanan et al. 2021, section 2.2.1"
_INTERLEAVED = "Narayanan et al. 2021, section 2.2.2"
_ZERO_BUBBLE = "Qi et al. 2023 (Zero Bubble), table 1"
_ZBV = "Qi et al. 2023 (Zero Bubble), section 6"
_DUALPIPE = "deepseek-ai/DualPipe README.md, bubble table"


def bubble(schedule: str, p: int, m: int, v: int = 1, costs: PassCosts = EQUAL_COSTS) -> Bubble:
    """Idle share of a pipeline of ``p`` ranks, ``m`` microbatches and ``v`` virtual stages per rank.

    Communication costs nothing here. The V-shaped and zero-bubble figures hold once m is large enough to fill the
    pipeline (m >= 2p). Dividing the zero-bubble figure by v (interleaved zero bubble) follows the interleaving argument
    and is not in the paper.

    Raises:
        LedgerError: unknown schedule, a count below 1, or unequal costs for zbv.
    """
    check_pipeline(schedule, p, m, v)
    idle, formula, source = _idle_in_microbatches(schedule, p, v, costs)
    if p == 1:
        idle = Fraction(0)
    relative = max(idle, Fraction(0)) / m
    return Bubble(float(relative / (1 + relative)), float(relative), formula, source)


def _idle_in_microbatches(schedule: str, p: int, v: int, costs: PassCosts) -> tuple[Fraction, str, str]:
    """Idle time in units of one microbatch's work on one rank."""
    b, w, whole = costs.backward_input, costs.backward_weight, costs.whole
    if schedule in ("gpipe", "1f1b"):
        return Fraction(p - 1), "(p-1)/m", _GPIPE
    if schedule in ("interleaved_1f1b", "looped_bfs"):
        return Fraction(p - 1, v), "(p-1)/(v·m)", _INTERLEAVED
    if schedule == "zero_bubble":
        return (p - 1) * (costs.forward + b - w) / (v * whole), "(p-1)(F+B-W)/(v·m·(F+B+W))", _ZERO_BUBBLE
    if schedule == "zbv":
        if not costs.forward == b == w:
            raise LedgerError("the bubble of zbv has a closed form for F = B = W only", key="schedule")
        return Fraction(0), "0 for F = B = W", _ZBV
    both = whole if costs.overlapped is None else costs.overlapped
    each = (both + (b + w) - 3 * w) / whole
    if schedule == "dualpipe":
        return (Fraction(p, 2) - 1) * each, "(p/2-1)(F&B+B-3W)/(m(F+B))", _DUALPIPE
    return (p - 1) * each / 2, "(p-1)(F&B+B-3W)/(2m(F+B))", _DUALPIPE


@dataclass(frozen=True)
class Sends:
    """Messages one pipeline rank sends in a step: activations forward, gradients backward."""

    forward: int
    backward: int

    @property
    def total(self) -> int:
        """Both directions."""
        return self.forward + self.backward


def sends_per_rank(schedule: str, p: int, v: int, m: int, stage: int) -> Sends:
    """Messages that pipeline rank ``stage`` of ``p`` sends in one step of ``m`` microbatches.

    A hand-over between two chunks of the same rank is no message. GPipe and 1F1B: ends m, middle 2m. Looped (v chunks):
    ends m(2v-1), middle 2mv. V-shaped: ends 2m, middle 4m. Counted from the placement of chunks; the receives of a step
    are as many, taken over all ranks.

    Source: torch/distributed/pipelining/schedules.py and megatron/core/pipeline_parallel/schedules.py.

    Raises:
        LedgerError: unknown schedule, a count below 1, or a stage outside the pipeline.
    """
    check_pipeline(schedule, p, m, v)
    if not 0 <= stage < p:
        raise LedgerError(f"stage {stage} is outside a pipeline of {p}", key="stage")
    if p == 1:
        return Sends(0, 0)
    if schedule == "dualpipe":
        return _bidirectional_sends(p, m, stage)
    forward = backward = 0
    for chunk in chunks_of_rank(schedule, p, v, stage):
        last = p * v - 1
        if chunk < last and rank_of_chunk(schedule, p, chunk + 1) != stage:
            forward += m
        if chunk > 0 and rank_of_chunk(schedule, p, chunk - 1) != stage:
            backward += m
    return Sends(forward, backward)


def _bidirectional_sends(p: int, m: int, stage: int) -> Sends:
    """DualPipe: half of the microbatches enter at each end."""
    down, up = m - m // 2, m // 2
    first, last = stage == 0, stage == p - 1
    forward = (0 if last else down) + (0 if first else up)
    backward = (0 if first else down) + (0 if last else up)
    return Sends(forward, backward)


def chunks_of_rank(schedule: str, p: int, v: int, stage: int) -> tuple[int, ...]:
    """Global stages (0 to p·v-1, in forward order) that pipeline rank ``stage`` holds."""
    if schedule in ("zbv", "dualpipev"):
        return (stage, 2 * p - 1 - stage)
    return tuple(chunk * p + stage for chunk in range(v))


def rank_of_chunk(schedule: str, p: int, chunk: int) -> int:
    """Pipeline rank that holds global stage ``chunk``."""
    if schedule in ("zbv", "dualpipev"):
        return chunk if chunk < p else 2 * p - 1 - chunk
    return chunk % p


def microbatches_in_flight(schedule: str, p: int, m: int, v: int, stage: int) -> Fraction:
    """Most microbatches whose activations pipeline rank ``stage`` holds at once, in microbatches of the whole rank.

    1F1B holds p - stage, GPipe all m, interleaved 1F1B min(m·v, 2(p-stage-1) + (v-1)p + 1) chunks of 1/v each
    (the warm-up count of megatron/core/pipeline_parallel/schedules.py plus the one in progress), ZB-V p, DualPipe p+1;
    without a pipeline 1.

    Raises:
        LedgerError: unknown schedule, a count below 1, or a stage outside the pipeline.
    """
    check_pipeline(schedule, p, m, v)
    if not 0 <= stage < p:
        raise LedgerError(f"stage {stage} is outside a pipeline of {p}", key="stage")
    if p == 1:
        return Fraction(1)
    if schedule in ("gpipe", "looped_bfs"):
        return Fraction(m)
    if schedule in ("dualpipe", "dualpipev"):
        return Fraction(min(m, p + 1))
    if schedule == "zbv":
        return Fraction(min(m, p))
    if v == 1:
        return Fraction(min(m, p - stage))
    chunks = min(m * v, 2 * (p - stage - 1) + (v - 1) * p + 1)
    return Fraction(chunks, v)


def check_pipeline(schedule: str, p: int, m: int, v: int) -> None:
    """Raise `LedgerError` unless the four describe a pipeline."""
    if schedule not in SCHEDULES:
        raise LedgerError(f"schedule {schedule!r} is not one of {', '.join(SCHEDULES)}", key="schedule")
    if min(p, m, v) < 1:
        raise LedgerError(f"p {p}, m {m} and v {v} must be at least 1", key="microbatches")
