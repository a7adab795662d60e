"""The ledger's front door: layouts, bytes per call, and the rows a layout should send."""

from ledger.collectives import PRIMITIVES, collective_bytes
from ledger.config import CP_KINDS, DIMS, RECOMPUTE, SCHEDULES, ParallelConfig

__all__ = ["CP_KINDS", "DIMS", "PRIMITIVES", "RECOMPUTE", "SCHEDULES", "ParallelConfig", "collective_bytes"]
