"""The jobs to capture: one module per kind of parallelism."""

from __future__ import annotations

from sample_traces.capture.cases import context, data, expert, pipeline, tensor
from sample_traces.capture.job import Case

CASES: dict[str, Case] = {
    case.name: case for module in (data, tensor, context, pipeline, expert) for case in module.CASES
}
"""Every case by name, in the order in which they are listed."""
