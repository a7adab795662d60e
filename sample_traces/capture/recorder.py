"""Gloo with the collective metadata that only NCCL-like backends write: the backend ``recorded_gloo``."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from types import ModuleType

import torch.distributed as dist
from torch._C._distributed_c10d import _DistributedBackendOptions
from torch.distributed import ProcessGroupGloo
from torch.utils.cpp_extension import load

BACKEND = "recorded_gloo"
"""The name to give to ``init_process_group``; the traces kept in the repository say ``gloo``."""


@cache
def build() -> ModuleType:
    """Compile ``recorder.cpp``, or load it from PyTorch's extension cache where it is unchanged.

    Raises:
        RuntimeError: no C++ compiler or no ninja.
    """
    source = Path(__file__).with_name("recorder.cpp")
    return load("commlens_recorder", [str(source)], extra_cflags=["-O1"])


def register() -> str:
    """Make ``recorded_gloo`` known to this process and return its name."""
    extension = build()

    def create(options: _DistributedBackendOptions, _: object) -> dist.Backend:
        inner = ProcessGroupGloo(options.store, options.group_rank, options.group_size, timeout=options.timeout)
        return extension.wrap(inner, BACKEND, list(options.global_ranks_in_group))

    if not hasattr(dist.Backend, BACKEND.upper()):
        dist.Backend.register_backend(BACKEND, create, extended_api=True, devices=["cpu"])
    return BACKEND
