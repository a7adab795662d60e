"""PyTorch execution traces and Chakra."""

from __future__ import annotations

import json
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from heuristics.label import label
from parsers import read
from parsers.chakra import TraceWitness, sniff
from parsers.errors import InputError
from parsers.protobuf_wire import delimited, fields, signed, varint
from parsers.tables import RankTrace

Read = Callable[..., list[RankTrace]]


# -- the wire format, written by hand


def _varint(number: int) -> bytes:
    out = bytearray()
    number &= (1 << 64) - 1
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*out, number])


def _field(number: int, value: int | str | bytes) -> bytes:
    if isinstance(value, int):
        return _varint(number << 3) + _varint(value)
    data = value.encode() if isinstance(value, str) else value
    return _varint(number << 3 | 2) + _varint(len(data)) + data


def _attribute(name: str, value: int | str | bool) -> bytes:
    kind = 27 if isinstance(value, bool) else 9 if isinstance(value, int) else 29
    return _field(10, _field(1, name) + _field(kind, int(value) if isinstance(value, bool) else value))


def _node(number: int, name: str, kind: int, **attributes: int | str | bool) -> bytes:
    said = b"".join(_attribute(key, value) for key, value in attributes.items())
    return _field(1, number) + _field(2, name) + _field(3, kind) + _field(6, 1000) + _field(7, 28) + said


def _et(*nodes: bytes) -> bytes:
    return b"".join(_varint(len(message)) + message for message in (_field(1, "0.0.4"), *nodes))


def test_numbers_of_any_length() -> None:
    for number in (0, 1, 127, 128, 300, 2**32, 2**63, 2**64 - 1):
        assert varint(_varint(number), 0) == (number, len(_varint(number)))
    assert signed(2**64 - 1) == -1
    with pytest.raises(ValueError, match="varint"):
        varint(b"\xff" * 11, 0)


def test_fields_of_every_width() -> None:
    message = _field(1, 7) + _field(2, "ab") + b"\x19" + bytes(8) + b"\x25" + bytes(4)
    assert list(fields(message)) == [(1, 7), (2, b"ab"), (3, bytes(8)), (4, bytes(4))]
    for cut in range(1, len(message)):
        if cut not in (2, 6, 15):  # between two fields
            with pytest.raises(ValueError, match=r"varint|field"):
                list(fields(message[:cut]))


def test_messages_with_their_lengths() -> None:
    assert list(delimited(b"\x02ab\x00\x01c")) == [b"ab", b"", b"c"]
    with pytest.raises(ValueError, match="message"):
        list(delimited(b"\x05ab"))


# -- Chakra


def test_kernels_count_and_operators_on_the_cpu_do_not(read_text: Read) -> None:
    kernel: dict[str, Any] = {"is_cpu_op": False, "comm_type": 0, "comm_size": 4096, "pg_name": "7", "tid": 14}
    data = _et(
        _node(1, "c10d::allreduce_(0)", 7, is_cpu_op=True),
        _node(2, "ncclKernel_AllReduce", 7, **kernel),
        _node(3, "gemm", 4, is_cpu_op=False),
        _node(4, "ncclKernel_AllGather", 7, is_cpu_op=False, comm_type=2, comm_size=64),
        _node(5, "send", 5, is_cpu_op=False, comm_size=100, comm_dst=3),
    )
    (trace,) = read_text(data, "trace.et")
    assert trace.format == "execution_trace"
    rows = trace.comm_records.to_pylist()
    assert [(row["collective"], row["message_bytes"], row["rank_arg"]) for row in rows] == [
        ("all_reduce", 4096, None),
        ("all_gather", None, None),  # the format does not say which side of a gather its size means
        ("send", 100, 3),
    ]
    assert (rows[0]["ts_ns"], rows[0]["dur_ns"], rows[0]["group_name"]) == (1_000_000, 28_000, "7")
    assert isinstance(trace.witness, TraceWitness)
    assert (trace.witness.kind, trace.witness.nodes) == ("chakra_protobuf", (2, 4, 5))


def test_a_cut_et_is_one_line(read_text: Read) -> None:
    data = _et(_node(2, "k", 7, is_cpu_op=False, comm_type=0))
    with pytest.raises(InputError, match="damaged Chakra trace"):
        read_text(data[:-3], "trace.et")


@pytest.mark.parametrize("upper", [True, False])
def test_the_json_form_takes_the_operation_from_the_operator(read_text: Read, upper: bool) -> None:
    nodes: list[dict[str, Any]] = [
        {"Id": 1, "Name": "c10d::allgather_(0)", "NodeType": 7, "data_deps": [], "is_cpu_op": True},
        {"Id": 2, "Name": "ncclKernel_X", "NodeType": 7, "data_deps": [1], "is_cpu_op": False, "runtime": 28},
    ]
    if not upper:
        nodes = [{key[0].lower() + key[1:]: value for key, value in node.items()} for node in nodes]
    (trace,) = read_text(json.dumps({"workload_graph": nodes}), "x.json")
    (row,) = trace.comm_records.to_pylist()
    assert (row["collective"], row["dur_ns"], row["name"]) == ("allgather", 28_000, "ncclKernel_X")


# -- PyTorch


def _attrs(**said: Any) -> list[dict[str, Any]]:
    return [{"name": name, "type": "", "value": value} for name, value in said.items()]


def _pytorch(*nodes: dict[str, Any], groups: list[dict[str, Any]] | None = None) -> str:
    first = {"id": 1, "name": "## process_group:init ##", "inputs": {"values": [json.dumps(groups or [])]}, "attrs": []}
    return json.dumps({"schema": "1.1.1-chakra.0.0.4", "pid": 77, "nodes": [first, *nodes]})


def test_arguments_as_attributes(read_text: Read) -> None:
    call = {
        "id": 9,
        "name": "record_param_comms",
        "inputs": {"values": [], "types": []},
        "attrs": _attrs(
            collective_name="all_to_allv",
            dtype="BFloat16",
            in_msg_nelems=64,
            out_msg_nelems=48,
            in_split_size="[32, 32]",
            out_split_size="[16, 32]",
            pg_name="4",
            pg_desc="mesh_ep",
            pg_size=2,
            global_rank_start=0,
            global_rank_stride=4,
            rf_id=5,
            tid=3,
        ),
    }
    wait = {"id": 10, "name": "record_param_comms", "attrs": _attrs(collective_name="wait")}
    (trace,) = read_text(_pytorch(call, wait), "rank3.json")
    (row,) = trace.comm_records.to_pylist()
    assert (row["collective"], row["dtype"], row["in_nelems"], row["out_nelems"]) == ("all_to_allv", "BFloat16", 64, 48)
    assert (row["in_split"], row["out_split"]) == ([32, 32], [16, 32])
    assert (row["group_name"], row["group_desc"], row["group_size"]) == ("4", "mesh_ep", 2)
    assert (row["rank_start"], row["rank_stride"], row["tid"]) == (0, 4, 3)
    assert isinstance(trace.witness, TraceWitness)
    assert (trace.witness.record_ids, trace.witness.schema) == ((5,), "1.1.1-chakra.0.0.4")
    assert (trace.identity.rank, trace.identity.pid) == (3, 77)


@pytest.mark.parametrize("named", [("7", "mesh_tp"), ["7", "mesh_tp"]])
def test_positional_arguments_with_a_named_group(read_text: Read, named: Any) -> None:
    tensor = [1, 2, 0, 32, 2, "cuda:0"]
    call = {
        "id": 9,
        "name": "record_param_comms",
        "inputs": {
            "values": [[tensor, tensor], 12, named, 1, "allreduce_coalesced", [], [], 2],
            "types": ["GenericList[Tensor(c10::BFloat16)]", "Int", "Tuple", "Int", "String", "L", "L", "Int"],
        },
        "outputs": {"values": [[tensor, tensor]], "types": ["GenericList[Tensor(c10::BFloat16)]"]},
        "attrs": _attrs(rf_id=5),
    }
    (trace,) = read_text(_pytorch(call), "x.json")
    (row,) = trace.comm_records.to_pylist()
    assert (row["collective"], row["in_nelems"], row["dtype"], row["seq"]) == (
        "allreduce_coalesced",
        64,
        "c10::BFloat16",
        12,
    )
    assert (row["group_name"], row["group_desc"], row["group_size"], row["rank_arg"]) == ("7", "mesh_tp", 2, 1)
    assert label(trace).collectives.to_pylist()[0]["dtype"] == "bfloat16"


def test_an_empty_list_of_ranks_stands_for_all(read_text: Read) -> None:
    groups = [
        {"pg_name": "0", "ranks": [], "group_size": 4},
        {"pg_name": "3", "pg_desc": "tp", "ranks": [2, 3], "group_size": 2},
    ]
    call = {
        "id": 9,
        "name": "record_param_comms",
        "attrs": _attrs(collective_name="all_reduce", pg_name="3", pg_size=2),
    }
    (trace,) = read_text(_pytorch(call, groups=groups), "x.json")
    assert [(g["name"], g["desc"], g["ranks"]) for g in trace.groups.to_pylist()] == [
        ("0", None, [0, 1, 2, 3]),
        ("3", "tp", [2, 3]),
    ]
    assert trace.identity.world_size == 4


def test_a_trace_without_communication_is_one_line(read_text: Read) -> None:
    with pytest.raises(InputError, match="holds no communication"):
        read_text(_pytorch(), "x.json")
    with pytest.raises(InputError, match="damaged JSON"):
        read_text(_pytorch()[:-5], "x.json")


def test_content_tells_the_forms() -> None:
    assert sniff(b'{"schema": "1.0.2-chakra.0.0.4", "pid": 1, "nodes": []}')
    assert sniff(b'{\n  "workload_graph": []}')
    assert sniff(_et(_node(1, "x", 4)))
    assert not sniff(b'{"schema": "https://json-schema.org", "nodes": []}')
    assert not sniff(b"PK\x03\x04" + bytes(100))
    assert not sniff(b"\x08text of eight bytes")


# -- the samples of MLCommons Chakra


def _unpacked(archive: Path, member: str, folder: Path) -> Path:
    with tarfile.open(archive) as tar:
        data = tar.extractfile(member)
        assert data is not None
        path = folder / Path(member).name
        path.write_bytes(data.read())
    return path


def test_real_et(shared: Path, tmp_path: Path) -> None:
    path = _unpacked(shared / "data/formats/chakra/feeder_tests_trace.tar.gz", "tests/data/chakra.0.et", tmp_path)
    (trace,) = read(path)
    # 21 nodes are communication; 14 of them are the operators on the CPU.
    rows = label(trace).collectives.to_pylist()
    assert [row["primitive"] for row in rows] == ["broadcast"] * 2 + ["all_reduce"] * 5
    assert [row["size_bytes"] for row in rows[:4]] == [212_480, 424, 8_196_000, 31_502_336]


def test_real_pytorch_trace(shared: Path, tmp_path: Path) -> None:
    archive = shared / "data/formats/chakra/pytorch_et_1.0.2-chakra.0.0.4.tgz"
    path = _unpacked(archive, "1.0.2-chakra.0.0.4.json", tmp_path)
    (trace,) = read(path)
    assert (trace.identity.rank, trace.identity.rank_source, trace.identity.world_size) == (0, "group_rank", 2)
    rows = label(trace).collectives.to_pylist()
    # 20 record_param_comms, of which 10 are waits; the third kind of node, nccl:all_gather, is the same calls.
    assert [row["primitive"] for row in rows] == ["all_gather"] * 10
    assert {(row["in_nelems"], row["out_nelems"], row["group_size"], row["dtype"]) for row in rows} == {
        (1, 2, 2, "float32")
    }
    assert [row["seq"] for row in rows] == list(range(12, 22))


def test_real_chakra_json(shared: Path) -> None:
    (trace,) = read(shared / "data/formats/chakra/small_chakra.0.json")
    assert [(r["collective"], r["dur_ns"]) for r in trace.comm_records.to_pylist()] == [("broadcast", 28_000)]
