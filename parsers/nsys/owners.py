"""Processes and threads of a report: what a global id holds, and small numbers for processes."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from parsers.columns import Ints
from parsers.errors import InputError

PROCESS_SHIFT = 24
"""A global id holds the thread in its lowest 24 bits, then the process, then the virtual machine and the hardware."""

THREAD_MASK = (1 << PROCESS_SHIFT) - 1

MOST_OWNERS = np.iinfo(np.int16).max + 1
"""Processes in one report: more than a node runs, so a report with more is damaged."""


class Owners:
    """Numbers the processes of a report in order of first appearance: there are few, and rows are many.

    Args:
        name: of the report, for errors.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self.values: list[int] = []
        self._numbers: dict[int, int] = {}

    def numbers(self, global_ids: Ints) -> npt.NDArray[np.int16]:
        """The number of the process in each global id (of a process or of a thread).

        Raises:
            InputError: there are more processes than `MOST_OWNERS`.
        """
        values, which = np.unique(global_ids >> PROCESS_SHIFT, return_inverse=True)
        known = [self.number(value) for value in values.tolist()]
        return np.array(known, np.int16)[which]

    def number(self, value: int) -> int:
        """The number of one process, given as its global id without the thread's bits."""
        number = self._numbers.setdefault(value, len(self.values))
        if number == len(self.values):
            if number >= MOST_OWNERS:
                raise InputError(f"names more than {MOST_OWNERS:,} processes", path=self._name, hint="export it again")
            self.values.append(value)
        return number
