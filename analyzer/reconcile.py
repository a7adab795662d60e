"""Observed against predicted."""

from __future__ import annotations


def declared_degrees(layout: str | None) -> dict[str, int] | None:
    """Degrees that the user declared."""
    if layout is None:
        return None
    from ledger.parallel import ParallelConfig

    config = ParallelConfig.parse(layout)
    return {dim: getattr(config, dim) for dim in ("tp", "cp", "pp", "dp", "ep")}


def reconcile(*args: object) -> None:
    return None
