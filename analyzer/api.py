"""For notebooks and scripts: `analyze` gives a `Job`, whose parts are objects, data frames and pictures.

>>> import analyzer
>>> job = analyzer.analyze("sample_traces/tp2_pp2_dp2")  # doctest: +SKIP
>>> job.layout.tp, job.layout.pp, job.layout.dp          # doctest: +SKIP
(2, 2, 2)
>>> job.collectives[["dim", "primitive", "exposed_us_per_step"]]  # doctest: +SKIP

What is documented in docs/python.md is stable: it changes only together with `schema_version`.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from analyzer.details import Details
from analyzer.model import (
    Analysis,
    Experts,
    Exposure,
    Finding,
    LayoutDoc,
    LedgerDoc,
    Pipeline,
    Straggler,
    Trust,
    to_json,
)
from analyzer.options import Options
from analyzer.pipeline import Examined, Paths, examine

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

    from analyzer.gate.policy import Policy
    from analyzer.gate.verdict import Comparison

TABLES = (
    *("inputs", "layout", "groups", "collectives", "exposure", "ranks", "steps", "ledger", "stragglers", "findings"),
    "calls",
)
"""What `Job.table` knows; the columns are listed in docs/export.md and `analyzer.export.tables.SCHEMAS`."""


def analyze(source: Paths | object, **options: Any) -> Job:
    """Analyse the traces of one job.

    Args:
        source: a file, a directory with all ranks of one job, a glob, several of these, or a loaded
            `hta.trace_analysis.TraceAnalysis` (or `hta.common.trace.Trace`), whose files are analysed.
        **options: the fields of `analyzer.Options`, such as ``model="llama3-70b"`` or ``steps=(3, 6)``.

    Raises:
        parsers.errors.InputError: nothing can be read, or the files come from different jobs.
        ledger.errors.LedgerError: an unknown model, layout or profile.
        analyzer.errors.InconclusiveError: the input is incomplete and ``strict`` was asked for.
        TypeError: an unknown option, or a source that is none of the above.
    """
    return Job(examine(_paths(source), Options(**options)))


def infer_layout(source: Paths | object, **options: Any) -> LayoutDoc:
    """The layout of a job, as `Job.layout` has it, without the rest of the analysis.

    From files of summaries it reads only what layout inference needs: of thousands of ranks, a job's layout is there
    within seconds. Of traces it makes the whole analysis.

    Args:
        source: as for `analyze`.
        **options: as for `analyze`.

    Raises:
        as `analyze`.
    """
    from analyzer.layout_alone import layout_alone

    return layout_alone(_paths(source), Options(**options))


def _paths(source: Any) -> Paths:
    """Paths as they are; of an object of HolisticTraceAnalysis, the files it has loaded."""
    if isinstance(source, (str, os.PathLike)):
        return source
    trace = getattr(source, "t", source)
    files = getattr(trace, "trace_files", None)
    if isinstance(files, Mapping):
        folder = Path(str(getattr(trace, "trace_path", "")))
        return [str(path) if Path(path).is_absolute() else str(folder / path) for path in files.values()]
    if isinstance(source, Sequence):
        return list(source)
    raise TypeError(f"{type(source).__name__} is neither a path nor several, nor a loaded trace")


class Job:
    """One analysed job.

    The parts of the result document are attributes: objects with the document's fields, or, for `collectives`, a data
    frame. Times are microseconds per step and rank, sizes bytes, bandwidths decimal GB/s; None (and NaN) means *not
    determined from this input*.
    """

    def __init__(self, examined: Examined) -> None:
        self._examined = examined

    @property
    def document(self) -> Analysis:
        """The whole result, as ``--format json`` writes it."""
        return self._examined.analysis

    @property
    def layout(self) -> LayoutDoc:
        """The inferred layout: ``tp``, ``pp``, ``confidence``, ``dimensions["tp"].evidence``, ..."""
        return self.document.layout

    @property
    def world_size(self) -> int | None:
        """Ranks of the job."""
        return self.document.world_size

    @property
    def trust(self) -> Trust:
        """What to know before any number is believed."""
        return self.document.trust

    @property
    def exposure(self) -> Exposure | None:
        """How the mean step divides: ``exposed_us``, ``by_dimension["tp"].exposed_us``, ``by_rank``."""
        return self.document.exposure

    @property
    def ledger(self) -> LedgerDoc | None:
        """Bytes observed against bytes predicted."""
        return self.document.ledger

    @property
    def pipeline(self) -> Pipeline | None:
        """Bubble and stages."""
        return self.document.pipeline

    @property
    def experts(self) -> Experts | None:
        """Balance of the experts."""
        return self.document.experts

    @property
    def stragglers(self) -> list[Straggler]:
        """Ranks that the others wait for."""
        return self.document.stragglers

    @property
    def findings(self) -> list[Finding]:
        """What to look at, errors first, then by cost."""
        return self.document.findings

    @property
    def collectives(self) -> pd.DataFrame:
        """The table of collectives: one row per dimension, primitive, group size, link, type, operation and phase."""
        return self.table("collectives")

    @property
    def calls(self) -> pd.DataFrame:
        """Every call of every rank."""
        return self.table("calls")

    def table(self, name: str) -> pd.DataFrame:
        """A table of `analyze export` as a data frame; whole numbers are nullable integers.

        Args:
            name: one of `TABLES`.

        Raises:
            KeyError: there is no such table.
        """
        import pandas as pd
        import pyarrow as pa

        from analyzer.export.tables import table

        if name not in TABLES:
            raise KeyError(f"no table {name!r}; there are {', '.join(TABLES)}")
        kinds = {pa.int64(): pd.Int64Dtype(), pa.bool_(): pd.BooleanDtype()}
        frame: pd.DataFrame = table(name, self.document, self._examined.ranks).to_pandas(types_mapper=kinds.get)
        return frame

    @cached_property
    def details(self) -> Details:
        """What the pictures are drawn from."""
        return Details(self._examined)

    @cached_property
    def plot(self) -> Plots:
        """Pictures: ``job.plot.step_anatomy()``."""
        return Plots(self.details)

    def to_json(self) -> bytes:
        """The document as UTF-8 JSON."""
        return to_json(self.document)

    def explain(self, finding_id: str) -> str:
        """What a finding means, how it was computed, and the events that show it, as text.

        Raises:
            InputError: there is no such finding.
        """
        from analyzer.explaining import explain_finding
        from analyzer.reporters.text import text

        return text(explain_finding(finding_id, self.document, self._examined.ranks), width=100)

    def text(self) -> str:
        """The report of ``analyze TRACE...``."""
        from analyzer.reporters.sections import sections
        from analyzer.reporters.text import text

        return text(sections(self.document), width=100)

    def compare(self, other: Job, policy: Policy | None = None) -> Comparison:
        """This job against a later one, as ``analyze compare`` judges it.

        Args:
            other: the later job.
            policy: how strict to be; by default as the command.
        """
        from analyzer.gate.metrics import record_of
        from analyzer.gate.policy import Policy
        from analyzer.gate.verdict import compare

        before, after = (record_of(job.document, job._examined.ranks, None) for job in (self, other))
        return compare(before, after, policy or Policy())

    def __repr__(self) -> str:
        degrees = " ".join(f"{dim}{_shown(getattr(self.layout, dim))}" for dim in ("tp", "cp", "pp", "dp", "ep"))
        return f"<Job of {_shown(self.world_size)} ranks: {degrees}, confidence {self.layout.confidence:.2f}>"

    def _repr_html_(self) -> str:
        from analyzer.reporters.notebook import notebook

        return notebook(self.document)


class Plots:
    """The pictures of `analyzer.plots`, one method each: ``plot.step_anatomy(ax=None)`` gives a Matplotlib figure.

    Where a picture has nothing to show, it raises `analyzer.plots.NothingToShowError` with the reason.
    """

    def __init__(self, details: Details) -> None:
        self._details = details

    def _draw(self, name: str, ax: Any) -> Figure:
        from analyzer.plots import PICTURES

        figure: Figure = PICTURES[name](self._details, ax=ax)
        return figure

    def layout_mesh(self, ax: Any = None) -> Figure:
        """The layout: ranks in their nodes and groups."""
        return self._draw("layout_mesh", ax)

    def step_anatomy(self, ax: Any = None) -> Figure:
        """How the step of each rank divides."""
        return self._draw("step_anatomy", ax)

    def bandwidth_scatter(self, ax: Any = None) -> Figure:
        """Bandwidth by payload."""
        return self._draw("bandwidth_scatter", ax)

    def traffic_matrix(self, ax: Any = None) -> Figure:
        """Bytes from rank to rank."""
        return self._draw("traffic_matrix", ax)

    def rank_step_heatmap(self, ax: Any = None) -> Figure:
        """Time by rank and step."""
        return self._draw("rank_step_heatmap", ax)

    def stage_replica_heatmap(self, ax: Any = None) -> Figure:
        """Time by pipeline stage and replica."""
        return self._draw("stage_replica_heatmap", ax)

    def pipeline_timeline(self, ax: Any = None) -> Figure:
        """Stages over time."""
        return self._draw("pipeline_timeline", ax)

    def expert_load(self, ax: Any = None) -> Figure:
        """Load of the experts."""
        return self._draw("expert_load", ax)

    def worst_collectives(self, ax: Any = None) -> Figure:
        """The costliest calls, waiting and transfer."""
        return self._draw("worst_collectives", ax)

    def __dir__(self) -> list[str]:
        return [name for name in super().__dir__() if not name.startswith("_")]


def _shown(value: int | None) -> str:
    return "?" if value is None else str(value)
