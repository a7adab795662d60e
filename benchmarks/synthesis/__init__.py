"""Traces of jobs that never ran: an event simulator that writes NCCL-style Kineto files for any layout and framework.

It is written from what the frameworks do (their sources are cited module by module) and shares nothing with
`heuristics` or `ledger`, so that it can contradict them.

>>> from benchmarks.synthesis import generate, Spec
>>> generate(Spec.parse("megatron", "tp2-pp2-dp2"), "/tmp/job")  # doctest: +SKIP
"""

from __future__ import annotations

from benchmarks.synthesis.generate import generate
from benchmarks.synthesis.spec import Model, Spec, Writing

__all__ = ["Model", "Spec", "Writing", "generate"]
