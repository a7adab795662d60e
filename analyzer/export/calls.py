"""What an export says about each call of a rank, as columns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from analyzer import intervals
from analyzer.exposure import Timeline
from analyzer.intervals import Floats, Ints
from analyzer.measured import Measured
from analyzer.rows import bus_factor
from heuristics.arrays import NULL, codes, ints


@dataclass(frozen=True, eq=False)
class Calls:
    """One entry per row of the rank's ``COLLECTIVES``; times in ns on the rank's own clock.

    Attributes:
        start, end: equal where the call left nothing to measure.
        wait: waiting for other ranks, which begins each call; -1 where it cannot be told from transfer.
        exposed: time of the call with no compute beside it.
        size, sent: bytes of the whole array, bytes this rank sends; -1 where not known.
        step: the step's own number, -1 for none.
        algbw, busbw: decimal GB/s from transfer time, NaN where waiting is not known.
        algbw_with_wait: of the whole call: a lower bound, always known where the bytes are.
        texts: columns of text or None.
    """

    start: Ints
    end: Ints
    wait: Ints
    exposed: Ints
    size: Ints
    sent: Ints
    step: Ints
    algbw: Floats
    busbw: Floats
    algbw_with_wait: Floats
    texts: dict[str, list[str | None]]

    def __len__(self) -> int:
        return len(self.start)

    def args(self, row: int) -> dict[str, Any]:
        """What is known of a call, as arguments of an event; what is not known is left out."""
        said: dict[str, Any] = {
            name: self.texts[name][row]
            for name in ("dim", "primitive", "phase", "dtype", "link", "group", "library")
            if self.texts[name][row] is not None
        }
        numbers = {
            "group_size": int(self.texts["group_size"][row] or NULL),
            "size_bytes": int(self.size[row]),
            "sent_bytes": int(self.sent[row]),
            "step": int(self.step[row]),
        }
        said |= {name: number for name, number in numbers.items() if number != NULL}
        if self.end[row] > self.start[row]:
            said["exposed_us"] = int(self.exposed[row]) / 1000
            if self.wait[row] != NULL:
                said["wait_us"] = int(self.wait[row]) / 1000
                said["transfer_us"] = int(self.end[row] - self.start[row] - self.wait[row]) / 1000
            for name in ("algbw", "busbw", "algbw_with_wait"):
                rate = float(getattr(self, name)[row])
                if not np.isnan(rate) and not (name == "algbw_with_wait" and "algbw" in said):
                    said[name] = round(rate, 3)
        return said


def calls_of(rank: Measured, line: Timeline) -> Calls:
    """The calls of a rank.

    Args:
        rank: the rank.
        line: its timeline: the full one, where compute lies where it ran, or the condensed one of a summary.
    """
    table = rank.source.collectives
    start, end = line.call_start, line.call_end
    length = end - start
    size, sent = ints(table, "size_bytes"), ints(table, "sent_bytes")
    wait = np.where(length > 0, rank.wait_ns, NULL)
    texts = _texts(rank)
    factor = np.array(
        [
            bus_factor(primitive or "", int(n) if n else None) or np.nan
            for primitive, n in zip(texts["primitive"], texts["group_size"], strict=True)
        ],
        dtype=np.float64,
    )
    known = size >= 0
    algbw = _rate(size, length - wait, known & (wait != NULL))
    return Calls(
        start=start,
        end=end,
        wait=wait,
        exposed=length - intervals.covered(line.compute, start, end),
        size=size,
        sent=sent,
        step=np.append(rank.source.steps.number, NULL)[ints(table, "step")],
        algbw=algbw,
        busbw=algbw * factor,
        algbw_with_wait=_rate(size, length, known),
        texts=texts,
    )


def _rate(size: Ints, length: Ints, known: np.ndarray) -> Floats:
    """Bytes per ns, which are decimal GB/s."""
    out = np.full(len(size), np.nan)
    good = known & (length > 0)
    out[good] = size[good] / length[good]
    return out


def _texts(rank: Measured) -> dict[str, list[str | None]]:
    table = rank.source.collectives
    out: dict[str, list[str | None]] = {"dim": list(rank.dims)}
    for name in ("primitive", "phase", "dtype", "library", "op", "name", "role", "direction", "classified_by"):
        code, values = codes(table, name)
        words: list[str | None] = [*values, None]
        out[name] = [words[i] for i in code.tolist()]
    group = ints(table, "group").tolist()
    names = [*rank.source.groups.column("name").to_pylist(), None]
    links = [*rank.links, None]
    out["group"] = [names[i] for i in group]
    out["link"] = [links[i] for i in group]
    out["group_size"] = [str(n) if n > 0 else None for n in ints(table, "group_size").tolist()]
    return out
