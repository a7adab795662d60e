"""Which rank wrote a trace, where its header does not say: from the file's name, or from the groups it took part in."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

# `rank3`, `rank_3`, `rank-03`, `global_rank=3`; a local or group rank is another thing.
_RANK = re.compile(r"(local|group|role|node)?[-_ .]?rank[-_ .=]?(\d{1,6})(?!\d)", re.IGNORECASE)
_WORKER = re.compile(r"(?<![a-z])worker[-_]?(\d{1,6})(?!\d)", re.IGNORECASE)
_NUMBER = re.compile(r"(?<![\d.])\d{1,5}(?!\d)")
_COUNTS_OTHER_THINGS = re.compile(
    r"(?:step|iter|iteration|epoch|node|host|stage|cycle|run|v|tp|pp|dp|ep|cp)[-_ ]?\Z", re.IGNORECASE
)
_ON_DEVICE_NAMED = re.compile(r"\Arank[-_ :=]*(\d{1,6})\b", re.IGNORECASE)


def rank_from_path(path: Path) -> int | None:
    """The rank that a file's name states.

    A number counts where it is labelled (``rank3``, ``worker_3``), in the name or in that of its folder. A bare number
    (``trace_3.json``) counts only beside files that are numbered from 0 in the same way: dates, process ids and step
    numbers are not ranks.
    """
    for name in (path.name, path.parent.name):
        for match in _RANK.finditer(name):
            if not match[1]:
                return int(match[2])
    worker = _WORKER.search(path.name)
    return int(worker[1]) if worker else _numbered(path)


def _numbered(path: Path) -> int | None:
    for match in reversed(list(_NUMBER.finditer(path.name))):
        if _COUNTS_OTHER_THINGS.search(path.name[: match.start()]):
            continue
        number, width = int(match[0]), len(match[0]) if match[0].startswith("0") else 0

        def sibling(other: int, match: re.Match[str] = match, width: int = width) -> bool:
            name = path.name[: match.start()] + str(other).zfill(width) + path.name[match.end() :]
            return path.with_name(name).is_file()

        neighbour = number - 1 if number else 1
        if sibling(0) and sibling(neighbour):
            return number
    return None


def rank_from_label(label: str) -> int | None:
    """The rank in a process's name, as tools that fuse several files write it (``rank 3``)."""
    match = _ON_DEVICE_NAMED.search(label)
    return int(match[1]) if match else None


def rank_from_groups(groups: Sequence[npt.NDArray[np.int32]]) -> int | None:
    """The one rank that all groups of a process have in common; None where there are several.

    Every group that a process declares contains the process itself.
    """
    if not groups:
        return None
    rank = np.concatenate(groups)
    group = np.repeat(np.arange(len(groups)), [len(ranks) for ranks in groups])
    order = np.lexsort((rank, group))
    rank, group = rank[order], group[order]
    first = np.append(True, (np.diff(rank) != 0) | (np.diff(group) != 0))[: len(rank)]  # a list may name a rank twice
    values, count = np.unique(rank[first], return_counts=True)
    common = values[count == len(groups)]
    return int(common[0]) if len(common) == 1 else None


def rank_from_calls(
    lists: Sequence[Sequence[int]], list_of: npt.NDArray[np.int32], place: npt.NDArray[np.int64]
) -> int | None:
    """The global rank behind "my place in the group's list", where all calls agree.

    Args:
        lists: rank lists as printed, complete ones only.
        list_of: number of the list, per call.
        place: own group rank, per call.
    """
    pairs = (
        {(int(a), int(b)) for a, b in np.unique(np.stack([list_of, place], axis=1), axis=0)} if len(list_of) else set()
    )
    ranks = {lists[number][at] for number, at in pairs if 0 <= at < len(lists[number])}
    return ranks.pop() if len(ranks) == 1 else None
