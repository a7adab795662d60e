"""NCCL's functions as its NVTX ranges name them, and the kernels that run them."""

from __future__ import annotations

import re
from types import MappingProxyType

DOMAIN = "NCCL"
"""Name of NCCL's NVTX domain (src/include/nvtx.h)."""

PREFIXES = ("nccl",)
"""How the texts begin that may be ranges of NCCL, or of PyTorch around it."""

# What a range is, as far as linking goes.
START, END, CALL, INIT, OTHER = range(5)

COLLECTIVE_WORDS = ("allreduce", "allgather", "reducescatter", "broadcast", "reduce", "sendrecv")
"""What kernels are told apart by. All-to-all, gather and scatter are built from sends (src/collectives.cc)."""

ANY_KERNEL = len(COLLECTIVE_WORDS)
"""A communication kernel whose name does not say what it runs."""

_WORD_OF = MappingProxyType(
    {
        "allreduce": 0,
        "allgather": 1,
        "reducescatter": 2,
        "broadcast": 3,
        "bcast": 3,
        "reduce": 4,
        "send": 5,
        "recv": 5,
        "alltoall": 5,
        "gather": 5,
        "scatter": 5,
        "putsignal": 5,
    }
)
_GROUPS = MappingProxyType({"groupstart": START, "groupend": END, "groupsimulateend": END})
_NAME = re.compile(r"nccl([A-Z][A-Za-z]*)\Z")
_KERNEL = re.compile(
    r"\b(?:void )?(?:nccl|rccl)\w*?(?P<word>AllReduce|AllGather|ReduceScatter|Broadcast|Reduce|SendRecv)?(?![a-z])"
)
_LIBRARY = re.compile(r"nccl|rccl|mscclKernel|oneRankReduce", re.IGNORECASE)


def function_kind(name: str) -> int | None:
    """What an NCCL range is (`START`, `END`, `CALL`, `INIT` or `OTHER`); null for the ranges of others.

    Args:
        name: of the C function: ``ncclAllReduce``.
    """
    match = _NAME.match(name)
    if match is None:
        return None
    word = match[1].lower()
    if word in _GROUPS:
        return _GROUPS[word]
    if word in _WORD_OF:
        return CALL
    if word.startswith(("comminit", "commsplit", "commshrink", "commgrow")):
        return INIT
    return OTHER


def word_of_function(name: str) -> int:
    """The kernel word (place in `COLLECTIVE_WORDS`) that an NCCL call runs under."""
    return _WORD_OF[name[4:].lower()]


def canonical(name: str) -> str:
    """The C function behind a range: nsys's own tracing of NCCL (``-t nccl``) leaves the prefix out."""
    return name if name.startswith("nccl") or not name[:1].isupper() else "nccl" + name.replace(" ", "")


def word_of_kernel(name: str) -> int | None:
    """The word of a communication kernel, `ANY_KERNEL` where its name does not say, null for other kernels."""
    if not _LIBRARY.search(name[:256]):
        return None
    found = re.search(r"(AllReduce|AllGather|ReduceScatter|Broadcast|Reduce|SendRecv)(?![a-z])", name[:256])
    return ANY_KERNEL if found is None else _WORD_OF.get(found[1].lower(), COLLECTIVE_WORDS.index("sendrecv"))
