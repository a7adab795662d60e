"""Kineto's events as typed structs: the wanted categories with their fields, all others without any.

One struct per category, told apart by ``cat`` while the text is decoded: what is not wanted is checked and stepped over
at C speed without making an object of its contents.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Union

import msgspec
from msgspec import Raw, Struct, field

from parsers.columns import NULL, integer
from parsers.kineto_comm import CommFields

GPU_KINDS: Mapping[str, str] = MappingProxyType(
    {
        "kernel": "kernel",
        "Kernel": "kernel",
        "concurrent_kernel": "kernel",
        "mtia_ccp_events": "kernel",
        "collective_comm": "kernel",
        "gpu_memcpy": "memcpy",
        "Memcpy": "memcpy",
        "mlu_memcpy": "memcpy",
        "GCU_MEMCPY": "memcpy",
        "gpu_memset": "memset",
        "Memset": "memset",
        "mlu_memset": "memset",
        "GCU_MEMSET": "memset",
        "cuda_sync": "sync",
        "xpu_sync": "sync",
        "gcu_sync": "sync",
        "gpu_user_annotation": "annotation",
        "mlu_user_annotation": "annotation",
        "GCU_USER_ANNOTATION": "annotation",
    }
)
"""Category -> kind of a GPU event: Kineto's `ActivityType` names, the spellings of 2020/21, and vendors' forks."""

_RUNTIME = (
    *("cuda_runtime", "cuda_driver", "Runtime", "hip_runtime", "xpu_runtime", "xpu_driver", "mtia_runtime"),
    *("privateuse1_runtime", "privateuse1_driver", "mlu_runtime", "gcu_runtime", "gcu_driver"),
)
_OPERATOR = ("cpu_op", "Operator")
_ANNOTATION = ("user_annotation",)
_UNWANTED = (
    *("python_function", "ac2g", "async_cpu_to_gpu", "fwdbwd", "async", "overhead", "Trace", "cpu_instant_event"),
    *("external_correlation", "glow_runtime", "cuda_event", "cuda_profiler_range", "xpu_scope_profiler", "hpu_op"),
    "commlens",  # what `analyze export` adds
    *("mtia_counters", "mtia_insight", "mtia_workloadd", "gpu_pm_counter", "mlu_profiler_range", "mlu_notifier"),
)

_MISSING = Raw(b"")


class GpuArgs(CommFields, gc=False, kw_only=True):
    """Arguments of a GPU event."""

    device: int = NULL
    stream: int | str = NULL
    correlation: int = NULL
    bytes: int = NULL
    graph_node: int = field(default=NULL, name="graph node id")
    external_old: int = field(default=NULL, name="external id")  # until 2021
    rank: int = NULL  # written by tools that fuse the files of several ranks


class LaunchArgs(Struct, gc=False):
    """Arguments of a runtime call."""

    correlation: int = NULL
    external_id: int = field(default=NULL, name="External id")
    external_old: int = field(default=NULL, name="external id")
    rank: int = NULL


class Timed(Struct, gc=False, kw_only=True):
    """What all wanted events have. Times as written."""

    name: str = ""
    pid: int | str = NULL
    tid: int | str = NULL
    ts: Raw = _MISSING
    dur: Raw = _MISSING


class Gpu(Timed, gc=False, kw_only=True):
    """Something that ran on a GPU."""

    args: GpuArgs | None = None


class Launch(Timed, gc=False, kw_only=True):
    """A runtime or driver call."""

    args: LaunchArgs | None = None


class Operator(Timed, gc=False, kw_only=True):
    """A CPU operator; its arguments are decoded only where they are wanted."""

    args: Raw = _MISSING


class Annotation(Operator, gc=False, kw_only=True):
    """A `record_function` range of the user, the framework or the communication backend."""


class Unwanted(Struct, gc=False):
    """An event that nothing here needs."""


class Named(Struct, gc=False, kw_only=True):
    """A metadata event (names of threads and processes) or an instant without category (the capture's borders)."""

    name: str
    pid: int | str
    tid: int | str
    ts: Raw
    label: str


class _Loose(Struct, gc=False):
    """Any event: every field as text, so that nothing it holds can fail to decode."""

    ph: Raw = _MISSING
    cat: Raw = _MISSING
    name: Raw = _MISSING
    pid: Raw = _MISSING
    tid: Raw = _MISSING
    ts: Raw = _MISSING
    dur: Raw = _MISSING
    args: Raw = _MISSING


def _tagged(base: type[Struct], categories: tuple[str, ...] | Mapping[str, str]) -> dict[str, type[Struct]]:
    return {
        cat: msgspec.defstruct(f"{base.__name__}_{cat}", [], bases=(base,), tag=cat, tag_field="cat", gc=False)
        for cat in categories
    }


_GPU = _tagged(Gpu, GPU_KINDS)
_WANTED: Mapping[str, type[Struct]] = MappingProxyType(
    _GPU | _tagged(Launch, _RUNTIME) | _tagged(Operator, _OPERATOR) | _tagged(Annotation, _ANNOTATION)
)
_BY_CATEGORY = MappingProxyType(dict(_WANTED) | _tagged(Unwanted, _UNWANTED))
CATEGORIES = frozenset(_BY_CATEGORY)
"""Every category that is known, wanted or not."""

GPU_KIND_OF: Mapping[type[Struct], str] = MappingProxyType({_GPU[cat]: kind for cat, kind in GPU_KINDS.items()})
"""Kind of a GPU event, by its type."""

Event = Timed | Named | Struct

_TYPED = msgspec.json.Decoder(list[Union[tuple(_BY_CATEGORY.values())]])  # type: ignore[misc] # noqa: UP007
_LOOSE = msgspec.json.Decoder(list[_Loose])
_LOOSE_ONE = msgspec.json.Decoder(_Loose)
_RAWS = msgspec.json.Decoder(list[Raw])


def wanted(base: type[Struct]) -> tuple[type[Struct], ...]:
    """The event types made from one of `Gpu`, `Launch`, `Operator` and `Annotation`."""
    return tuple(kind for kind in _WANTED.values() if kind.__bases__ == (base,))


class Decoder:
    """Turns the text of an array of events into structs.

    Attributes:
        mended: how many events of each kind of flaw had to be read leniently (numbers as text, bad UTF-8, ...).
        strays: elements that are no objects.
    """

    def __init__(self) -> None:
        self.mended: Counter[str] = Counter()
        self.repaired = 0
        self.strays = 0

    def __call__(self, text: memoryview | bytes) -> list[Any]:
        """One struct per element.

        Raises:
            msgspec.DecodeError: the text is no valid array.
        """
        try:
            events: list[Any] = _TYPED.decode(text)
        except msgspec.DecodeError:
            pass
        except RecursionError:
            raise msgspec.DecodeError("nested too deeply") from None
        else:
            return events
        try:
            return [self._event(loose) for loose in self._any(text)]
        except RecursionError:
            raise msgspec.DecodeError("nested too deeply") from None

    def _any(self, text: memoryview | bytes) -> list[_Loose]:
        try:
            return _LOOSE.decode(text)
        except msgspec.ValidationError:
            pass
        found = []
        for raw in _RAWS.decode(text):
            try:
                found.append(_LOOSE_ONE.decode(raw))
            except msgspec.ValidationError:
                self.strays += 1
        return found

    def _event(self, loose: _Loose) -> Struct:
        """The struct that the typed decoder would have made, whatever types the writer used."""
        flaws: set[str] = set()
        cat = _text(loose.cat, flaws)
        kind = _WANTED.get(cat)
        event = Unwanted() if kind is None else self._wanted(kind, loose, flaws)
        if kind is None and not cat:
            event = _named(loose, flaws) or _device_task(loose, flaws) or event
        if flaws and not isinstance(event, Unwanted):
            self.repaired += 1
            self.mended.update(flaws)
        return event

    def _wanted(self, kind: type[Struct], loose: _Loose, flaws: set[str]) -> Struct:
        common = _common(loose, flaws)
        if issubclass(kind, Operator):
            return kind(**common, args=loose.args)
        return kind(**common, args=lenient(GpuArgs if issubclass(kind, Gpu) else LaunchArgs, loose.args, flaws))


def lenient(kind: type[Struct], raw: Raw, flaws: set[str]) -> Any:
    """Decode arguments whose values may have other types than they should; what makes no sense is left out."""
    if not bytes(raw):
        return kind()
    try:
        return msgspec.json.decode(raw, type=kind)
    except (msgspec.DecodeError, RecursionError):
        pass
    values = _value(raw, flaws)
    if not isinstance(values, dict):
        return kind()
    made: dict[str, Any] = {}
    for item in msgspec.structs.fields(kind):
        value = values.get(item.encode_name)
        if value is None:
            continue
        if item.type is Raw:
            made[item.name] = Raw(msgspec.json.encode(value))
        elif item.default is None:
            made[item.name] = value if isinstance(value, str) else json.dumps(value)
        else:
            made[item.name] = integer(value)
            if not isinstance(value, int):
                flaws.add("numbers written as text" if isinstance(value, str) else "numbers of the wrong type")
    return kind(**made)


def _common(loose: _Loose, flaws: set[str]) -> dict[str, Any]:
    return {
        "name": _text(loose.name, flaws),
        "pid": _id(loose.pid, flaws),
        "tid": _id(loose.tid, flaws),
        "ts": loose.ts,
        "dur": loose.dur,
    }


def _named(loose: _Loose, flaws: set[str]) -> Named | None:
    ph = _text(loose.ph, flaws)
    if ph not in {"M", "i", "I"}:
        return None
    args = _value(loose.args, flaws) if ph == "M" else None
    label = next((str(value) for value in args.values()), "") if isinstance(args, dict) else ""
    common = _common(loose, flaws)
    return Named(name=common["name"], pid=common["pid"], tid=common["tid"], ts=loose.ts, label=label)


def _device_task(loose: _Loose, flaws: set[str]) -> Struct | None:
    """A task on an Ascend device, which CANN writes without a category (its type is an argument)."""
    args = _value(loose.args, flaws)
    if not isinstance(args, dict) or "Physic Stream Id" not in args:
        return None
    task = str(args.get("Task Type", ""))
    cat = "kernel"
    if "WAIT" in task or "RECORD" in task or "NOTIFY" in task:
        cat = "cuda_sync"
    elif "SDMA" in task or "MEMCPY" in task:
        cat = "gpu_memcpy"
    stream, link = integer(args["Physic Stream Id"]), integer(args.get("connection_id"))
    return _WANTED[cat](**_common(loose, flaws), args=GpuArgs(stream=stream, correlation=link, device=0))


def _text(raw: Raw, flaws: set[str]) -> str:
    value = _value(raw, flaws)
    return value if isinstance(value, str) else "" if value is None else str(value)


def _id(raw: Raw, flaws: set[str]) -> int | str:
    value = _value(raw, flaws)
    return value if isinstance(value, int | str) and value is not True and value is not False else NULL


def _value(raw: Raw, flaws: set[str]) -> Any:
    data = bytes(raw)
    if not data:
        return None
    try:
        return msgspec.json.decode(data)
    except (msgspec.DecodeError, RecursionError):
        pass
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError:
        flaws.add("text that is not UTF-8")
        text = data.decode("utf-8", "replace")
    try:
        return json.loads(text, strict=False)
    except (ValueError, RecursionError):
        return None
