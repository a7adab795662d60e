import json

import pytest

from ledger.errors import LedgerError
from ledger.load import load_model, model_from_config
from ledger.presets import preset

LLAMA = {
    "model_type": "llama",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "vocab_size": 128256,
}
DEEPSEEK = {
    "model_type": "deepseek_v3",
    "hidden_size": 7168,
    "intermediate_size": 18432,
    "moe_intermediate_size": 2048,
    "num_hidden_layers": 61,
    "num_attention_heads": 128,
    "num_key_value_heads": 128,
    "vocab_size": 129280,
    "n_routed_experts": 256,
    "n_shared_experts": 1,
    "num_experts_per_tok": 8,
    "first_k_dense_replace": 3,
    "moe_layer_freq": 1,
    "q_lora_rank": 1536,
    "kv_lora_rank": 512,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    "num_nextn_predict_layers": 1,
}
QWEN3_MOE = {
    "model_type": "qwen3_moe",
    "hidden_size": 2048,
    "intermediate_size": 6144,
    "moe_intermediate_size": 768,
    "num_hidden_layers": 48,
    "num_attention_heads": 32,
    "num_key_value_heads": 4,
    "head_dim": 128,
    "vocab_size": 151936,
    "num_experts": 128,
    "num_experts_per_tok": 8,
    "decoder_sparse_step": 1,
    "mlp_only_layers": [],
}


@pytest.mark.parametrize(
    ("config", "parameters"),
    [
        (LLAMA, 8_030_261_248),
        # Mistral 7B v0.1
        ({**LLAMA, "model_type": "mistral", "vocab_size": 32000}, 7_241_732_096),
        (
            {**LLAMA, "model_type": "mixtral", "vocab_size": 32000, "num_local_experts": 8, "num_experts_per_tok": 2},
            46_702_792_704,
        ),
        # Qwen2.5 7B: biases on q, k, v
        (
            {
                "model_type": "qwen2",
                "hidden_size": 3584,
                "intermediate_size": 18944,
                "num_hidden_layers": 28,
                "num_attention_heads": 28,
                "num_key_value_heads": 4,
                "vocab_size": 152064,
            },
            7_615_616_512,
        ),
        (DEEPSEEK, 671_026_419_200),
        (QWEN3_MOE, 30_532_122_624),
        # Qwen1.5 MoE A2.7B: shared experts behind a gate
        (
            {
                "model_type": "qwen2_moe",
                "hidden_size": 2048,
                "intermediate_size": 5632,
                "moe_intermediate_size": 1408,
                "shared_expert_intermediate_size": 5632,
                "num_hidden_layers": 24,
                "num_attention_heads": 16,
                "num_key_value_heads": 16,
                "vocab_size": 151936,
                "num_experts": 60,
                "num_experts_per_tok": 4,
            },
            14_315_784_192,
        ),
        # GPT-2
        (
            {
                "model_type": "gpt2",
                "n_layer": 12,
                "n_embd": 768,
                "n_head": 12,
                "vocab_size": 50257,
                "n_positions": 1024,
            },
            124_439_808,
        ),
    ],
)
def test_hugging_face_configs_give_the_published_totals(config, parameters):
    assert model_from_config(config).parameters == parameters


def test_a_config_equals_the_preset_it_describes():
    assert model_from_config({**DEEPSEEK, "_name_or_path": "deepseek-v3"}) == preset("deepseek-v3")


def test_nested_text_configs_are_found():
    assert model_from_config({"model_type": "llava", "text_config": LLAMA}).layers == 32


def test_plain_first_layers_of_a_qwen_mixture():
    model = model_from_config({**QWEN3_MOE, "mlp_only_layers": [0, 1]})
    assert [model.is_moe_layer(layer) for layer in range(4)] == [False, False, True, True]
    model = model_from_config({**QWEN3_MOE, "decoder_sparse_step": 2})
    assert [model.is_moe_layer(layer) for layer in range(4)] == [False, True, False, True]
    with pytest.raises(LedgerError, match="mlp_only_layers"):
        model_from_config({**QWEN3_MOE, "mlp_only_layers": [5]})


def test_files_of_each_kind(tmp_path):
    config = tmp_path / "config.json"
    config.write_text(json.dumps(LLAMA))
    assert load_model(str(config)).parameters == 8_030_261_248
    fields = tmp_path / "model.yaml"
    fields.write_text("layers: 4\nhidden: 64\nffn: 256\nheads: 8\nvocab: 128\ngated: false\nnorm: layernorm\n")
    assert load_model(str(fields)).parameters == 214144
    derived = tmp_path / "longer.yml"
    derived.write_text("preset: mixtral-8x7b\nlayers: 16\nmoe: {experts: 16, top_k: 2, expert_ffn: 14336}\n")
    model = load_model(str(derived))
    assert (model.layers, model.hidden, model.moe.experts) == (16, 4096, 16)


def test_a_name_is_a_preset():
    assert load_model("llama3-8b") is preset("llama3-8b")


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("config.json", "{", "not valid JSON"),
        ("config.json", "[1]", "a mapping, not a list"),
        ("config.json", '{"model_type": "bert"}', "model_type 'bert' is not supported"),
        ("config.json", json.dumps({**LLAMA, "hidden_size": None}), "missing key hidden_size"),
        ("config.json", json.dumps({**LLAMA, "hidden_size": "4096"}), "hidden_size must be an integer"),
        ("config.json", '{"layers": 4}', "missing key hidden"),
        ("model.yaml", "layers: 4\nwidth: 64\n", "unknown key width"),
        ("model.yaml", "layers: four\n", "layers must be int"),
        ("model.yaml", "moe: {experts: 8}\n", "missing key moe.top_k"),
        ("model.yaml", "a: [\n", "not valid YAML"),
        ("model.yaml", "preset: llama9\n", "unknown model 'llama9'"),
    ],
)
def test_a_bad_file_is_one_line_that_names_file_and_key(tmp_path, name, content, message):
    path = tmp_path / name
    path.write_text(content)
    with pytest.raises(LedgerError) as caught:
        load_model(str(path))
    assert str(caught.value).startswith(str(path))
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(LedgerError, match="cannot read model config"):
        load_model(str(tmp_path / "config.json"))


def test_a_binary_file_is_not_a_config(tmp_path):
    path = tmp_path / "config.json"
    path.write_bytes(b"\x89PNG\r\n\x1a\n\xff")
    with pytest.raises(LedgerError, match="not a text file"):
        load_model(str(path))
