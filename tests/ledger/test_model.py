import csv

import pytest

from ledger.errors import LedgerError
from ledger.model import BIASES, MLASpec, ModelSpec, MoESpec
from ledger.presets import PRESETS, preset
from ledger.weights import elements, layer_weights

PUBLISHED = {
    # parameter counts of the published checkpoints, to the parameter
    "llama2-7b": 6_738_415_616,
    "llama2-13b": 13_015_864_320,
    "llama2-70b": 68_976_648_192,
    "llama3-8b": 8_030_261_248,
    "llama3-70b": 70_553_706_496,
    "llama3-405b": 405_853_388_800,
    "mixtral-8x7b": 46_702_792_704,
    "mixtral-8x22b": 140_630_071_296,
    "deepseek-v3": 671_026_419_200,
    "qwen3-0.6b": 596_049_920,
    "qwen3-1.7b": 1_720_574_976,
    "qwen3-4b": 4_022_468_096,
    "qwen3-8b": 8_190_735_360,
    "qwen3-14b": 14_768_307_200,
    "qwen3-32b": 32_762_123_264,
    "qwen3-30b-a3b": 30_532_122_624,
    "qwen3-235b-a22b": 235_093_634_560,
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_parameters_equal_the_published_checkpoint(name):
    assert preset(name).parameters == PUBLISHED[name]


def test_gpt3_is_175_billion_as_its_paper_rounds_it():
    assert preset("gpt3-175b").parameters == pytest.approx(175.0e9, rel=0.003)


@pytest.mark.parametrize(
    ("name", "billions"),
    [("mixtral-8x7b", 12.9), ("mixtral-8x22b", 39.2), ("qwen3-30b-a3b", 3.3), ("qwen3-235b-a22b", 22.2)],
)
def test_active_parameters_equal_the_model_cards(name, billions):
    assert preset(name).active_parameters / 1e9 == pytest.approx(billions, rel=0.02)


def test_deepseek_v3_activates_37_billion_and_its_mtp_module_holds_11():
    model = preset("deepseek-v3")
    # the report counts 37 B active; the weights' README 36.7 B with the embedding but 11.5 B for the MTP module
    assert model.active_parameters == pytest.approx(37e9, rel=0.02)
    assert model.mtp_parameters == pytest.approx(11.5e9, rel=0.01)
    assert (model.moe_layers, model.is_moe_layer(2), model.is_moe_layer(3)) == (58, False, True)


def test_dense_models_activate_everything():
    assert preset("llama3-8b").active_parameters == preset("llama3-8b").parameters
    assert preset("llama3-8b").expert_parameters == 0


def test_a_llama3_70b_layer():
    assert elements(layer_weights(preset("llama3-70b"), 0)) == 855_654_400


def test_megatron_2021_table_1(shared):
    # every row: 12·l·h²(1 + 13/(12h) + (V + s)/(12·l·h)), V = 51200, s = 2048
    table = shared / "data" / "tables" / "megatron2021_table1.csv"
    rows = list(csv.DictReader(table.read_text(encoding="utf-8").splitlines()))
    assert len(rows) == 10
    for row in rows:
        model = ModelSpec(
            layers=int(row["layers"]),
            hidden=int(row["hidden"]),
            ffn=4 * int(row["hidden"]),
            heads=int(row["heads"]),
            vocab=51200,
            gated=False,
            tied=True,
            norm="layernorm",
            biases=BIASES,
            positions=2048,
        )
        assert round(model.parameters / 1e9, 2) == float(row["params_b_formula"])
        assert model.parameters / 1e9 == pytest.approx(float(row["params_b"]), rel=0.03)


def test_names_are_forgiving_about_case_and_separators():
    assert preset("Llama3_70B") is PRESETS["llama3-70b"]


def test_an_unknown_name_offers_the_closest_ones():
    with pytest.raises(LedgerError, match=r"unknown model 'llama3-71b'; did you mean llama3-70b"):
        preset("llama3-71b")
    with pytest.raises(LedgerError, match="known: llama2-7b"):
        preset("zzzz")


@pytest.mark.parametrize(
    ("fields", "key"),
    [
        ({"layers": 0}, "layers"),
        ({"heads": 3}, "heads"),
        ({"kv_heads": 3}, "kv_heads"),
        ({"norm": "batchnorm"}, "norm"),
        ({"biases": ("everything",)}, "biases"),
        ({"mtp_layers": -1}, "mtp_layers"),
    ],
)
def test_impossible_dimensions_are_refused(fields, key):
    with pytest.raises(LedgerError) as caught:
        ModelSpec(**{"layers": 2, "hidden": 64, "ffn": 256, "heads": 4, "vocab": 128, **fields})
    assert caught.value.key == key


@pytest.mark.parametrize(
    ("fields", "key"),
    [
        ({"top_k": 9}, "moe.top_k"),
        ({"experts": 0}, "moe.experts"),
        ({"capacity_factor": 0}, "moe.capacity_factor"),
        ({"shared_ffn": -1}, "moe.shared_ffn"),
    ],
)
def test_impossible_mixtures_are_refused(fields, key):
    with pytest.raises(LedgerError) as caught:
        MoESpec(**{"experts": 8, "top_k": 2, "expert_ffn": 64, **fields})
    assert caught.value.key == key


def test_widths_of_grouped_and_latent_attention():
    large = preset("llama3-405b")
    assert (large.query_width, large.key_width, large.value_width) == (16384, 1024, 1024)
    latent = preset("deepseek-v3")
    assert (latent.query_width, latent.key_width, latent.value_width) == (128 * 192, 128 * 192, 128 * 128)
    direct = ModelSpec(
        layers=1,
        hidden=64,
        ffn=64,
        heads=4,
        vocab=8,
        mla=MLASpec(q_rank=None, kv_rank=16, nope_dim=8, rope_dim=4, value_dim=8),
    )
    # q 48x64, kv down 20x64, norm 16, kv up 64x16, o 64x32
    attention = 48 * 64 + 20 * 64 + 16 + 64 * 16 + 64 * 32
    assert elements(layer_weights(direct, 0)) == attention + 2 * 64 + 3 * 64 * 64
