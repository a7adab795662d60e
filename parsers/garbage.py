"""Python's collector of cycles, held off where a million objects are made that hold none."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def no_garbage_collection() -> Iterator[None]:
    """Look for no cycles meanwhile: among a million new objects without any that costs a fifth of the time.

    What was made goes to the old generation at once; else the first object that is made afterwards has all of them
    looked through. Where somebody has frozen objects (`gc.freeze`), that is left to the collector.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            if not gc.get_freeze_count():
                gc.freeze()
                gc.unfreeze()
            gc.enable()
