"""How much memory reading a file takes: what ``--memory-limit`` goes by."""

from __future__ import annotations

import sys
from contextlib import suppress

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
"""Parameters of `mallopt(3)` of glibc."""

_KEPT_BYTES = 64 * 2**20
"""What a process that reads file after file keeps of freed memory for the next: small files take less, and what large
ones take beyond that is given back."""

_PROCESS_BYTES = 160 * 2**20
"""A process with its libraries that has read a small file."""

_TIMES_STORED = 4.0
"""What a file adds, as multiples of its stored size, before one has been read: a compressed trace grows 8 to 30 times,
of which the columns that are kept are a small part."""


class Estimate:
    """An upper estimate that follows what was measured."""

    def __init__(self) -> None:
        self._times = _TIMES_STORED

    def of(self, stored_bytes: int) -> int:
        """Bytes that a process takes while it reads a file of this stored size."""
        return _PROCESS_BYTES + int(self._times * stored_bytes)

    def learn(self, stored_bytes: int, peak_bytes: int) -> None:
        """A process that read a file of this size took so much at most, in its whole life."""
        if stored_bytes > 0 and peak_bytes > _PROCESS_BYTES:
            self._times = max(self._times, (peak_bytes - _PROCESS_BYTES) / stored_bytes)


def peak_bytes() -> int:
    """The most memory that this process had at any time; 0 where the system does not tell."""
    try:
        import resource
    except ImportError:
        return 0
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak << 10


def keep_freed_memory() -> None:
    """Let this process keep what it frees after a file for the next one, where the C library can be told so.

    Else every file maps the same memory anew, page by page: a tenth of the time that a file of 5 MB takes.
    """
    if sys.platform != "linux":
        return
    from ctypes import CDLL

    with suppress(OSError, AttributeError):  # another C library
        mallopt = CDLL(None).mallopt
        mallopt(_M_MMAP_THRESHOLD, _KEPT_BYTES // 2)
        mallopt(_M_TRIM_THRESHOLD, _KEPT_BYTES)
