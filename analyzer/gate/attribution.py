"""Where the difference of two steps comes from, and which collectives changed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import msgspec

from analyzer.gate.record import Record
from analyzer.model import CollectiveRow
from analyzer.rows import DIM_ORDER


class Part(msgspec.Struct, frozen=True, kw_only=True):
    """One contribution, in ns per step (mean over steps and ranks)."""

    name: str
    baseline_ns: int
    current_ns: int

    @property
    def difference_ns(self) -> int:
        """What it adds to the step."""
        return self.current_ns - self.baseline_ns


class CollectiveChange(msgspec.Struct, frozen=True, kw_only=True):
    """A row of collectives that is not what it was.

    Attributes:
        kind: changed | appeared | vanished.
        row: dimension, primitive, group size, type and phase.
        what: how it differs, in words.
    """

    kind: str
    dim: str
    primitive: str
    row: str
    what: str
    difference_us: float


class Attribution(msgspec.Struct, frozen=True, kw_only=True):
    """The step of one run divided up beside that of the other; the parts sum to the steps exactly."""

    step: Part
    parts: list[Part]


def attribute(baseline: Record, current: Record) -> Attribution | None:
    """Divide the difference of the mean steps up; None where a run has no time."""
    a, b = baseline.anatomy_ns, current.anatomy_ns
    if not a or not b:
        return None
    names = [name for name in _order(a.keys() | b.keys()) if a.get(name) or b.get(name)]
    parts = [Part(name=name, baseline_ns=a.get(name, 0), current_ns=b.get(name, 0)) for name in names]
    step = Part(name="step", baseline_ns=sum(a.values()), current_ns=sum(b.values()))
    return Attribution(step=step, parts=parts)


def _order(names: set[str]) -> list[str]:
    """In the order of a reader; a part that only a baseline of another version knows stands last, so that sums hold."""
    known = ("compute", *(f"exposed.{dim}" for dim in DIM_ORDER), "wait", "bubble", "launch gaps", "other")
    return [*(name for name in known if name in names), *sorted(names - set(known))]


Key = tuple[str, str, int | None, str | None, str, str | None]


def collective_changes(baseline: Record, current: Record) -> list[CollectiveChange]:
    """Rows whose calls, bytes or sizes differ, those with most time first.

    Rows are matched by dimension, primitive, group size, type and phase; a row that vanished where one with another
    type appeared, with the same calls, is the same row with another type.
    """
    a, b = _by_key(baseline.collectives), _by_key(current.collectives)
    gone, new = [k for k in a if k not in b], [k for k in b if k not in a]
    changes = []
    for old in list(gone):
        twin = next((k for k in new if (*k[:3], k[4]) == (*old[:3], old[4]) and _calls(b[k]) == _calls(a[old])), None)
        if twin is not None:
            gone.remove(old)
            new.remove(twin)
            changes.append(_change("changed", old, a[old], b[twin], f"dtype {old[3] or '?'} → {twin[3] or '?'}"))
    changes += [_change("vanished", k, a[k], [], f"{_calls(a[k]):g} calls per step") for k in gone]
    changes += [_change("appeared", k, [], b[k], f"{_calls(b[k]):g} calls per step") for k in new]
    for k in a.keys() & b.keys():
        what = ", ".join(_differs(a[k], b[k], current, k))
        if what:
            changes.append(_change("changed", k, a[k], b[k], what))
    return sorted(changes, key=lambda c: (-abs(c.difference_us), c.row))


def _by_key(rows: Sequence[CollectiveRow]) -> Mapping[Key, list[CollectiveRow]]:
    out: dict[Key, list[CollectiveRow]] = {}
    for row in rows:
        out.setdefault((row.dim, row.primitive, row.group_size, row.dtype, row.phase, row.link), []).append(row)
    return out


def _calls(rows: Sequence[CollectiveRow]) -> float:
    return round(sum(row.calls_per_step for row in rows), 6)


def _sent(rows: Sequence[CollectiveRow]) -> int | None:
    sent = [row.sent_bytes_per_step for row in rows]
    return None if None in sent else sum(s for s in sent if s is not None)


def _sizes(rows: Sequence[CollectiveRow]) -> tuple[int, int] | None:
    known = [row.size_bytes for row in rows if row.size_bytes is not None]
    return (min(s.min for s in known), max(s.max for s in known)) if known else None


def _differs(a: Sequence[CollectiveRow], b: Sequence[CollectiveRow], current: Record, key: Key) -> Iterator[str]:
    if _calls(a) != _calls(b):
        yield f"calls {_calls(a):g} → {_calls(b):g} per step"
    if f"bytes.{key[0]}.{key[1]}" in current.noisy:
        return  # bytes that depend on the data differ in every run
    if _sent(a) != _sent(b):
        yield f"bytes {_said(_sent(a))} → {_said(_sent(b))} per step"
    elif _sizes(a) != _sizes(b) and _sizes(a) and _sizes(b):
        yield "sizes of the arrays"


def _said(sent: int | None) -> str:
    return "not known" if sent is None else f"{sent:,}"


def _change(kind: str, key: Key, a: Sequence[CollectiveRow], b: Sequence[CollectiveRow], what: str) -> CollectiveChange:
    dim, primitive, n, dtype, phase, _ = key
    words = [dim, primitive, f"n={n}" if n else "", dtype or "", "" if phase == "unknown" else phase]
    exposed = sum(row.exposed_us_per_step or 0 for row in b) - sum(row.exposed_us_per_step or 0 for row in a)
    return CollectiveChange(
        kind=kind,
        dim=dim,
        primitive=primitive,
        row=" ".join(w for w in words if w),
        what=what,
        difference_us=round(exposed, 3),
    )
