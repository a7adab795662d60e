"""A `ModelSpec` from a name, a Hugging Face ``config.json``, or a YAML, JSON or TOML file of its fields."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from ledger.errors import LedgerError
from ledger.files import Config, construct, names_a_file, read_mapping
from ledger.model import BIASES, MLASpec, ModelSpec, MoESpec
from ledger.presets import preset


def load_model(name_or_path: str) -> ModelSpec:
    """The model meant by a preset's name or by the path of a config file.

    A file may be a Hugging Face ``config.json`` (it has ``model_type``) or a mapping of `ModelSpec` fields, with
    ``moe`` and ``mla`` as mappings of their own and, if wanted, ``preset`` to start from a known model.

    Raises:
        LedgerError: unknown name, unreadable file, missing, unknown or ill-typed key; the message names it.
    """
    if names_a_file(name_or_path):
        config = read_mapping(Path(name_or_path), "model")
        try:
            return model_from_config(config)
        except LedgerError as error:
            raise LedgerError(f"{name_or_path}: {error.message}", key=error.key) from None
    return preset(name_or_path)


def model_from_config(config: Config) -> ModelSpec:
    """A model from a parsed config, of either kind.

    Raises:
        LedgerError: missing, unknown or ill-typed key, or an unsupported ``model_type``.
    """
    nested = config.get("text_config")
    if isinstance(nested, dict) and "model_type" in nested:
        return model_from_config(nested)
    if "model_type" not in config:
        return _from_fields(config)
    kind = config["model_type"]
    try:
        build = _FAMILIES[kind]
    except (KeyError, TypeError):
        known = ", ".join(sorted(_FAMILIES))
        raise LedgerError(f"model_type {kind!r} is not supported; known: {known}", key="model_type") from None
    return build(config)


def _from_fields(config: Config) -> ModelSpec:
    fields = dict(config)
    base = fields.pop("preset", None)
    for key, kind in (("moe", MoESpec), ("mla", MLASpec)):
        if isinstance(fields.get(key), dict):
            fields[key] = construct(kind, fields[key], f"{key}.")
    if isinstance(fields.get("biases"), list):
        fields["biases"] = tuple(fields["biases"])
    if base is None:
        return construct(ModelSpec, fields, "")
    start = {field.name: getattr(preset(str(base)), field.name) for field in dataclasses.fields(ModelSpec)}
    return construct(ModelSpec, {**start, "name": None, **fields}, "")


def _int(config: Config, *keys: str, default: int | None = None) -> int:
    """The first of ``keys`` that is there, as an integer."""
    for key in keys:
        value = config.get(key)
        if value is None:
            continue
        if isinstance(value, bool) or not isinstance(value, int):
            raise LedgerError(f"{key} must be an integer, not {value!r}", key=key)
        return value
    if default is None:
        raise LedgerError(f"missing key {keys[0]}", key=keys[0])
    return default


def _attention_fields(config: Config) -> dict[str, Any]:
    return {
        "name": config.get("_name_or_path") or None,
        "layers": _int(config, "num_hidden_layers"),
        "hidden": _int(config, "hidden_size"),
        "ffn": _int(config, "intermediate_size"),
        "heads": _int(config, "num_attention_heads"),
        "kv_heads": _int(config, "num_key_value_heads", default=_int(config, "num_attention_heads")),
        "head_dim": _int(config, "head_dim") if config.get("head_dim") is not None else None,
        "vocab": _int(config, "vocab_size"),
        "tied": bool(config.get("tie_word_embeddings", False)),
    }


def _llama(config: Config) -> ModelSpec:
    biases = BIASES[:2] if config.get("attention_bias") else ()
    if config.get("mlp_bias"):
        biases = (*biases, "mlp")
    return ModelSpec(**_attention_fields(config), biases=biases)


def _mixtral(config: Config) -> ModelSpec:
    moe = MoESpec(
        experts=_int(config, "num_local_experts"),
        top_k=_int(config, "num_experts_per_tok"),
        expert_ffn=_int(config, "intermediate_size"),
    )
    return ModelSpec(**_attention_fields(config), moe=moe)


def _qwen2(config: Config) -> ModelSpec:
    return ModelSpec(**_attention_fields(config), biases=("qkv",))


def _qwen3(config: Config) -> ModelSpec:
    biases = BIASES[:2] if config.get("attention_bias") else ()
    return ModelSpec(**_attention_fields(config), qk_norm=True, biases=biases)


def _qwen_moe(config: Config) -> ModelSpec:
    step = _int(config, "decoder_sparse_step", default=1)
    plain = config.get("mlp_only_layers") or []
    if plain != list(range(len(plain))) or (plain and step != 1):
        raise LedgerError(
            f"mlp_only_layers {plain} are not the first layers; write the model as YAML fields", key="mlp_only_layers"
        )
    second = config["model_type"] == "qwen2_moe"
    moe = MoESpec(
        experts=_int(config, "num_experts"),
        top_k=_int(config, "num_experts_per_tok"),
        expert_ffn=_int(config, "moe_intermediate_size"),
        shared_ffn=_int(config, "shared_expert_intermediate_size") if second else 0,
        shared_gate=second,
        first_dense_layers=len(plain) or step - 1,
        layer_frequency=step,
    )
    biases = ("qkv",) if second else BIASES[:2] if config.get("attention_bias") else ()
    return ModelSpec(**_attention_fields(config), qk_norm=not second, moe=moe, biases=biases)


def _deepseek(config: Config) -> ModelSpec:
    third = config["model_type"] == "deepseek_v3"
    expert_ffn = _int(config, "moe_intermediate_size")
    moe = MoESpec(
        experts=_int(config, "n_routed_experts"),
        top_k=_int(config, "num_experts_per_tok"),
        expert_ffn=expert_ffn,
        shared_ffn=_int(config, "n_shared_experts", default=0) * expert_ffn,
        first_dense_layers=_int(config, "first_k_dense_replace", default=0),
        layer_frequency=_int(config, "moe_layer_freq", default=1),
        router_bias=third,
    )
    mla = MLASpec(
        q_rank=_int(config, "q_lora_rank") if config.get("q_lora_rank") is not None else None,
        kv_rank=_int(config, "kv_lora_rank"),
        nope_dim=_int(config, "qk_nope_head_dim"),
        rope_dim=_int(config, "qk_rope_head_dim"),
        value_dim=_int(config, "v_head_dim"),
    )
    fields = {**_attention_fields(config), "kv_heads": None, "head_dim": None}
    return ModelSpec(**fields, moe=moe, mla=mla, mtp_layers=_int(config, "num_nextn_predict_layers", default=0))


def _gpt2(config: Config) -> ModelSpec:
    hidden = _int(config, "n_embd")
    return ModelSpec(
        name=config.get("_name_or_path") or None,
        layers=_int(config, "n_layer"),
        hidden=hidden,
        ffn=_int(config, "n_inner", default=4 * hidden),
        heads=_int(config, "n_head"),
        vocab=_int(config, "vocab_size"),
        positions=_int(config, "n_positions", "n_ctx"),
        gated=False,
        tied=bool(config.get("tie_word_embeddings", True)),
        norm="layernorm",
        biases=BIASES,
    )


_FAMILIES: Mapping[str, Callable[[Config], ModelSpec]] = MappingProxyType(
    {
        "llama": _llama,
        "mistral": _llama,
        "mixtral": _mixtral,
        "qwen2": _qwen2,
        "qwen3": _qwen3,
        "qwen2_moe": _qwen_moe,
        "qwen3_moe": _qwen_moe,
        "deepseek_v2": _deepseek,
        "deepseek_v3": _deepseek,
        "gpt2": _gpt2,
    }
)
