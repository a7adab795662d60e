from fractions import Fraction

import pytest

from ledger import payloads
from ledger.errors import LedgerError
from ledger.laws import FAMILY, Calls
from ledger.profiles import PROFILES


def test_every_profile_has_a_family_of_laws():
    assert set(FAMILY) == set(PROFILES)


def test_calls_add_up():
    total = Calls(2, 4, 1) + Calls(1, 0)
    assert (total.forward, total.in_backward, total.total) == (3, 5, 8)


def test_a_layer_is_its_two_sublayers():
    for profile in FAMILY:
        for sp in (True, False):
            for recompute in ("none", "selective", "full"):
                layer = payloads.tp_calls_per_layer(profile, sp, recompute, column_linears=5)
                attention = payloads.tp_calls_per_sublayer(profile, "attention", sp, recompute, column_linears=3)
                mlp = payloads.tp_calls_per_sublayer(profile, "mlp", sp, recompute, column_linears=2)
                assert {name: attention[name] + mlp[name] for name in layer} == dict(layer)


def test_vocabulary_calls():
    assert payloads.vocab_calls("megatron", True) == {
        "embedding": {"reduce_scatter": Calls(1, 0), "all_gather": Calls(0, 1)},
        "lm_head": {"all_gather": Calls(1, 1), "reduce_scatter": Calls(0, 1)},
    }
    assert payloads.vocab_calls("torchtitan", True)["lm_head"]["all_gather"] == Calls(1, 0)
    assert payloads.vocab_calls("megatron", False)["lm_head"] == {"all_reduce": Calls(0, 1)}
    assert payloads.vocab_calls("textbook", True) == {"embedding": {}, "lm_head": {}}


def test_ring_variants_in_blocks_of_keys_and_values():
    n = 8

    def blocks(name):
        return sum(call.calls * call.kv_blocks for call in payloads.ring_variants(n)[name])

    assert blocks("stacked") == 3 * (n - 1)
    assert blocks("separate") == 3 * n - 2
    gather = payloads.ring_variants(n)["torch_all_gather"]
    assert [(call.kv_blocks, call.one_hot) for call in gather] == [(8, False), (8, False), (1, True)]
    assert sum(call.calls for call in payloads.ring_variants(n)["torch_all_to_all"]) == 3 * n - 2


def test_context_parallel_calls():
    assert payloads.cp_calls_per_layer("megatron", "ring", 1) == ()
    ulysses = payloads.cp_calls_per_layer("deepspeed", "ulysses", 4)
    assert [call.widths for call in ulysses] == ["q", "k", "v", "o"] * 2
    both = payloads.cp_calls_per_layer("megatron", "hierarchical", 8, inner=2)
    assert [call.inner for call in both] == [True] * 8 + [False] * 2
    assert [call.calls for call in both[8:]] == [3, 3]
    gathered = payloads.cp_calls_per_layer("megatron", "all_gather", 8)
    assert {call.kv_blocks for call in gathered} == {Fraction(4)}
    assert [
        (call.primitive, call.phase) for call in payloads.cp_calls_per_layer("torch", "all_gather", 8, kept=True)
    ] == [
        ("all_gather", "forward"),
        ("reduce_scatter", "backward"),
    ]


def test_stage_boundaries_and_dispatch():
    assert payloads.pp_boundary_elements(8192, 16384, 8) == 8192 * 2048
    assert payloads.pp_boundary_elements(8192, 16384, 8, sp=False) == 8192 * 16384
    assert payloads.ep_dispatch_elements(8192, 64, 2, 4) == 2048 * 2 * 64
    assert payloads.ep_dispatch_elements(8192, 64, 2, 4, sp=False) == 8192 * 2 * 64


@pytest.mark.parametrize(
    "call",
    [
        lambda: payloads.tp_calls_per_layer("megatorn", True),
        lambda: payloads.tp_calls_per_layer("megatron", True, "some"),
        lambda: payloads.tp_calls_per_sublayer("megatron", "norm", True, column_linears=1),
        lambda: payloads.cp_calls_per_layer("megatron", "spiral", 2),
        lambda: payloads.gradient_calls("megatron", 4, 1),
        lambda: payloads.capacity(8, 2, 0, 1.0),
        lambda: payloads.imbalance([]),
        lambda: payloads.imbalance([0, 0]),
        lambda: payloads.expert_data_ranks(tp=1, cp=1, dp=8, ep=3, etp=1),
    ],
)
def test_nonsense_is_refused(call):
    with pytest.raises(LedgerError):
        call()
