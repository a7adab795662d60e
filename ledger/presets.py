"""Published models by name."""

from __future__ import annotations

from types import MappingProxyType

from ledger.errors import LedgerError
from ledger.model import BIASES, MLASpec, ModelSpec, MoESpec
from ledger.names import meant, spelled


def _llama(name: str, layers: int, hidden: int, ffn: int, heads: int, kv_heads: int, vocab: int) -> ModelSpec:
    return ModelSpec(
        name=name, layers=layers, hidden=hidden, ffn=ffn, heads=heads, kv_heads=kv_heads, vocab=vocab, head_dim=None
    )


def _mixtral(name: str, layers: int, hidden: int, ffn: int, heads: int, vocab: int) -> ModelSpec:
    return ModelSpec(
        name=name,
        layers=layers,
        hidden=hidden,
        ffn=ffn,
        heads=heads,
        kv_heads=8,
        vocab=vocab,
        moe=MoESpec(experts=8, top_k=2, expert_ffn=ffn),
    )


def _qwen3(
    name: str,
    layers: int,
    hidden: int,
    ffn: int,
    heads: int,
    *,
    kv_heads: int = 8,
    tied: bool = False,
    moe: MoESpec | None = None,
) -> ModelSpec:
    return ModelSpec(
        name=name,
        layers=layers,
        hidden=hidden,
        ffn=ffn,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=128,
        vocab=151936,
        tied=tied,
        qk_norm=True,
        moe=moe,
    )


def _deepseek_v3() -> ModelSpec:
    return ModelSpec(
        name="deepseek-v3",
        layers=61,
        hidden=7168,
        ffn=18432,
        heads=128,
        vocab=129280,
        mla=MLASpec(q_rank=1536, kv_rank=512, nope_dim=128, rope_dim=64, value_dim=128),
        moe=MoESpec(experts=256, top_k=8, expert_ffn=2048, shared_ffn=2048, first_dense_layers=3, router_bias=True),
        mtp_layers=1,
    )


def _gpt3() -> ModelSpec:
    return ModelSpec(
        name="gpt3-175b",
        layers=96,
        hidden=12288,
        ffn=4 * 12288,
        heads=96,
        vocab=50257,
        gated=False,
        tied=True,
        norm="layernorm",
        biases=BIASES,
        positions=2048,
    )


_QWEN3_30B_MOE = MoESpec(experts=128, top_k=8, expert_ffn=768)
_QWEN3_235B_MOE = MoESpec(experts=128, top_k=8, expert_ffn=1536)

PRESETS = MappingProxyType(
    {
        spec.name: spec
        for spec in (
            _llama("llama2-7b", 32, 4096, 11008, 32, 32, 32000),
            _llama("llama2-13b", 40, 5120, 13824, 40, 40, 32000),
            _llama("llama2-70b", 80, 8192, 28672, 64, 8, 32000),
            _llama("llama3-8b", 32, 4096, 14336, 32, 8, 128256),
            _llama("llama3-70b", 80, 8192, 28672, 64, 8, 128256),
            _llama("llama3-405b", 126, 16384, 53248, 128, 8, 128256),
            _gpt3(),
            _mixtral("mixtral-8x7b", 32, 4096, 14336, 32, 32000),
            _mixtral("mixtral-8x22b", 56, 6144, 16384, 48, 32768),
            _deepseek_v3(),
            _qwen3("qwen3-0.6b", 28, 1024, 3072, 16, tied=True),
            _qwen3("qwen3-1.7b", 28, 2048, 6144, 16, tied=True),
            _qwen3("qwen3-4b", 36, 2560, 9728, 32, tied=True),
            _qwen3("qwen3-8b", 36, 4096, 12288, 32),
            _qwen3("qwen3-14b", 40, 5120, 17408, 40),
            _qwen3("qwen3-32b", 64, 5120, 25600, 64),
            _qwen3("qwen3-30b-a3b", 48, 2048, 6144, 32, kv_heads=4, moe=_QWEN3_30B_MOE),
            _qwen3("qwen3-235b-a22b", 94, 4096, 12288, 64, kv_heads=4, moe=_QWEN3_235B_MOE),
        )
    }
)
"""Dimensions as in each model's published config.json (gpt3-175b: Brown et al. 2020, table 2.1)."""


def preset(name: str) -> ModelSpec:
    """The model called ``name``, whatever its case; ``_`` and spaces count as ``-``.

    Raises:
        LedgerError: no such preset; the message offers the closest names.
    """
    key = spelled(name)
    try:
        return PRESETS[key]
    except KeyError:
        listed = f"known: {', '.join(str(each) for each in PRESETS)}"
        hint = meant(key, (known for known in PRESETS if known), listed, cutoff=0.4)
        raise LedgerError(f"unknown model {name!r}; {hint}", key="model") from None
