"""The NVTX ranges of a report: NCCL's calls with their payloads, PyTorch's operators, and marks of frameworks."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from parsers.columns import NULL, Ints, Names
from parsers.nsys import functions
from parsers.nsys.conditions import AllOf, AnyOf, Begins, Condition, Contains, Not, OneOf
from parsers.nsys.dynamic import add_dynamic, own_layouts
from parsers.nsys.functions import PREFIXES, canonical, function_kind
from parsers.nsys.gpu import are_times
from parsers.nsys.owners import PROCESS_SHIFT, THREAD_MASK, Owners
from parsers.nsys.payload import FIELDS, Payloads
from parsers.nsys.schema import DETAILS, NVTX
from parsers.nsys.store import Block, Store, column

PUSH_POP, START_END, DOMAIN = 59, 60, 75

_RANGES = OneOf("eventType", (PUSH_POP, START_END))
_COLUMNS = ("start", "end", "eventType", "globalTid", "textId", "domainId")
# `torch.autograd.profiler.emit_nvtx` adds these to every operator's name (torch/csrc/profiler/util.cpp getNvtxStr).
_OPERATOR_SIGNS = (", op_id = ", ", seq = ", ", sizes = ")
_SUFFIX = re.compile(r", (?:seq|op_id|sizes|input_op_ids|trace_id) = ")
_SIZES = re.compile(r", sizes = (\[.*?\])(?:, input_op_ids|\Z)")
_KEPT_OPERATORS = (
    "c10d::", "_c10d_functional", "c10d_functional", "symm_mem::", "record_param_comms", "vllm::", "sglang::",
    "autograd::engine::evaluate_function", "FSDP::", "FullyShardedDataParallel", "DistributedDataParallel",
    "torch.distributed", "Optimizer.", "PP:", "nccl:", "rccl:", "## ",
)  # fmt: skip
_COMPUTES = ("aten::", "prim::", "flash_attn::", "triton::", "transformer_engine::")
# Ranges of compilers and mathematical libraries, which say nothing of communication or steps.
_NOISE = (
    "XlaPass", "XlaDump", "XlaEmit", "XlaOptimize", "TSL:XlaPass", "TSL:XlaDump", "TSL:XlaEmit", "TSL:XlaOptimize",
    "cublas", "cudnn", "cusolver", "cusparse", "cuBLAS:", "cuDNN:",
)  # fmt: skip


@dataclass(frozen=True)
class Ranges:
    """Ranges that are not NCCL's.

    Attributes:
        start: ns.
        end: ns.
        owner: number of the process (`parsers.nsys.owners.Owners`).
        tid: number of the thread.
        name: number into ``names``.
        names: without what `emit_nvtx` adds.
        sizes: sizes of the operator's tensors as written (``[[2, 4], [8]]``), number into ``size_texts``, or -1.
        size_texts: the distinct ones.
    """

    start: Ints
    end: Ints
    owner: npt.NDArray[np.int16]
    tid: npt.NDArray[np.int32]
    name: npt.NDArray[np.int32]
    names: list[str]
    sizes: npt.NDArray[np.int32]
    size_texts: list[str]


@dataclass(frozen=True)
class NcclRanges:
    """Ranges of NCCL, in order of process, thread and time.

    Attributes:
        start: ns.
        end: ns; `NULL` where the range was not closed.
        owner: number of the process (`parsers.nsys.owners.Owners`).
        tid: number of the thread.
        kind: what `parsers.nsys.functions.function_kind` says.
        name: number into ``names``.
        names: names of C functions.
        said: per entry of `payload.FIELDS`, what the payload says, else `NULL`.
        dtype: element type, number into ``dtypes``, or -1.
        dtypes: the distinct ones, as written.
        unknown_payloads: payloads that could not be read.
        without_end: ranges that were not closed.
        has_payload: whether any payload could be read.
    """

    start: Ints
    end: Ints
    owner: npt.NDArray[np.int16]
    tid: Ints
    kind: npt.NDArray[np.int8]
    name: npt.NDArray[np.int32]
    names: list[str]
    said: dict[str, Ints]
    dtype: npt.NDArray[np.int32]
    dtypes: list[str]
    unknown_payloads: int
    without_end: int

    @property
    def has_payload(self) -> bool:
        """Whether any payload could be read."""
        return any(bool((values != NULL).any()) for values in self.said.values())

    def take(self, rows: npt.NDArray[Any]) -> NcclRanges:
        """Some of the ranges."""
        return replace(
            self,
            **{name: getattr(self, name)[rows] for name in ("start", "end", "owner", "tid", "kind", "name", "dtype")},
            said={name: values[rows] for name, values in self.said.items()},
        )


@dataclass(frozen=True)
class Nvtx:
    """All ranges that matter."""

    nccl: NcclRanges
    others: Ranges
    read: int


def read_nvtx(store: Store, owners: Owners) -> Nvtx:
    """Read the ranges of a report."""
    domains = _nccl_domains(store)
    likely = _may_be_nccl(store, domains)
    of_nccl, of_others = _NcclColumns(owners), _OtherColumns(owners)
    read = 0
    for block, names, is_nccl in _likely_blocks(store, domains, likely):
        read += block.rows
        of_nccl.add(store, block, names, is_nccl)
        of_others.add(block, names, ~is_nccl)
    noise: list[Condition] = [
        Begins("text", _COMPUTES),
        AllOf([Contains("text", _OPERATOR_SIGNS), Contains("text", ("::",)), Not(Begins("text", _KEPT_OPERATORS))]),
        Begins("text", _NOISE),
    ]
    for block in store.scan(NVTX, _COLUMNS, ["text"], AllOf([_RANGES, Not(likely), Not(AnyOf(noise))])):
        read += block.rows
        of_others.add(block, _spelled(store, block), np.ones(block.rows, np.bool_))
    return Nvtx(of_nccl.finish(store, _capture_ends(store)), of_others.finish(), read)


def read_nccl(store: Store, owners: Owners) -> NcclRanges:
    """Read the ranges of NCCL alone."""
    domains = _nccl_domains(store)
    columns = _NcclColumns(owners)
    for block, names, is_nccl in _likely_blocks(store, domains, _may_be_nccl(store, domains)):
        columns.add(store, block, names, is_nccl)
    return columns.finish(store, _capture_ends(store))


def _likely_blocks(
    store: Store, domains: Ints, likely: Condition
) -> Iterator[tuple[Block, list[str], npt.NDArray[np.bool_]]]:
    """Ranges that may be NCCL's with their payloads, their names, and which of them are."""
    wanted = AllOf([_RANGES, likely])
    for block in store.scan(NVTX, [*_COLUMNS, "jsonTextId", "eventId"], ["text", "binaryData", "jsonText"], wanted):
        names = _spelled(store, block)
        yield block, names, _is_nccl(block, names, domains)


def _nccl_domains(store: Store) -> Ints:
    """Domains called NCCL, as rows of process and number; numbers are given out by each process for itself."""
    ids = [
        number
        for number, text in store.find_strings(Begins("value", (functions.DOMAIN,))).items()
        if text == functions.DOMAIN
    ]
    found = [np.empty((0, 2), np.int64)]
    for block in store.scan(NVTX, ["globalTid", "domainId", "textId"], ["text"], OneOf("eventType", (DOMAIN,))):
        named = np.fromiter((text == functions.DOMAIN for text in block.values["text"]), np.bool_, block.rows)
        named |= np.isin(block.ints["textId"], ids)
        found.append(np.stack([block.ints["globalTid"] >> PROCESS_SHIFT, block.ints["domainId"]], axis=1)[named])
    return np.concatenate(found)


def _may_be_nccl(store: Store, domains: Ints) -> Condition:
    parts: list[Condition] = [Begins("text", PREFIXES)]
    ids = list(store.find_strings(Begins("value", PREFIXES)))
    if ids:
        parts.append(OneOf("textId", ids))
    if len(domains):
        parts.append(OneOf("domainId", np.unique(domains[:, 1]).tolist()))
    return AnyOf(parts)


def _spelled(store: Store, block: Block) -> list[str]:
    """The name of each range: its own text, else the registered one."""
    texts = block.values["text"]
    ids = block.ints["textId"]
    wanted = ids[np.fromiter((text is None for text in texts), np.bool_, block.rows) & (ids != NULL)]
    known = store.strings(wanted) if len(wanted) else {}
    return [
        known.get(number, "") if text is None else str(text) for text, number in zip(texts, ids.tolist(), strict=True)
    ]


def _is_nccl(block: Block, names: Sequence[str], domains: Ints) -> npt.NDArray[np.bool_]:
    """Ranges of NCCL: by their domain, else (files cut out of others lack its creation) by the function's name."""
    process, domain = block.ints["globalTid"] >> PROCESS_SHIFT, block.ints["domainId"]
    inside = np.zeros(block.rows, np.bool_)
    for owner, number in domains.tolist():
        inside |= (process == owner) & (domain == number)
    kinds = {name: function_kind(name) is not None for name in set(names)}
    return inside | np.fromiter((kinds[name] for name in names), np.bool_, block.rows)


def _capture_ends(store: Store) -> Ints:
    """Moments that may be the end of the capture: ranges that nsys 2023 could not close end there."""
    details = column(store, DETAILS, "duration", "startTime", "stopTime")
    ends = [details["duration"], details["stopTime"], details["stopTime"] - details["startTime"]]
    found = np.concatenate(ends)
    return found[found > 0]


class _NcclColumns:
    """Ranges of NCCL as they are collected."""

    def __init__(self, owners: Owners) -> None:
        self._owners = owners
        self._chunks: list[dict[str, Ints]] = []
        self._names = Names()
        self._dtypes = Names()
        self._layouts: dict[tuple[int, int], Any] | None = None
        self._unknown = self._without_start = 0

    def add(self, store: Store, block: Block, names: Sequence[str], wanted: npt.NDArray[np.bool_]) -> None:
        timed = are_times(block.ints["start"])
        self._without_start += int((wanted & ~timed).sum())
        rows = np.flatnonzero(wanted & timed)
        if not len(rows):
            return
        at = rows.tolist()
        spelled = {name: canonical(name.removeprefix(functions.DOMAIN + ":")) for name in set(names)}
        called = [spelled[names[row]] for row in at]
        payloads = Payloads(len(rows))
        binary, json = block.values["binaryData"], block.values["jsonText"]
        if any(binary[row] is not None for row in at):
            if self._layouts is None:
                self._layouts = own_layouts(store)
            self._unknown += payloads.from_binary(called, [binary[row] for row in at], self._layouts)
        texts = [json[row] for row in at]
        ids = block.ints["jsonTextId"][rows]
        if (ids != NULL).any():
            known = store.strings(ids[ids != NULL])
            texts = [
                known.get(number) if text is None else text for text, number in zip(texts, ids.tolist(), strict=True)
            ]
        if any(text is not None for text in texts):
            self._unknown += payloads.from_json(texts)
        globals_ = block.ints["globalTid"][rows]
        self._chunks.append(
            {
                "start": block.ints["start"][rows],
                "end": np.where(are_times(block.ints["end"][rows]), block.ints["end"][rows], NULL),
                "owner": self._owners.numbers(globals_).astype(np.int64),
                "tid": globals_ & THREAD_MASK,
                "name": self._names.codes(called).astype(np.int64),
                "dtype": self._dtypes.codes(payloads.dtype).astype(np.int64),
                "eventId": block.ints["eventId"][rows],
                **payloads.columns,
            }
        )

    def finish(self, store: Store, capture_ends: Ints) -> NcclRanges:
        wanted = ("start", "end", "owner", "tid", "name", "dtype", "eventId", *FIELDS)
        empty = np.empty(0, np.int64)
        whole = {n: np.concatenate([chunk[n] for chunk in self._chunks]) if self._chunks else empty for n in wanted}
        add_dynamic(store, whole, self._dtypes)
        if self._without_start:
            store.faults.append(f"{self._without_start} ranges of NCCL have no start and were left out")
        names = [str(name) for name in self._names]
        kinds = np.array([*(_kind_of(name) for name in names), functions.OTHER], np.int8)
        order = np.lexsort((-whole["end"], whole["start"], whole["tid"], whole["owner"]))
        whole = {name: values[order] for name, values in whole.items()}
        open_ = (whole["end"] == NULL) | np.isin(whole["end"], capture_ends) | (whole["end"] < whole["start"])
        return NcclRanges(
            start=whole["start"],
            end=np.where(open_, NULL, whole["end"]),
            owner=whole["owner"].astype(np.int16),
            tid=whole["tid"],
            kind=kinds[whole["name"]],
            name=whole["name"].astype(np.int32),
            names=names,
            said={name: whole[name] for name in FIELDS},
            dtype=whole["dtype"].astype(np.int32),
            dtypes=[str(name) for name in self._dtypes],
            unknown_payloads=self._unknown,
            without_end=int(open_.sum()),
        )


def _kind_of(name: str) -> int:
    kind = function_kind(name)
    return functions.OTHER if kind is None else kind


class _OtherColumns:
    """Other ranges as they are collected."""

    def __init__(self, owners: Owners) -> None:
        self._owners = owners
        self._chunks: list[tuple[npt.NDArray[Any], ...]] = []
        self._names = Names()
        self._sizes = Names()

    def add(self, block: Block, names: Sequence[str], wanted: npt.NDArray[np.bool_]) -> None:
        start, end = block.ints["start"], block.ints["end"]
        good = wanted & are_times(start) & are_times(end) & (end >= start)
        rows = np.flatnonzero(good)
        if not len(rows):
            return
        texts = [names[row] for row in rows.tolist()]
        globals_ = block.ints["globalTid"][rows]
        self._chunks.append(
            (
                start[rows],
                end[rows],
                self._owners.numbers(globals_),
                (globals_ & THREAD_MASK).astype(np.int32),
                self._names.codes([_bare(text) for text in texts]),
                self._sizes.codes([_sizes(text) for text in texts]),
            )
        )

    def finish(self) -> Ranges:
        empty: tuple[npt.NDArray[Any], ...] = tuple(
            np.empty(0, kind) for kind in (np.int64, np.int64, np.int16, np.int32, np.int32, np.int32)
        )
        columns = [np.concatenate(chunks) for chunks in zip(*(self._chunks or [empty]), strict=True)]
        order = np.lexsort((-columns[1], columns[0], columns[3], columns[2]))
        start, end, owner, tid, name, sizes = (values[order] for values in columns)
        texts = [str(text) for text in self._sizes]
        return Ranges(start, end, owner, tid, name, [str(n) for n in self._names], sizes, texts)


def _bare(text: str) -> str:
    if ", " not in text:
        return text
    found = _SUFFIX.search(text)
    return text if found is None else text[: found.start()]


def _sizes(text: str) -> str | None:
    found = _SIZES.search(text) if ", sizes = " in text else None
    return None if found is None else found[1]
