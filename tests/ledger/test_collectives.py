import pytest

from ledger.collectives import PRIMITIVES, collective_bytes
from ledger.dtypes import DTYPE_BYTES, dtype_bytes
from ledger.errors import LedgerError


@pytest.mark.parametrize(
    ("primitive", "n", "payload", "sent"),
    [
        ("all_reduce", 4, 1000, 1500),
        ("all_gather", 4, 1000, 750),
        ("reduce_scatter", 4, 1000, 750),
        ("all_to_all", 4, 1000, 750),
        ("gather", 4, 1000, 750),
        ("scatter", 4, 1000, 750),
        ("send_recv", 2, 1000, 1000),
        ("broadcast", 8, 1000, 1000),
        ("reduce", 8, 1000, 1000),
        ("barrier", 8, 1000, 0),
    ],
)
def test_bytes_one_rank_sends(primitive, n, payload, sent):
    assert collective_bytes(primitive, n, payload) == sent


def test_all_reduce_is_reduce_scatter_plus_all_gather():
    for n in (2, 8, 128, 16384):
        payload = n * 1000
        halves = collective_bytes("reduce_scatter", n, payload) + collective_bytes("all_gather", n, payload)
        assert collective_bytes("all_reduce", n, payload) == halves


def test_a_group_of_one_moves_nothing_but_its_own_messages():
    assert {primitive: collective_bytes(primitive, 1, 64) for primitive in PRIMITIVES} == {
        **dict.fromkeys(PRIMITIVES, 0),
        "send_recv": 64,
    }


def test_all_reduce_volume_hardly_depends_on_the_number_of_ranks():
    assert collective_bytes("all_reduce", 8, 1000) == 1750
    assert collective_bytes("all_reduce", 1024, 1000) == 1998


def test_llama3_70b_gradients_are_282_gigabytes_per_step():
    payload = 2 * 70_553_706_496
    assert round(collective_bytes("all_reduce", 1024, payload) / 1e9) == 282


@pytest.mark.parametrize(
    ("primitive", "n", "payload"), [("all_reduce", 0, 1), ("all_gather", 2, -1), ("allreduce", 2, 1)]
)
def test_nonsense_is_refused(primitive, n, payload):
    with pytest.raises(LedgerError):
        collective_bytes(primitive, n, payload)


def test_dtype_sizes():
    assert (dtype_bytes("bfloat16"), dtype_bytes("float32"), dtype_bytes("uint8")) == (2, 4, 1)
    assert set(DTYPE_BYTES.values()) == {1, 2, 4, 8}
    with pytest.raises(LedgerError, match="bf16"):
        dtype_bytes("bf16")
