"""One entry and one group of a Flight Recorder dump, out of what the versions of torch made of them."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from parsers.columns import whole_number

MAX_RANKS = 1 << 21
"""More ranks than this in one group is no job, but a damaged list."""

_NUMBERS = re.compile(r"\d{1,9}")
_NAME = re.compile(r"(?:(?P<library>[a-z]+):)?(?P<op>\S+)(?: (?P<own>\d{1,9})(?P<way>->|<-)(?P<peer>\d{1,9}))?")
_MARKERS = frozenset({"coalesced"})
_MAX_FRAMES = 256
_MAX_TEXT = 512


@dataclass(frozen=True)
class Group:
    """One entry of ``pg_config``; ``ranks`` are global and in group order, null where the dump leaves them out."""

    name: str
    desc: str | None
    ranks: tuple[int, ...] | None

    @property
    def is_default(self) -> bool:
        """Whether this is the group of all ranks (distributed_c10d: named first, described as ``default_pg``)."""
        return self.desc == "default_pg" or self.name == "0"


@dataclass(frozen=True)
class Entry:
    """One entry; the fields are those of `parsers.flight_recorder.ENTRIES`, and what `COMM_RECORDS` needs besides."""

    name: str
    library: str | None
    op: str
    group_name: str | None
    group_desc: str | None
    record_id: int | None
    pg_id: int | None
    is_p2p: bool
    collective_seq: int | None
    p2p_seq: int | None
    op_id: int | None
    peer_in_group: int | None
    peer: int | None
    state: str | None
    retired: bool | None
    created_ns: int | None
    started_ns: int | None
    completed_ns: int | None
    dur_ns: int | None
    timeout_ms: int | None
    thread_id: int | None
    thread_name: str | None
    stack: str | None
    frames: int
    input_sizes: list[list[int]]
    output_sizes: list[list[int]]
    input_dtypes: list[str]
    output_dtypes: list[str]

    @property
    def is_marker(self) -> bool:
        """Whether it only closes a batch whose calls are entries of their own."""
        return self.op in _MARKERS

    @property
    def dtype(self) -> str | None:
        """Of the tensors handed in, else of those handed out; null for a mixture."""
        said = set(self.input_dtypes) or set(self.output_dtypes)
        return said.pop() if len(said) == 1 else None

    @property
    def in_nelems(self) -> int | None:
        """Elements of all tensors handed in; null where none is listed."""
        return _elements(self.input_sizes)

    @property
    def out_nelems(self) -> int | None:
        """Elements of all tensors handed out."""
        return _elements(self.output_sizes)


def group_of(name: str, said: Any) -> Group:
    """A group out of its entry of ``pg_config``.

    Torch 2.3 writes the list of ranks itself, later ones ``{"name", "desc", "ranks"}`` with the list as text.
    """
    if not isinstance(said, Mapping):
        return Group(name, None, _ranks(said))
    desc = said.get("desc")
    return Group(name, desc if isinstance(desc, str) and desc else None, _ranks(said.get("ranks")))


def _ranks(value: Any) -> tuple[int, ...] | None:
    if isinstance(value, str) and len(value) <= 10 * MAX_RANKS and "..." not in value:
        ranks = tuple(int(number) for number in _NUMBERS.findall(value))
    elif isinstance(value, list | tuple) and len(value) <= MAX_RANKS:
        ranks = tuple(number for number in value if isinstance(number, int) and 0 <= number < 10**9)
    else:
        return None
    return ranks or None


def entry_of(raw: Any, groups: Mapping[str, Group]) -> Entry | None:
    """An entry out of one dict of the dump; null where it is none.

    Args:
        raw: the dict. What it lacks, or holds in another type than documented, becomes null.
        groups: by name, for turning group ranks of messages into global ones.
    """
    name = raw.get("profiling_name") if isinstance(raw, Mapping) else None
    match = _NAME.fullmatch(name) if isinstance(name, str) else None
    if match is None:
        return None
    op = match["op"]
    is_p2p = raw.get("is_p2p") is True or op in ("send", "recv")
    group_name, group_desc = _group(raw, groups)
    peer = int(match["peer"]) if match["peer"] else None
    seq = raw.get("collective_seq_id", raw.get("seq_id"))  # seq_id: up to torch 2.3, for all calls alike
    return Entry(
        name=str(name),
        library=match["library"],
        op=op,
        group_name=group_name,
        group_desc=group_desc,
        record_id=whole_number(raw.get("record_id")),
        pg_id=whole_number(raw.get("pg_id")),
        is_p2p=is_p2p,
        collective_seq=whole_number(seq),
        p2p_seq=whole_number(raw.get("p2p_seq_id", seq if is_p2p else None)),
        op_id=whole_number(raw.get("op_id")),
        peer_in_group=peer,
        peer=_global(groups.get(group_name or ""), peer),
        state=_str(raw.get("state")),
        retired=raw["retired"] if isinstance(raw.get("retired"), bool) else None,
        created_ns=_created(raw),
        started_ns=_moment(raw.get("time_discovered_started_ns")),
        completed_ns=_moment(raw.get("time_discovered_completed_ns")),
        dur_ns=_duration(raw.get("duration_ms")),
        timeout_ms=whole_number(raw.get("timeout_ms")),
        thread_id=whole_number(raw.get("thread_id")),
        thread_name=_str(raw.get("thread_name")),
        stack=_stack(raw.get("frames")),
        frames=len(raw["frames"]) if isinstance(raw.get("frames"), list) else 0,
        input_sizes=_sizes(raw.get("input_sizes")),
        output_sizes=_sizes(raw.get("output_sizes")),
        input_dtypes=_texts(raw.get("input_dtypes")),
        output_dtypes=_texts(raw.get("output_dtypes")),
    )


def _group(raw: Mapping[str, Any], groups: Mapping[str, Group]) -> tuple[str | None, str | None]:
    """Name and description of an entry's group; up to torch 2.3 the number of the group stands for its name."""
    said = raw.get("process_group")
    if isinstance(said, list | tuple) and said and isinstance(said[0], str):
        desc = said[1] if len(said) > 1 and isinstance(said[1], str) and said[1] else None
        return said[0], desc
    number = whole_number(raw.get("pg_id"))
    if number is None:
        return None, None
    known = groups.get(str(number))
    return str(number), known.desc if known else None


def _global(group: Group | None, place: int | None) -> int | None:
    ranks = group.ranks if group is not None else None
    return ranks[place] if ranks is not None and place is not None and place < len(ranks) else None


def _created(raw: Mapping[str, Any]) -> int | None:
    created = _moment(raw.get("time_created_ns"))
    if created is not None:
        return created
    micro = whole_number(raw.get("time_created_us"))  # torch 2.2
    return None if micro is None else micro * 1000


def _moment(value: Any) -> int | None:
    """A time; JSON writes 0 where the pickle writes None."""
    return whole_number(value) or None


def _duration(value: Any) -> int | None:
    if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value) and value >= 0:
        return round(value * 1e6)
    return None


def _str(value: Any) -> str | None:
    return value if isinstance(value, str) and value else None


def _sizes(value: Any) -> list[list[int]]:
    """Shapes of tensors; what is no list of lists of integers holds none."""
    if not isinstance(value, list):
        return []
    return [
        [number for number in sizes if isinstance(number, int) and abs(number) < 2**62]
        for sizes in value
        if isinstance(sizes, list)
    ]


def _texts(value: Any) -> list[str]:
    return [text for text in value if isinstance(text, str)] if isinstance(value, list) else []


def _elements(sizes: Sequence[Sequence[int]]) -> int | None:
    if not sizes:
        return None
    total = sum(math.prod(shape) for shape in sizes)
    return total if 0 <= total < 2**63 else None


def _stack(frames: Any) -> str | None:
    """Frames as text, innermost first; the frames of one entry are few, so a longer list is cut."""
    if not isinstance(frames, list) or not frames:
        return None
    said = [
        tuple(str(frame.get(key))[:_MAX_TEXT] for key in ("name", "filename", "line"))
        for frame in frames[:_MAX_FRAMES]
        if isinstance(frame, Mapping)
    ]
    return "\n".join(f"{function} ({file}:{line})" for function, file, line in said) or None
