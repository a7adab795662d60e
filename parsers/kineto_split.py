"""Several ranks in one file: tools merge traces, and merged ranks must not be read as one.

Three ways of merging are known: TraceLens writes the rank into every event's arguments and shifts process ids; SGLang
puts a label before the process id (``[TP03] 1754``); others just put the events of several files one after the other.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from parsers.columns import NULL, Columns, distinct_values
from parsers.kineto_rows import Rows
from parsers.rank_identity import rank_from_label

_LABELLED_PID = re.compile(r"\[([^\]]*)\]\s*\S+\Z")
_TENSOR_RANK = re.compile(r"TP(\d{1,6})\Z")
_SLACK_NS = 1_000_000  # a kernel may seem to start before its launch by as much as two clocks differ

Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Part:
    """The processes and devices of one rank.

    Attributes:
        pids: numbers of its processes (see `Rows.pids`); None for all.
        devices: the devices it drove, where they have to be told apart from another process's; None for all.
    """

    pids: frozenset[int] | None = None
    devices: frozenset[tuple[int, int]] | None = None  # (number of the pid, device) of GPU events
    rank: int | None = None
    label: str | None = None

    def owns(self, table: Columns, *, on_gpu: bool) -> Mask:
        """Which rows of a table are this rank's."""
        if self.pids is None:
            return np.ones(table.rows, np.bool_)
        pid = table.column("pid")
        if on_gpu and self.devices is not None:
            device = table.column("device")
            keys = [(pid == number) & (device == index) for number, index in self.devices]
            return np.logical_or.reduce(keys) if keys else np.zeros(table.rows, np.bool_)
        return np.isin(pid, list(self.pids))


def split(rows: Rows) -> list[Part]:
    """The ranks of a file; one part that owns everything for a normal one."""
    return _fused(rows) or _labelled(rows) or _concatenated(rows) or [Part()]


def _grouped(rows: Rows, key_of: Callable[[object], str | None], rank_of: Callable[[str], int | None]) -> list[Part]:
    """Parts by a key of each process; none where there are fewer than two."""
    groups: dict[str, set[int]] = {}
    for pid, number in rows.pids.items():
        key = key_of(pid)
        if key is not None:
            groups.setdefault(key, set()).add(number)
    if len(groups) < 2:
        return []
    return [Part(frozenset(pids), None, rank_of(key), key) for key, pids in groups.items()]


def _fused(rows: Rows) -> list[Part]:
    ranks = {pid: f"rank {rank}" for pid, rank in rows.fused_ranks.items()}
    return _grouped(rows, lambda pid: ranks.get(pid), rank_from_label)  # type: ignore[call-overload]


def _labelled(rows: Rows) -> list[Part]:
    def key(pid: object) -> str | None:
        match = _LABELLED_PID.match(pid) if isinstance(pid, str) else None
        return match[1] if match else None

    def rank(label: str) -> int | None:  # with more than one dimension the label is no global rank
        match = _TENSOR_RANK.match(label)
        return int(match[1]) if match else None

    return _grouped(rows, key, rank)


def _concatenated(rows: Rows) -> list[Part]:
    """Processes that each launched work or communicated, with the devices that each of them drove."""
    active = _active_pids(rows)
    if len(active) < 2:
        return []
    numbers = list(rows.pids)
    labels = {pid: rows.processes.get(numbers[pid], "") for pid in active}
    if not rows.gpu.rows:
        return [Part(frozenset({pid}), None, rank_from_label(labels[pid]), labels[pid]) for pid in active]
    owners = _owners(rows, active)
    if len(set(owners.values())) < 2:
        return []
    parts = []
    for pid in active:
        devices = frozenset(key for key, owner in owners.items() if owner == pid)
        parts.append(Part(frozenset({pid}), devices, rank_from_label(labels[pid]), labels[pid]))
    return parts


def _active_pids(rows: Rows) -> list[int]:
    """Processes that put work on a GPU, or that communicated where no GPU was used, in order of the file."""
    if rows.gpu.rows:
        return distinct_values(rows.launches.column("pid")).tolist() if rows.launches.rows else []
    on_cpu = rows.comm.column("gpu_event") == NULL
    return distinct_values(rows.comm.column("pid")[on_cpu]).tolist() if rows.comm.rows else []


def _owners(rows: Rows, active: list[int]) -> dict[tuple[int, int], int]:
    """For each device, the process whose launches its events follow.

    Correlation ids of merged files collide; what tells processes apart then is how soon the event follows the launch.
    Where even that is equal, devices go to processes in the order of the file.
    """
    pid, device = rows.gpu.column("pid"), rows.gpu.column("device")
    launched_by = rows.launches.column("pid")
    owners: dict[tuple[int, int], int] = {}
    for number, index in np.unique(np.stack([pid, device], axis=1), axis=0).tolist():
        here = (pid == number) & (device == index)
        scores = {candidate: _score(rows, here, launched_by == candidate) for candidate in active}
        best = max(scores.values())
        if best[0]:
            taken = Counter(owners.values())
            equal = [candidate for candidate in active if scores[candidate] == best]
            owners[number, index] = min(equal, key=lambda candidate: taken[candidate])
    return owners


def _score(rows: Rows, events: Mask, launches: Mask) -> tuple[int, float]:
    """How many events have a launch before them, and (negative) how long after it they start in the median."""
    keys = rows.launches.column("correlation")[launches]
    times = rows.launches.column("ts_ns")[launches]
    order = np.argsort(keys, kind="stable")
    keys, times = keys[order], times[order]
    wanted = rows.gpu.column("correlation")[events]
    at = np.minimum(np.searchsorted(keys, wanted), len(keys) - 1)
    delay = rows.gpu.column("ts_ns")[events] - times[at]
    matched = (keys[at] == wanted) & (wanted != NULL) & (delay > -_SLACK_NS)
    return int(matched.sum()), -float(np.median(delay[matched])) if matched.any() else 0.0
