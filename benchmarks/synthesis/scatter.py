"""How far apart the members of one collective end it, and how far apart their files' clocks are, as real traces show.

Measured by ``python -m benchmarks.end_scatter`` on the published traces of two ranks or more (docs/accuracy.md has the
table). They are traces of single hosts; ends across hosts are drawn by the same law, since nothing says otherwise.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from math import cos, pi

from benchmarks.synthesis.program import Message

SHORT_US = 0.5
"""Mean lateness of a member whatever the call: calls of 6 to 20 µs end within 0.5 to 2 µs on 2 to 8 ranks (DLRM on
V100, Llama on H100, LightLLM's all-reduces on H200, Pax on A100)."""

SHARE, SPREAD, MOST = 0.045, 1.1, 0.35
"""How late the last member is against the first, as a share of the transfer: median over calls, sigma of its logarithm,
and bound. Megatron's 580 µs all-reduces end within 30 µs (5.0 %, nine tenths within 6.7 %); Pax' gathers and scatters
beside compute, of 281 µs, within 16 µs (5.0 %, nine tenths within 21.8 %, 108 µs at most)."""

DISPATCH_SHARE = 0.7
"""The same for kernels of expert dispatch, which end when their own tokens are there: LightLLM's (DeepEP) end within
71 % of the time from the last start to the first end, at the median."""

CLOCKS_US = (0.5, 1.0, 1.0, 1.5, 2.0, 2.0, 15.0)
"""Standard deviations between the files of one host, one of them drawn for a job. Every process converts its counter to
time on its own (c10/util/ApproximateClock.cpp): within 3 µs in most traces, 31 µs between the two of torchrec's ResNet,
33 µs among the four of its embeddings."""


@dataclass(frozen=True)
class Lateness:
    """How late each member of one call ends it, from the moment the first could.

    Attributes:
        us: of the last.
        turn: where on the ring the last one is, 0 to 1.
        ring: whether members next to each other end at similar times; else they differ on their own.
    """

    us: float
    turn: float
    ring: bool

    def of(self, message: Message, rank: int, noise: random.Random) -> float:
        """Of one member, in microseconds."""
        short = noise.expovariate(1.0 / SHORT_US)
        if not self.ring:
            return short + self.us * noise.random()
        ranks = message.group.ranks
        return short + self.us * (0.5 + 0.5 * cos(2 * pi * (ranks.index(rank) / len(ranks) - self.turn)))


def lateness(message: Message, transfer_us: float, is_dispatch: bool, chance: random.Random) -> Lateness:
    """Draw how the members of a call end it. Ring collectives hand on pieces: the last piece comes round in turn."""
    typical = DISPATCH_SHARE if is_dispatch else SHARE
    share = min(typical * chance.lognormvariate(0.0, SPREAD), max(MOST, typical))
    return Lateness(share * transfer_us, chance.random(), message.peer is None and message.primitive != "SendRecv")


def clock_us(seed: int, job: str, rank: int) -> float:
    """What the times of a rank's file are ahead of its host's clock."""
    scale = random.Random(f"{seed}:{job}:clocks").choice(CLOCKS_US)
    return random.Random(f"{seed}:{job}:clock:{rank}").gauss(0.0, scale)
