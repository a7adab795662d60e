"""What a source tells beyond its calls (a dump, a log, places in communicators) as bytes in a summary, and back.

A log that the ranks of one file share is stored with the first of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa

from parsers.assemble import table
from parsers.columns import binary_array
from parsers.nsys.places import Member, NsysWitness

if TYPE_CHECKING:
    from parsers.nccl_log import NcclLog

_SAME = b""
"""In place of a log: that of the row before."""


@dataclass(frozen=True)
class _Places:
    """`NsysWitness` without its log."""

    members: tuple[Member, ...]
    from_start: bool


@cache
def _kinds() -> Mapping[str, type]:
    """Imported for a witness only: a trace of the PyTorch profiler has none, and no use for other parsers."""
    from parsers.deepspeed_log import CommsLogger
    from parsers.flight_recorder import Dump
    from parsers.nccl_log import NcclLog
    from parsers.profiled import ProfilerWitness

    return {"dump": Dump, "profiler": ProfilerWitness, "places": _Places, "log": NcclLog, "counts": CommsLogger}


def kept(witness: object | None) -> object | None:
    """What of a parser's witness a summary keeps; null for what no other source is joined with."""
    if witness is None:
        return None
    from parsers.deepspeed_log import CALLS, CommsLogger, counted
    from parsers.flight_recorder import Dump
    from parsers.profiled import MEASURED, ProfilerWitness

    if isinstance(witness, NsysWitness):
        return _Places(witness.members, witness.from_start) if witness.members else None
    if isinstance(witness, ProfilerWitness):
        return replace(witness, measured=table(MEASURED, {}))
    if isinstance(witness, CommsLogger):
        return replace(witness, calls=table(CALLS, {}), summary=counted(witness))
    return witness if isinstance(witness, Dump) else None


def packed_witnesses(witnesses: Iterable[object | None]) -> pa.Array:
    """One binary value per rank."""
    return binary_array([None if one is None else _encoded(one) for one in witnesses])


def packed_logs(logs: Iterable[NcclLog | None]) -> pa.Array:
    """One binary value per rank, each log once."""
    out: list[bytes | None] = []
    before: NcclLog | None = None
    for log in logs:
        out.append(None if log is None else _SAME if log is before else _encoded(log))
        before = log
    return binary_array(out)


def unpacked_witness(data: bytes | None) -> object | None:
    """The inverse of `packed_witnesses`, of one rank."""
    return None if data is None else _decoded(data)


def unpacked_logs(column: Iterable[bytes | None]) -> Iterator[NcclLog | None]:
    """The inverse of `packed_logs`."""
    before: NcclLog | None = None
    for data in column:
        if data != _SAME:
            before = None if data is None else _decoded(data)
        yield before


def _encoded(witness: object) -> bytes:
    kind = next(name for name, known in _kinds().items() if isinstance(witness, known))
    return msgspec.msgpack.encode((kind, witness), enc_hook=_plain)


def _decoded(data: bytes) -> Any:
    kind, rest = msgspec.msgpack.decode(data, type=tuple[str, msgspec.Raw])
    return _decoder(kind).decode(rest)


@cache
def _decoder(kind: str) -> msgspec.msgpack.Decoder[Any]:
    return msgspec.msgpack.Decoder(_kinds()[kind], dec_hook=_rebuilt)


def _plain(value: object) -> object:
    if isinstance(value, pa.Table):
        sink = pa.BufferOutputStream()
        whole = value.unify_dictionaries().combine_chunks()
        with pa.ipc.new_stream(sink, whole.schema) as stream:
            stream.write_table(whole)
        return sink.getvalue().to_pybytes()
    if isinstance(value, Mapping):
        return dict(value)
    raise NotImplementedError(f"{type(value).__name__} in a witness")


def _rebuilt(kind: type, value: object) -> object:
    if kind is pa.Table and isinstance(value, bytes):
        found = pa.ipc.open_stream(value).read_all()
        found.validate(full=True)  # Arrow trusts the offsets in a file, a damaged one leads outside of memory
        return found
    raise ValueError(f"{kind.__name__} in a witness")
