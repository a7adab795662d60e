"""Runs made by hand: records with plain numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from analyzer.gate.record import Facts, LedgerBytes, ModelFacts, Record, Series, Value, fingerprint
from analyzer.gate.verdict import Comparison, compare
from analyzer.model import Tool

FACTS = Facts(
    world_size=4,
    ranks=[0, 1, 2, 3],
    layout={"tp": 4, "cp": 1, "pp": 1, "dp": 1, "ep": 1},
    gpus=["NVIDIA H100"],
    libraries={"nccl_version": "2.27.5"},
    graphs=False,
    profiler={"with_stack": False},
    model=ModelFacts(name=None, hidden=96, elements={"tp.all_reduce": [7680]}, total={"tp": 7680.0}),
    tokens_per_step=80,
)

EXACT: dict[str, Value] = {
    "layout": "tp4-cp1-pp1-dp1-ep1",
    "calls.tp.all_reduce": 14,
    "bytes.tp.all_reduce": 645_120,
    "dtype.tp.all_reduce": "float32",
    "missing_collectives": 0,
    "layout.zero_stage": 0,
}


def series(samples: Sequence[float], unit: str = "us", *, lower: bool = True, worth: float = 1.0) -> Series:
    return Series(unit=unit, samples=list(samples), lower_is_better=lower, worth_us=worth)


def run(
    step: Sequence[float],
    exact: Mapping[str, Value] | None = None,
    noisy: Mapping[str, Series] | None = None,
    anatomy: Mapping[str, int] | None = None,
    ledger: Sequence[LedgerBytes] | None = None,
    **facts: object,
) -> Record:
    """A run with these step times in µs; ``facts`` replace those of `FACTS`."""
    known = msgspec.structs.replace(FACTS, **facts)
    return Record(
        tool=Tool(name="commlens", version="0.1.0"),
        fingerprint=fingerprint(known),
        facts=known,
        steps=list(range(len(step))) if len(step) > 1 else [],
        exact={**EXACT, **(exact or {})},
        noisy={"step_us": series(step), **(noisy or {})},
        anatomy_ns=dict(anatomy or {"compute": 1000}),
        collectives=[],
        ledger=None if ledger is None else list(ledger),
    )


ATTACK = "<script>window.hacked=1</script>\u202egpj"


def hostile_comparison() -> Comparison:
    """A slower run with a metric whose name would run as a script, or turn the text around."""
    before, after = [100.0, 101, 102, 103, 104], [110.0, 111, 112, 113, 114]
    parts = {"compute": 70_000, "exposed.tp": 20_000, "other": 10_000}
    return compare(
        run(before, anatomy=parts),
        run(after, anatomy=parts | {"exposed.tp": 30_000, "other": 10_001}, exact={f"calls.{ATTACK}": 3}),
    )
