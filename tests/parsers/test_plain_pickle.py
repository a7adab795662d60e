"""Pickles of plain data: read like `pickle` reads them, and nothing else is read at all."""

from __future__ import annotations

import os
import pickle
from pathlib import Path
from typing import Any

import pytest

from parsers.errors import InputError
from parsers.plain_pickle import PickleLimits, load

PLAIN: dict[str, Any] = {
    "entries": [{"sizes": [[1, 2], []], "tuple": (1, 2, 3), "pair": (1, 2), "one": (1,), "none": None}] * 3,
    "numbers": [0, 255, 65535, -1, -(2**31), 2**40, -(2**62), 1.5, -0.25],
    "text": ["", "é" * 300],
    "flags": (True, False),
    "bytes": [b"", b"x" * 300],
    "empty": ((), [], {}),
    3: {"seven": 7},
}


@pytest.mark.parametrize("protocol", [3, 4, 5])
def test_plain_data_come_back_as_they_were(protocol: int) -> None:
    assert load(pickle.dumps(PLAIN, protocol), "x") == PLAIN


def test_half_of_a_surrogate_pair_becomes_a_sign_that_can_be_written() -> None:
    (found,) = load(pickle.dumps(["a\ud800b"], 3), "x")
    assert found.startswith("a")
    assert found.endswith("b")
    assert found.encode()


@pytest.mark.parametrize("protocol", [0, 1, 2])
def test_old_protocols_hold_text_and_numbers(protocol: int) -> None:
    value = {"a": [1, -2, 2**40, None, True], "b": {"c": ("d", 1.5)}}
    assert load(pickle.dumps(value, protocol), "x") == value


def test_a_repeated_object_is_read_once() -> None:
    shared = [1, 2]
    first, second = load(pickle.dumps([shared, shared], 4), "x")  # type: ignore[misc]
    assert first is second


class _Call:
    """Unpickles as a call."""

    def __init__(self, function: Any, *arguments: Any) -> None:
        self.parts = (function, arguments)

    def __reduce__(self) -> Any:
        return self.parts


@pytest.mark.parametrize("protocol", range(6))
def test_a_pickle_that_calls_something_is_refused_and_not_run(protocol: int, tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    attack = pickle.dumps({"entries": [_Call(os.mkdir, str(victim))], "pg_config": {}}, protocol)
    with pytest.raises(InputError, match="refused: the pickle contains the instruction"):
        load(attack, "x")
    assert not victim.exists()


@pytest.mark.parametrize(
    "attack",
    [
        b"cos\nsystem\n(S'true'\ntR.",  # GLOBAL and REDUCE
        b"\x80\x04\x8c\x02os\x8c\x06system\x93\x8c\x04true\x85R.",  # STACK_GLOBAL
        b"(ios\nsystem\n.",  # INST
        b"\x80\x02\x82\x01.",  # EXT1
        b"Pid\n.",  # PERSID
        b"\x80\x02}\x80\x02]b.",  # BUILD
        b"\x80\x02]\x81.",  # NEWOBJ
        b"\x80\x05\x97.",  # NEXT_BUFFER
    ],
)
def test_every_instruction_that_refers_to_code_is_refused(attack: bytes) -> None:
    with pytest.raises(InputError, match="refused"):
        load(attack, "x")


def test_a_huge_memo_index_costs_no_memory() -> None:
    # `pickle.loads` allocates an array up to the index, 16 GiB here.
    assert load(b"\x80\x02]r\xff\xff\xff\x7f.", "x") == []


def test_nested_tuples_are_no_keys() -> None:
    # Hashing a tuple that holds the same tuple twice, forty levels deep, takes for ever.
    bomb = b"\x80\x02}" + b"K\x01\x85" + b"q\x00h\x00\x86" * 40 + b"Ns."
    with pytest.raises(InputError, match="damaged pickle"):
        load(bomb, "x")


def test_limits_on_work_and_depth() -> None:
    with pytest.raises(InputError, match="more than 10 steps"):
        load(pickle.dumps(list(range(100)), 2), "x", PickleLimits(max_steps=10))
    with pytest.raises(InputError, match="damaged"):
        load(b"\x80\x02" + b"(" * 200 + b".", "x")


def test_every_cut_pickle_is_one_line() -> None:
    data = pickle.dumps(PLAIN, 4)
    for end in range(len(data)):
        with pytest.raises(InputError) as caught:
            load(data[:end], "dump")
        assert "\n" not in str(caught.value)
