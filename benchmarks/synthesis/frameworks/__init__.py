"""What each framework makes of a layout: its groups and the program of each rank."""

from __future__ import annotations

from collections.abc import Callable

from benchmarks.synthesis.frameworks import deepspeed, inference, megatron, plain, torchtitan
from benchmarks.synthesis.program import Program
from benchmarks.synthesis.spec import Spec

PROGRAMS: dict[str, Callable[[Spec, int], Program]] = {
    "megatron": megatron.program,
    "torchtitan": torchtitan.program,
    "torch": plain.program,
    "hf": plain.program,
    "deepspeed": deepspeed.program,
    "inference": inference.program,
}


def program(spec: Spec, rank: int) -> Program:
    """All steps of one rank."""
    return PROGRAMS[spec.framework](spec, rank)
