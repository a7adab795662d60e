"""The product: traces in, a `Job` out, with its layout, tables and pictures (docs/python.md).

>>> import analyzer
>>> a = analyzer.analyze("sample_traces/tp2_pp2_dp2")  # doctest: +SKIP
>>> a.layout.tp, a.layout.pp, a.layout.dp              # doctest: +SKIP
(2, 2, 2)
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from analyzer.api import Job as Job
    from analyzer.api import analyze as analyze
    from analyzer.api import infer_layout as infer_layout
    from analyzer.model import Analysis as Analysis
    from analyzer.options import Options as Options

__all__ = ["Analysis", "Job", "Options", "__version__", "analyze", "infer_layout"]

__version__ = "0.1.0"

_HOME = {
    "Analysis": "analyzer.model",
    "Job": "analyzer.api",
    "Options": "analyzer.options",
    "analyze": "analyzer.api",
    "infer_layout": "analyzer.api",
}


def __getattr__(name: str) -> object:
    """Load a part only when it is asked for: ``analyze --version`` must not import NumPy (PEP 562)."""
    if name in _HOME:
        from importlib import import_module

        return getattr(import_module(_HOME[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
