"""The annotated trace: the job's own events, with ours beside them, on one axis, in one file."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec import Raw

from analyzer.export.arrows import arrows, message_arrows
from analyzer.export.axis import Axis, common_axis
from analyzer.export.calls import Calls, calls_of
from analyzer.export.chrome import base_ns, header_of, is_chrome
from analyzer.export.cut import Window
from analyzer.export.events import Placed, passed_through
from analyzer.export.from_tables import from_tables
from analyzer.export.identifiers import PROCESSES, ROOM, Identifiers
from analyzer.export.tracks import Spot, exposed_stretches, threads, tracks
from analyzer.exposure import Timeline, gpu_work, timeline
from analyzer.measured import Measured

if TYPE_CHECKING:
    from analyzer.export.anonymize import Hider
    from analyzer.export.sink import EventFile
    from analyzer.model import Analysis
    from analyzer.options import Options
    from heuristics.labelled import LabelledRank

BATCH = 10_000
"""Added events that are written at a time."""


@dataclass(frozen=True, eq=False)
class Export:
    """What is exported.

    Attributes:
        analysis: the document.
        ranks: the ranks behind it.
        axis: their common time axis.
        origin_ns: what ``ts`` counts from.
        has_epoch: whether that is a time of day.
        window: what to write, ns since the origin; None for all.
        real: where the files are, by the names that stand for them; empty where nothing is hidden.
    """

    analysis: Analysis
    ranks: Sequence[Measured]
    axis: Axis
    origin_ns: int
    has_epoch: bool
    window: Window | None
    real: Mapping[str, str]

    def path(self, rank: Measured) -> str:
        """The file of a rank."""
        return self.real.get(rank.source.path, rank.source.path)

    @property
    def paths(self) -> list[str]:
        """The files, each once."""
        return list(dict.fromkeys(self.path(rank) for rank in self.ranks))


def prepared(
    analysis: Analysis, ranks: Sequence[Measured], find: Callable[[Axis], Window | None], hide: Hider | None = None
) -> Export:
    """Set the clocks and the origin.

    Args:
        analysis: the document.
        ranks: the ranks behind it.
        find: gives the window on the common axis (absolute ns).
        hide: what hid the names of the ranks.

    Raises:
        InputError: a file cannot be read, or there is no such window.
    """
    axis = common_axis([rank.source for rank in ranks])
    export = Export(analysis, ranks, axis, 0, False, None, {} if hide is None else hide.real)
    bases = [base_ns(header_of(path)) for path in export.paths if is_chrome(path)]
    known = [base for base in bases if base is not None]
    window = find(axis)
    origin = known[0] if known else 0
    if window is not None:
        window = Window(window.start_ns - origin, window.end_ns - origin)
    return replace(export, origin_ns=origin, has_epoch=bool(known), window=window)


def header(export: Export, hide: Hider | None) -> dict[str, Any]:
    """The keys around the events; what differs between files is left out."""
    found = [header_of(path) for path in export.paths if is_chrome(path)]
    out: dict[str, Any] = {"schemaVersion": 1, "displayTimeUnit": "ms"}
    if export.has_epoch:
        out["baseTimeNanoseconds"] = export.origin_ns
    for key in found[0] if found else ():
        if key not in out and key != "baseTimeNanoseconds" and len({item.get(key) for item in found}) == 1:
            shown = Raw(found[0][key]) if hide is None else hide.header(key, found[0][key])
            if shown is not None:
                out[key] = shown
    if len(found) > 1:
        devices = found[0].get("deviceProperties", b"[]")
        out.setdefault("deviceProperties", Raw(devices) if hide is None else hide.header("deviceProperties", devices))
        out["distributedInfo"] = {"world_size": export.analysis.world_size}
    out["commlens"] = _about(export)
    return out


def _about(export: Export) -> dict[str, Any]:
    """What this file is, for whoever finds it."""
    analysis = export.analysis
    layout = analysis.layout
    about: dict[str, Any] = {
        "version": analysis.tool.version,
        "ranks": analysis.trust.ranks_present,
        "layout": {dim: getattr(layout, dim) for dim in ("tp", "cp", "pp", "dp", "ep")},
        "layout_confidence": layout.confidence,
        "clocks_aligned": export.axis.aligned,
        "clock_residual_us": analysis.trust.clock.residual_us,
        "units": "ts and dur µs; algbw, busbw GB/s (1e9 bytes); *_us µs; *_bytes bytes",
    }
    if export.window is not None:
        about["window_us"] = [export.window.start_ns / 1000, export.window.end_ns / 1000]
    return about


def write_trace(export: Export, options: Options, file: EventFile, *, events: bool, hide: Hider | None) -> list[str]:
    """Write everything; one file of the job is in memory at a time.

    Args:
        export: what.
        options: how the files were read.
        file: where to.
        events: whether to write the job's own events as well.
        hide: hides names; None writes them as they are.

    Returns:
        What a user should know, a sentence each.
    """
    notes: list[str] = []
    spots: dict[int, Spot] = {}
    thread: dict[int, Any] = {}
    paths = export.paths
    for place, path in enumerate(paths):
        ids = Identifiers(place, alone=len(paths) == 1, hidden=hide is not None)
        mine = [i for i, rank in enumerate(export.ranks) if export.path(rank) == path]
        full = _labelled(path, options)
        placed = []
        for number, i in enumerate(mine):
            found = full[number] if len(full) == len(mine) else None
            line = timeline(found, gpu_work(found)) if found is not None else export.ranks[i].source.line
            if found is None and export.ranks[i].source.on_gpu:
                notes.append(f"{path}: a summary keeps no events; exposed stretches are gathered, not in their place")
            calls = calls_of(export.ranks[i], line)
            pid = PROCESSES * (place + 1) + PROCESSES // 2 + number
            spots[i] = _spot(export, i, calls, line, pid)
            thread[i] = threads(calls, spots[i])
            placed.append(Placed(export.ranks[i], i, calls, line, found))
            _batched(file, _hidden(tracks(calls, spots[i], thread[i]), hide))
        if events:
            _own_events(path, placed, export, ids, file, hide, notes)
    order = [spots[i] for i in range(len(export.ranks))]
    lanes = [thread[i] for i in range(len(export.ranks))]
    first = len(paths) * ROOM + 1
    _batched(file, arrows(export.axis.collectives, order, lanes, first))
    _batched(file, message_arrows(export.axis.messages, order, lanes, first + export.axis.collectives.count))
    return notes


def _own_events(
    path: str,
    placed: Sequence[Placed],
    export: Export,
    ids: Identifiers,
    file: EventFile,
    hide: Hider | None,
    notes: list[str],
) -> None:
    """The events of a file: as they stand in it, or, from other formats, as the reader understood them."""
    shift = _shift(export, placed[0].index)
    if is_chrome(path):
        for batch in passed_through(path, placed, shift, ids, export.window, hide, notes):
            file.write(batch)
        return
    labelled = [item for item in placed if item.labelled is not None]
    if not labelled:
        notes.append(f"{path}: {placed[0].rank.source.format} keeps no events; only the added tracks are written")
    for item in labelled:
        _batched(file, from_tables(item, _shift(export, item.index), ids, export.window, hide))


def _shift(export: Export, rank: int) -> Callable[[Any], Any]:
    """From a rank's own clock (absolute ns) to ns since the origin of the export."""
    return lambda times: export.axis.on(times, rank) - export.origin_ns


def _spot(export: Export, i: int, calls: Calls, line: Timeline, pid: int) -> Spot:
    shift = _shift(export, i)
    stretches = exposed_stretches(line, calls.texts["dim"])
    window = export.window
    shifted = {dim: (shift(start), shift(end)) for dim, (start, end) in stretches.items()}
    if window is not None:
        shifted = {
            dim: (start[keep], end[keep])
            for dim, (start, end) in shifted.items()
            if (keep := (start < window.end_ns) & (end > window.start_ns)).any()
        }
    return Spot(pid, export.ranks[i].source.rank, shift(calls.start), shift(calls.end), shifted, window)


def _labelled(path: str, options: Options) -> list[LabelledRank]:
    """The ranks of a file with all their events, in order; none where the file is gone, as that of a summary may be."""
    from analyzer.reading import labelled_ranks

    return labelled_ranks(path, options) if "://" in path or Path(path).exists() else []


def _hidden(events: Iterator[dict[str, Any]], hide: Hider | None) -> Iterator[dict[str, Any]]:
    return events if hide is None else (hide.made(event) for event in events)


def _batched(file: EventFile, events: Iterator[dict[str, Any]]) -> None:
    waiting = []
    for event in events:
        waiting.append(event)
        if len(waiting) >= BATCH:
            file.write(waiting)
            waiting = []
    file.write(waiting)
