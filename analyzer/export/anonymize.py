"""An export without names: what could tell whose job it was is replaced by keyed hashes, and times stay.

Hidden are names of the user's functions, modules, kernels and annotations, hosts, paths, process ids, thread names, job
names, process groups and communicators; what no rule knows is left out. Equal originals give equal hashes under one
salt, so that ranks exported apart still fit together. Kept are times, sizes, types, shapes, ranks, streams, links
between events, and the names of public libraries.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec import Raw

from analyzer.export.chrome import Event, raw, text_of
from analyzer.export.public_names import safe_name
from analyzer.matching.collectives import KINDS
from analyzer.rows import DIM_ORDER
from heuristics.view import PHASES
from parsers.kineto_events import CATEGORIES

KEPT_ARGS = frozenset(
    (
        *("device", "context", "stream", "correlation", "cbid", "bytes", "grid", "block", "queued", "rank", "dtype"),
        *("step", "dim", "primitive", "phase", "link", "library", "group_size", "size_bytes", "sent_bytes"),
        *("exposed_us", "wait_us", "transfer_us", "algbw", "busbw", "algbw_with_wait", "full_dur_us"),
        *("cut_to_the_window", "sort_index"),
        *("External id", "external id", "Record function id", "Sequence number", "Fwd thread id", "Ev Idx"),
        *("registers per thread", "shared memory", "blocks per SM", "warps per SM", "est. achieved occupancy %"),
        *("memory bandwidth (GB/s)", "graph node id", "graph id", "In msg nelems", "Out msg nelems", "In msg size"),
        *("Out msg size", "In split size", "Out split size", "Group size", "Process Group Ranks", "Global rank start"),
        *("Global rank stride", "Rank", "Src Rank", "Dst Rank", "Seq", "Is asynchronized op", "Input Dims"),
        *("Input Strides", "Op count", "Device Id", "Device Type", "Total Allocated", "Total Reserved", "Bytes"),
    )
)
"""Arguments that are numbers or words of a fixed vocabulary."""

HASHED_ARGS = {
    "Process Group Name": "group",
    "Process Group ID": "group",
    "Process Group Description": "desc",
    "group": "group",
}
WORDS: Mapping[str, tuple[str, ...]] = {
    "dim": DIM_ORDER,
    "primitive": (*KINDS, "send_recv", "unknown"),
    "phase": PHASES,
    "link": ("intra_node", "inter_node", "mixed"),
    "library": ("nccl", "rccl", "gloo"),
}
"""What `analyze export` writes itself."""

NAMED_ARGS = ("Collective name",)
COUNTERS = "C"
_KEPT_KEYS = ("ph", "cat", "pid", "tid", "ts", "dur", "s", "bp", "id")

KEPT_HEADER = frozenset(
    (
        *("schemaVersion", "displayTimeUnit", "baseTimeNanoseconds", "record_shapes", "with_stack", "profile_memory"),
        *("with_flops", "with_modules", "cuda_runtime_version", "cuda_driver_version", "cupti_version"),
    )
)
_DEVICE = re.compile(r"(?:NVIDIA|AMD|Intel|Tesla|Quadro|GeForce|Graphics Device|H100|A100|V100|MI\d+)[\w .()-]*\Z")
_PLAIN = re.compile(r"[a-z0-9_:&*<>, \[\]().-]{0,64}\Z", re.IGNORECASE)
_TYPES = re.compile(
    r"(?:c10::)?(?:float|double|half|bfloat16|int|long|short|byte|char|bool|unsigned char|long int|signed char|scalar"
    r"|scalarlist|tensorlist|genericlist|float8_\w{1,12}|float\d\d|u?int\d+(?:_t)?|)\Z",
    re.IGNORECASE,
)
_NUMERIC = re.compile(r"[\[\](), .\deE+-]*(?:True|False|None)?\Z")
_TRACK = re.compile(
    r"(?:rank (?:\d+|unknown): communication by dimension|(?:tp|cp|pp|dp|ep|control|unknown)(?: exposed| waiting)?"
    r"(?: \(\d+\))?|rank (?:\d+|unknown): (?:GPU|CPU launches|CPU))\Z"
)


class Hider:
    """Hides names, consistently.

    Args:
        salt: the key of the hashes: without it nobody can try out names; with the same one, equal names are equal
            across exports.
    """

    def __init__(self, salt: bytes) -> None:
        self._key = hashlib.blake2b(salt, digest_size=32).digest()
        self._tokens: dict[tuple[str, str], str] = {}
        self.real: dict[str, str] = {}

    def token(self, kind: str, text: str) -> str:
        """What stands for a text: its kind and 40 bits of a keyed BLAKE2b."""
        found = self._tokens.get((kind, text))
        if found is None:
            digest = hashlib.blake2b(text.encode("utf-8", "surrogatepass"), key=self._key, digest_size=5).hexdigest()
            found = self._tokens[kind, text] = f"{kind}_{digest}"
        return found

    def number(self, text: str) -> int:
        """What stands for a large number that is a hash itself: 52 bits, so that JSON keeps it exact."""
        digest = hashlib.blake2b(text.encode(), key=self._key, digest_size=8).digest()
        return int.from_bytes(digest, "big") >> 12

    def name(self, name: str, kind: str = "name") -> str:
        """The name of an operator, a kernel or a range."""
        return safe_name(name, kind, self.token)

    def group(self, name: str) -> str:
        """The name of a process group: PyTorch's own numbers stay, for they only count."""
        return name if not name or name.isdigit() else self.token("group", name)

    def desc(self, text: str) -> str:
        """The description of a process group; PyTorch's own word for the group of all stays."""
        return text if text in ("", "default_pg", "undefined") else self.token("desc", text)

    def event(self, event: Event) -> Event:
        """One event of a Kineto file."""
        phase = bytes(event.get("ph", b"")).strip(b'"')
        out: Event = {
            key: event[key] for key in ("ph", "cat", "pid", "tid", "ts", "dur", "s", "bp", "id") if key in event
        }
        category = text_of(event, "cat")
        out["name"] = raw(self.name(text_of(event, "name"), _kind(category)))
        if category and category not in CATEGORIES:
            out["cat"] = raw(self.token("cat", category))
        if "id" in event and not bytes(event["id"]).strip(b'"').isdigit():
            out["id"] = raw(self.token("id", text_of(event, "id")))
        if "args" in event:
            out["args"] = self._metadata(event) if phase == b"M" else self._arguments(bytes(event["args"]))
        return out

    def made(self, event: Mapping[str, Any]) -> dict[str, Any]:
        """One event that was made here."""
        out = dict(event)
        args = event.get("args")
        if event["ph"] == "M":
            own = str(args.get("name", "")) if isinstance(args, dict) else ""
            if own and not _TRACK.match(own):
                out["args"] = {"name": self.name(own, "track")}
            return out
        if event["ph"] == "X":
            out["name"] = event["name"] if event.get("cat") == "commlens" else self.name(str(event["name"]), "name")
        if isinstance(args, dict) and event["ph"] != COUNTERS:
            out["args"] = {key: self._value(key, value) for key, value in args.items() if _is_kept(key)}
        return out

    def header(self, key: str, text: bytes) -> Any:
        """A key of the document."""
        value = _loaded(text)
        if key in KEPT_HEADER:
            return value if isinstance(value, int | float | bool) or key == "displayTimeUnit" else None
        if key == "deviceProperties" and isinstance(value, list):
            return [self.device(item) for item in value if isinstance(item, dict)]
        if key == "distributedInfo" and isinstance(value, dict):
            return self._job(value)
        return None

    def device(self, item: dict[str, Any]) -> dict[str, Any]:
        """What a file says of a GPU: numbers, and the name of its model."""
        kept = {key: value for key, value in item.items() if isinstance(value, int | float | bool)}
        name = str(item.get("name", ""))
        return kept | ({"name": name if _DEVICE.match(name) else self.token("gpu", name)} if name else {})

    def _job(self, value: dict[str, Any]) -> dict[str, Any]:
        """`distributedInfo`: numbers, backends and versions; groups with hidden names."""
        kept: dict[str, Any] = {key: item for key, item in value.items() if isinstance(item, int | float | bool)}
        for key in ("backend", "nccl_version"):
            if isinstance(value.get(key), str) and _PLAIN.match(value[key]):
                kept[key] = value[key]
        groups = value.get("pg_config")
        if isinstance(groups, list):
            kept["pg_config"] = [
                {
                    "pg_name": self.group(str(item.get("pg_name", ""))),
                    "pg_desc": self.desc(str(item.get("pg_desc", ""))),
                    **{key: item[key] for key in ("pg_size", "ranks", "backend_config") if key in item},
                }
                for item in groups
                if isinstance(item, dict)
            ]
        return kept

    def _metadata(self, event: Event) -> Raw:
        """The arguments of a metadata event: numbers of streams and devices stay, names of threads do not."""
        args = _loaded(bytes(event["args"]))
        kept: dict[str, Any] = {}
        for key, value in args.items() if isinstance(args, dict) else ():
            if isinstance(value, int | float) or re.fullmatch(r"(?:stream \d+|CPU|GPU \d+|python|)\s*", str(value)):
                kept[key] = value
            else:
                kept[key] = "thread" if text_of(event, "name") == "thread_name" else "process"
        return raw(kept)

    def _arguments(self, text: bytes) -> Raw:
        args = _loaded(text)
        if not isinstance(args, dict):
            return Raw(b"{}")
        return raw({key: self._value(key, value) for key, value in args.items() if _is_kept(key)})

    def _value(self, key: str, value: Any) -> Any:
        if key in HASHED_ARGS:
            return self.desc(str(value)) if HASHED_ARGS[key] == "desc" else self.group(str(value))
        if key in NAMED_ARGS:
            return self.name(str(value), "op")
        if key == "Comms Id":
            return self.number(str(value))
        if key in ("Input type", "Concrete Inputs"):
            allowed = _TYPES if key == "Input type" else _NUMERIC
            return [item if isinstance(item, str) and allowed.match(item) else "" for item in value or ()]
        if not isinstance(value, str) or _NUMERIC.match(value) or (key in WORDS and value in WORDS[key]):
            return value
        return value if key == "dtype" and _TYPES.match(value) else self.token("text", value)


def _is_kept(key: str) -> bool:
    return (
        key in KEPT_ARGS
        or key in HASHED_ARGS
        or key in NAMED_ARGS
        or key in ("Comms Id", "Input type", "Concrete Inputs")
    )


def _kind(category: str) -> str:
    return {"kernel": "kernel", "cpu_op": "op", "user_annotation": "range", "gpu_user_annotation": "range"}.get(
        category, "py" if category == "python_function" else "name"
    )


def _loaded(text: bytes) -> Any:
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None
