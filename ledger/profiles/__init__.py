"""What each framework really sends: one file per framework, the rules it follows and the defaults it sets.

`profile` finds one by name; `PROFILES` lists them.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from ledger.laws import family
from ledger.profiles.base import Profile
from ledger.profiles.deepspeed import DEEPSPEED
from ledger.profiles.hf import HF
from ledger.profiles.inference import INFERENCE
from ledger.profiles.megatron import MEGATRON, MEGATRON_FP8
from ledger.profiles.textbook import TEXTBOOK
from ledger.profiles.torch import TORCH
from ledger.profiles.torchtitan import TORCHTITAN, TORCHTITAN_0_1, TORCHTITAN_0_3

__all__ = ["PROFILES", "Profile", "profile"]

PROFILES: Mapping[str, Profile] = MappingProxyType(
    {
        each.name: each
        for each in (
            TEXTBOOK,
            MEGATRON,
            MEGATRON_FP8,
            TORCHTITAN,
            TORCHTITAN_0_1,
            TORCHTITAN_0_3,
            TORCH,
            DEEPSPEED,
            HF,
            INFERENCE,
        )
    }
)
"""By name."""


def profile(name: str) -> Profile:
    """The profile called ``name``.

    Raises:
        LedgerError: no such profile; the message offers the closest names.
    """
    family(name)
    return PROFILES[name]
