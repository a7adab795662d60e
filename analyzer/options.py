"""What a user can ask of an analysis."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from analyzer.summary.model import RankSummary

from parsers.source import Limits


@dataclass(frozen=True)
class Progress:
    """How far the reading is.

    Attributes:
        files: files read.
        of_files: files in all.
        read_bytes: their size as stored, and what was taken of those that are being read; 0 where it is not known.
        of_bytes: of all files.
        path: the file that was read last or is being read.
    """

    files: int
    of_files: int
    read_bytes: int
    of_bytes: int
    path: str


@dataclass(frozen=True)
class Options:
    """How to analyse.

    Attributes:
        model: a preset's name, a Hugging Face ``config.json`` or a YAML model file; None: read back from payloads.
        layout: the layout the user believes in, such as ``tp8-pp16-dp128``; it is verified, never trusted.
        gpus_per_node: GPUs of one host; None: from the traces.
        cluster: how fast the links are: a preset's name or a YAML, JSON or TOML file (`ledger.clusters`); None: as the
            traces' own transfers show.
        steps: first and last step number to measure, inclusive; None: every complete step.
        use_names: whether group names and descriptions may count as evidence.
        ledger_profile: the framework whose traffic is predicted, or ``auto``.
        kernel_table: a TOML file with further communication kernels.
        workers: processes that read files.
        strict: any repair, missing rank or incomplete file is an error.
        dask: a Dask scheduler's address, or ``local:N``, that reads the files instead of ``workers``.
        cache: a directory in which summaries of traces are kept for the next time.
        memory_limit_bytes: what the processes that read files may take together; fewer of them run at a time. None: no
            limit.
        max_expansion: how many times its size a compressed file may grow (looked at beyond 256 MiB).
        max_unpacked_bytes: how large a compressed file may become.
        progress: called after each file, and now and then while one is read.
        change: applied to each rank before anything is inferred from it (`analyzer.export.hidden`); sentences about
            files are left out then.
    """

    model: str | None = None
    layout: str | None = None
    gpus_per_node: int | None = None
    cluster: str | None = None
    steps: tuple[int, int] | None = None
    use_names: bool = True
    ledger_profile: str = "auto"
    kernel_table: str | None = None
    workers: int = 1
    strict: bool = False
    dask: str | None = None
    cache: str | None = None
    memory_limit_bytes: int | None = None
    max_expansion: float = Limits.max_ratio
    max_unpacked_bytes: int = Limits.max_bytes
    progress: Callable[[Progress], None] | None = None
    change: Callable[[RankSummary], RankSummary] | None = None
