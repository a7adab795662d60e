"""NCCL's payloads, of every version and in every form."""

from __future__ import annotations

import json
import struct
from typing import Any

import pytest

from parsers.columns import NULL
from parsers.nsys.payload import FIELDS, LAYOUTS, Payloads

BASE = 1 << 24
HASH = 0xDEADBEEFCAFE0123  # beyond 2^63: negative where a database keeps it

# Per call the bytes as NCCL writes them (nvtx_payload_schemas.h from 2.25 on; collectives.cc and init.cc before).
CASES: list[tuple[str, int, bytes, dict[str, int]]] = [
    ("ncclCommInitRank", 0, struct.pack("<iii", 3, 8, 1), {"rank": 3, "nranks": 8, "device": 1}),
    (
        "ncclCommInitRankConfig",
        11,
        struct.pack("<Qiiixxxx", HASH, 8, 3, 1),
        {"comm": HASH, "nranks": 8, "rank": 3, "device": 1},
    ),
    ("ncclAllGather", 4, struct.pack("<Q", 1 << 33), {"bytes": 1 << 33}),
    ("ncclAllGather", 4, struct.pack("<QQ", HASH, 1 << 33), {"comm": HASH, "bytes": 1 << 33}),
    ("ncclAllReduce", 5, struct.pack("<Qixxxx", 4096, 4), {"bytes": 4096, "redop": 4}),
    ("ncclAllReduce", 5, struct.pack("<QQixxxx", 7, 4096, 2), {"comm": 7, "bytes": 4096, "redop": 2}),
    ("ncclReduceScatter", 7, struct.pack("<QQixxxx", 7, 64, 0), {"comm": 7, "bytes": 64, "redop": 0}),
    ("ncclBroadcast", 6, struct.pack("<Qixxxx", 64, 5), {"bytes": 64, "arg": 5}),
    ("ncclBroadcast", 6, struct.pack("<QQixxxx", 7, 64, 5), {"comm": 7, "bytes": 64, "arg": 5}),
    ("ncclReduce", 8, struct.pack("<Qii", 64, 5, 1), {"bytes": 64, "arg": 5, "redop": 1}),
    ("ncclReduce", 8, struct.pack("<QQii", 7, 64, 5, 3), {"comm": 7, "bytes": 64, "arg": 5, "redop": 3}),
    ("ncclSend", 9, struct.pack("<Qixxxx", 64, 5), {"bytes": 64, "arg": 5}),
    ("ncclRecv", 10, struct.pack("<QQixxxx", 7, 64, 5), {"comm": 7, "bytes": 64, "arg": 5}),
    ("ncclAlltoAll", 16, struct.pack("<QQ", 7, 64), {"comm": 7, "bytes": 64}),
    ("ncclGather", 17, struct.pack("<QQixxxx", 7, 64, 2), {"comm": 7, "bytes": 64, "arg": 2}),
    (
        "ncclCommSplit",
        13,
        struct.pack("<iiiii", 3, 8, 1, 0, 9),
        {"rank": 3, "nranks": 8, "device": 1, "color": 0, "key": 9},
    ),
    (
        "ncclCommSplit",
        13,
        struct.pack("<QQiiiiixxxx", HASH, 7, 8, 3, 1, -1, 9),
        {"comm": HASH, "parent": 7, "nranks": 8, "rank": 3, "device": 1, "color": -1, "key": 9},
    ),
]


def blob(number: int, data: bytes, domain: int = 1) -> bytes:
    return struct.pack("<QQQQ", domain, BASE + number, len(data), 32) + data


def said(payloads: Payloads, row: int = 0) -> dict[str, int]:
    """What is known of a row; hashes as NCCL prints them."""
    found = {name: int(payloads.columns[name][row]) for name in FIELDS}
    return {
        name: value & (2**64 - 1) if name in ("comm", "parent") else value
        for name, value in found.items()
        if value != NULL
    }


@pytest.mark.parametrize(
    "form", [bytes, bytes.hex, lambda data: "0x" + data.hex().upper(), lambda data: data.hex().encode()]
)
@pytest.mark.parametrize(
    ("name", "number", "data", "wanted"), CASES, ids=lambda value: value if isinstance(value, str) else ""
)
def test_binary_payloads(form: Any, name: str, number: int, data: bytes, wanted: dict[str, int]) -> None:
    payloads = Payloads(1)
    assert payloads.from_binary([name], [form(blob(number, data))], {}) == 0
    assert said(payloads) == wanted


def test_the_last_of_several_payloads_may_be_nccls() -> None:
    other = struct.pack("<QQQQ", 3, 77, 5, 32) + b"hello"
    payloads = Payloads(1)
    payloads.from_binary(["ncclAllGather"], [other + blob(4, struct.pack("<QQ", 7, 64))], {})
    assert said(payloads) == {"comm": 7, "bytes": 64}


def test_a_payload_without_a_header_is_known_by_its_size() -> None:
    payloads = Payloads(1)
    assert payloads.from_binary(["ncclSend"], [struct.pack("<Qixxxx", 64, 5)], {}) == 0
    assert said(payloads) == {"bytes": 64, "arg": 5}


@pytest.mark.parametrize(
    "value",
    [
        b"\x01",
        "zz",
        blob(4, b"123"),  # no size that an all-gather has
        struct.pack("<QQQQ", 1, BASE + 4, 1 << 40, 32) + b"12345678",  # says more than there is
        struct.pack("<QQQQ", 1, 5, 8, 32) + b"12345678",  # no schema of NCCL
        b"\x00" * 4096,
    ],
)
def test_what_is_no_payload_of_nccl_is_counted(value: Any) -> None:
    payloads = Payloads(2)
    assert payloads.from_binary(["ncclAllGather", "ncclAllGather"], [value, blob(4, struct.pack("<Q", 9))], {}) == 1
    assert said(payloads, 0) == {}
    assert said(payloads, 1) == {"bytes": 9}


def test_null_is_no_payload() -> None:
    payloads = Payloads(1)
    assert payloads.from_binary(["ncclAllGather"], [None], {}) == 0


def test_layouts_that_the_file_describes_are_used_where_nccls_are_not_known() -> None:
    layout = (("comm", 0, "<u8"), ("bytes", 16, "<u8"))
    payloads = Payloads(1)
    payloads.from_binary(["ncclAllGatherV"], [blob(40, struct.pack("<QQQ", 7, 1, 64))], {(BASE + 40, 24): layout})
    assert said(payloads) == {"comm": 7, "bytes": 64}


@pytest.mark.parametrize(
    "number", [18319673707052330093, "18319673707052330093", "18,319,673,707,052,330,093", "0xfe3c3e6a5ab2f06d"]
)
def test_json_payloads_in_every_style_of_numbers(number: Any) -> None:
    text = {"NCCL communicator ID": number, "Message size [bytes]": "1,024", "Reduction operation": "Avg"}
    payloads = Payloads(1)
    assert payloads.from_json([json.dumps(text)]) == 0
    assert said(payloads)["bytes"] == 1024
    assert said(payloads)["redop"] == 4
    assert said(payloads)["comm"] == (18319673707052330093 if not str(number).startswith("0x") else 0xFE3C3E6A5AB2F06D)


def test_a_hash_that_lost_its_digits_is_no_hash() -> None:
    payloads = Payloads(1)
    payloads.from_json(['{"NCCL communicator ID": 1.8319673707052330e19, "Bytes": 64, "Peer rank": 3}'])
    assert said(payloads) == {"bytes": 64, "arg": 3}


def test_json_of_nsyss_own_tracing() -> None:
    text = '{"commHash": "123", "commRank": 2, "rank": 10, "count": 4096, "dataType": "ncclBfloat16", "seqNumber": 17}'
    payloads = Payloads(1)
    payloads.from_json([text])
    assert said(payloads) == {"comm": 123, "rank": 2, "count": 4096, "seq": 17}
    assert payloads.dtype == ["ncclBfloat16"]


@pytest.mark.parametrize("text", ["", "{", "[1, 2]", '{"other": 1}', '"text"', "null"])
def test_json_that_says_nothing_is_counted(text: str) -> None:
    payloads = Payloads(1)
    assert payloads.from_json([text]) == 1
    assert said(payloads) == {}


def test_a_layout_never_reaches_past_its_size() -> None:
    for sizes in LAYOUTS.values():
        for size, layout in sizes.items():
            for name, offset, kind in layout:
                assert name in FIELDS
                assert offset + int(kind[-1]) <= size
