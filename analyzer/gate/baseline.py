"""Baseline files: records with a history, written whole or not at all, and only when something changed."""

from __future__ import annotations

import os
from collections.abc import Sequence
from datetime import UTC, datetime
from fnmatch import fnmatchcase
from pathlib import Path

import msgspec

from analyzer.gate.record import KIND, SCHEMA_VERSION, Accepted, Record, Series, Value, to_json
from analyzer.model import CollectiveRow
from parsers.errors import InputError


def is_record(head: bytes) -> bool:
    """Whether a file that begins like this is a record."""
    return head.lstrip().startswith(b"{") and f'"{KIND}"'.encode() in head[:200]


def load(path: str) -> Record:
    """Read a baseline.

    Raises:
        InputError: it is none, or was written by a newer version.
        OSError: it cannot be read.
    """
    return decode(Path(path).read_bytes(), path)


def decode(data: bytes, path: str) -> Record:
    """A record from the bytes of a file.

    Raises:
        InputError: as `load`.
    """
    way_out = "make one with `analyze baseline write TRACE... -o FILE`"
    try:
        head = msgspec.json.decode(data, type=_Head)
    except msgspec.DecodeError as error:
        raise InputError(f"not a baseline: {error}", path=path, hint=way_out) from error
    if head.kind != KIND:
        raise InputError("not a baseline", path=path, hint=way_out)
    if head.schema_version > SCHEMA_VERSION:
        raise InputError(
            f"this baseline has schema {head.schema_version}, newer than {SCHEMA_VERSION}", path=path, hint="upgrade"
        )
    try:
        return msgspec.json.decode(data, type=Record)
    except msgspec.ValidationError as error:
        raise InputError(f"damaged baseline: {error}", path=path, hint=way_out) from error


class _Head(msgspec.Struct):
    kind: str = ""
    schema_version: int = 0


def save(record: Record, path: str) -> bool:
    """Write a baseline; an equal file is left alone, to the byte and to its time stamp.

    Returns:
        Whether the file changed.

    Raises:
        OSError: it cannot be written.
    """
    from analyzer.render import write

    data = to_json(record)
    if path != "-" and Path(path).exists() and Path(path).read_bytes() == data:
        return False
    write(data, path)
    return True


def with_history(record: Record, path: str) -> Record:
    """A new record with the history of the baseline that it replaces, if there is one.

    Raises:
        InputError: there is a file, and it is no baseline: nothing else is overwritten.
    """
    if path == "-" or not Path(path).exists():
        return record
    return msgspec.structs.replace(record, accepted=load(path).accepted)


def accept(
    baseline: Record, current: Record, patterns: Sequence[str], *, reason: str, who: str, when: str
) -> tuple[Record, list[Accepted]]:
    """Take metrics of a run into a baseline.

    Args:
        baseline: what to change.
        current: where the new values come from.
        patterns: metrics, as in a shell: ``bytes.dp.*``.
        reason: why.
        who: by whom.
        when: ISO 8601.

    Returns:
        The new baseline, and what changed; metrics that are equal already are not touched.

    Raises:
        InputError: a pattern names no metric.
    """
    names = list(dict.fromkeys((*baseline.exact, *current.exact, *baseline.noisy, *current.noisy)))
    for pattern in patterns:
        if not any(fnmatchcase(name, pattern) for name in names):
            raise InputError(f"{pattern}: no such metric in the baseline or the traces", hint="`analyze baseline show`")
    chosen = [name for name in names if any(fnmatchcase(name, pattern) for pattern in patterns)]
    changed = [name for name in chosen if _entry(baseline, name) != _entry(current, name)]
    if not changed:
        return baseline, []
    history = [
        Accepted(
            metric=name,
            before=_value(baseline, name),
            after=_value(current, name),
            reason=reason,
            who=who,
            when=when,
        )
        for name in changed
    ]
    return _moved(baseline, current, changed, history), history


def _moved(baseline: Record, current: Record, changed: Sequence[str], history: Sequence[Accepted]) -> Record:
    exact, noisy = dict(baseline.exact), dict(baseline.noisy)
    for name in changed:
        exact.pop(name, None)
        noisy.pop(name, None)
        if name in current.exact:
            exact[name] = current.exact[name]
        elif name in current.noisy:
            noisy[name] = current.noisy[name]
    times = "step_us" in changed
    return msgspec.structs.replace(
        baseline,
        tool=current.tool,
        exact=exact,
        noisy=noisy,
        steps=current.steps if times else baseline.steps,
        anatomy_ns=current.anatomy_ns if times else baseline.anatomy_ns,
        collectives=_rows(baseline.collectives, current.collectives, changed),
        accepted=[*baseline.accepted, *history],
    )


def _rows(old: list[CollectiveRow], new: list[CollectiveRow], changed: Sequence[str]) -> list[CollectiveRow]:
    """Rows of the dimensions and primitives whose calls, bytes or types were accepted come from the new run."""
    moved = {name.split(".", 1)[1] for name in changed if name.startswith(("calls.", "bytes.", "dtype.", "groups."))}
    kept = [row for row in old if f"{row.dim}.{row.primitive}" not in moved]
    return [*kept, *(row for row in new if f"{row.dim}.{row.primitive}" in moved)] if moved else old


def _entry(record: Record, name: str) -> Value | Series:
    return record.noisy.get(name) or record.exact.get(name)


def _value(record: Record, name: str) -> Value:
    """What the history shows: the value, or the mean of the steps."""
    series = record.noisy.get(name)
    return round(sum(series.samples) / len(series.samples), 3) if series is not None else record.exact.get(name)


def now() -> str:
    """The time of day in UTC, to the second; ``SOURCE_DATE_EPOCH`` where a build must be repeatable."""
    epoch = os.environ.get("SOURCE_DATE_EPOCH")
    moment = datetime.fromtimestamp(int(epoch), UTC) if epoch and epoch.isdigit() else datetime.now(UTC)
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ")


def whoever() -> str:
    """Who runs this: the person behind a CI job, else the user of the machine."""
    import getpass

    for name in ("GITHUB_ACTOR", "GITLAB_USER_LOGIN"):
        if os.environ.get(name):
            return os.environ[name]
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return "unknown"
