"""NCCL and RCCL logs: who, where, over which wire, and what they call."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from parsers import read
from parsers.errors import InputError
from parsers.nccl_log import NcclLog, sniff
from parsers.nccl_log_lines import devices, messages, transport
from parsers.tables import RankTrace

Read = Callable[..., list[RankTrace]]


def _log(traces: list[RankTrace]) -> NcclLog:
    log = traces[0].witness
    assert isinstance(log, NcclLog)
    assert all(trace.witness is log for trace in traces)
    return log


def _init(
    rank: int, n: int, host: str = "a", pid: int | None = None, comm: str = "0xbeef", what: str = "COMPLETE"
) -> str:
    pid = 100 + rank if pid is None else pid
    return (
        f"{host}:{pid}:{pid + 1} [{rank}] NCCL INFO ncclCommInitRank comm 0x5{rank} rank {rank} nranks {n} "
        f"cudaDev {rank} nvmlDev {rank} busId {rank + 1}000 commId {comm} - Init {what}"
    )


# -- prefixes


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (b"host-1:12:34 [3] NCCL INFO Using network IB", (None, "host-1", 12, 34, 3)),
        (b" 7: host:12:34 [3] NCCL INFO Using network IB", (7, "host", 12, 34, 3)),
        (b"15: host:12:34 NCCL INFO Using network IB", (15, "host", 12, 34, None)),
        (b"[1,7]<stdout>:host:12:34 [0] NCCL INFO Using network IB", (7, "host", 12, 34, 0)),
        (b"[rank7]: host:12:34 [0] NCCL INFO Using network IB", (7, "host", 12, 34, 0)),
        (b"[default3]:host:12:34 [0] NCCL INFO Using network IB", (None, "host", 12, 34, 0)),
        (b"(Worker pid=615, ip=10.7.7.6) host:12:34 [0] NCCL INFO Using network IB", (None, "host", 12, 34, 0)),
        (b"[2025-07-25 19:54:57] host:12:34 [0] NCCL INFO Using network IB", (None, "host", 12, 34, 0)),
        (b"host:12:34 [0] transport/net.cc:7 (connect) NCCL WARN Using network IB", (None, "host", 12, 34, 0)),
        (b"2025-07-25T19:54:57.1Z stdout F host:12:34 [0] NCCL INFO Using network IB", (None, "host", 12, 34, 0)),
    ],
)
def test_what_stands_before_a_message(line: bytes, expected: tuple[int | None, str, int, int, int | None]) -> None:
    (found,) = messages(line)
    assert (found.label, found.host, found.pid, found.tid, found.device) == expected
    assert found.text == b"Using network IB"


def test_two_messages_on_one_line_are_apart() -> None:
    line = b"3: h:1:2 [0] NCCL INFO Using network h:5:6 [1] NCCL INFO Using network Socket"
    first, second = messages(line)
    assert (first.pid, first.label, first.text) == (1, 3, b"Using network ")
    assert (second.pid, second.label, second.text) == (5, None, b"Using network Socket")


# -- transports


@pytest.mark.parametrize(
    ("text", "kind", "how", "more"),
    [
        ("P2P/IPC", "p2p", "IPC", {}),
        ("P2P/CUMEM/read", "p2p", "CUMEM", {"read": True}),
        ("P2P/direct pointer", "p2p", "direct pointer", {}),
        ("P2P/MNNVL", "p2p", "MNNVL", {}),
        ("P2P/indirect/3[3000]", "p2p", "indirect", {}),
        ("SHM/direct/direct", "shm", "direct", {}),
        ("direct shared memory", "shm", "direct", {}),
        ("NET/IB/0", "net", "IB", {"nic": 0, "gdr": False}),
        ("NET/IBext_v10/7/GDRDMA", "net", "IBext_v10", {"nic": 7, "gdr": True}),
        ("NET/IBext/3(5)/GDRDMA", "net", "IBext", {"nic": 3, "gdr": True, "through": 5}),
        ("NET/IB/1/GDRDMA(PCI)/Shared", "net", "IB", {"nic": 1, "gdr": True}),
        ("NET/AWS Libfabric/2/GDRDMA", "net", "AWS Libfabric", {"nic": 2, "gdr": True}),
        ("NET/Socket/0", "net", "Socket", {"nic": 0, "gdr": False}),
        ("COLLNET/SHARP/0/GDRDMA", "collnet", "SHARP", {"nic": 0, "gdr": True}),
    ],
)
def test_transports(text: str, kind: str, how: str, more: dict[str, object]) -> None:
    found = transport(text)
    assert found is not None
    assert (found.kind, found.how) == (kind, how)
    assert {name: getattr(found, name) for name in more} == more


def test_merged_ports_stand_for_one_device() -> None:
    text = (
        b"[0]={[0] rocep115s0f0:1/RoCE, [1] rocep115s0f1:1/RoCE} [1]={[2] mlx5_4:1/IB, [3] mlx5_5:1/IB} [RO]; OOB e:1"
    )
    assert [(d.index, d.name, d.layer) for d in devices("IB", text)] == [
        (0, "rocep115s0f0", "RoCE"),
        (1, "mlx5_4", "IB"),
    ]
    sockets = devices("Socket", b"[0]eth2:10.141.0.76<0> [1]eth3:10.141.0.77<0>")
    assert [(d.index, d.name, d.layer) for d in sockets] == [(0, "eth2", None), (1, "eth3", None)]


# -- communicators


@pytest.mark.parametrize(
    "line",
    [
        "comm 0x51 rank 1 nranks 2 cudaDev 1 busId 2000 - Init COMPLETE",  # 2.3 to 2.15
        "comm 0x51 rank 1 nranks 2 cudaDev 1 busId 2000 commId 0xbeef - Init COMPLETE",  # 2.16
        "comm 0x51 rank 1 nranks 2 cudaDev 1 nvmlDev 1 busId 2000 commId 0xbeef - Init COMPLETE",  # 2.18
        "ncclCommInitAll comm 0x51 rank 1 nranks 2 cudaDev 1 nvmlDev 1 busId 2000 commId 0xbeef - Init START",  # 2.21
        "[Rank 1] ncclCommInitRankConfig comm 0x51 rank 1 nranks 2 cudaDev 1 nvmlDev 1 busId 2000 commId 0xbeef - "
        "Init START",  # 2.29
        "ncclCommInitRank comm 0x51 rank 1 nranks 2 cudaDev 1 nvmlDev 1 busId 2000 commId 0xbeef localSize 384 used 9 "
        "bytes on core 168 - Init COMPLETE",  # RCCL
    ],
)
def test_a_communicator_in_the_words_of_every_version(read_text: Read, line: str) -> None:
    (trace,) = read_text(f"h:5:6 [1] NCCL INFO {line}\n", "nccl.log")
    (comm,) = _log([trace]).communicators.to_pylist()
    assert (comm["rank"], comm["size"], comm["device"], comm["bus_id"]) == (1, 2, 1, "2000")
    assert comm["group"] == ("0xbeef" if "commId" in line else "h:5:0x51")
    assert (trace.identity.host, trace.identity.pid, trace.identity.device) == ("h", 5, 1)


def test_members_are_joined_by_the_communicators_id(read_text: Read) -> None:
    traces = read_text("\n".join(_init(rank, 3) for rank in (2, 0, 1)), "nccl.log")
    assert [trace.identity.rank for trace in traces] == [0, 1, 2]
    assert {trace.identity.world_size for trace in traces} == {3}
    assert {trace.identity.rank_source for trace in traces} == {"communicator"}
    assert traces[1].groups.to_pylist()[0]["ranks"] == [0, 1, 2]
    assert traces[1].groups.to_pylist()[0]["name"] == "0xbeef"


def test_a_member_that_did_not_log_leaves_the_group_open(read_text: Read) -> None:
    traces = read_text("\n".join(_init(rank, 3) for rank in (0, 1)), "nccl.log")
    assert traces[0].groups.to_pylist()[0]["ranks"] is None
    assert traces[0].health.notes == ()  # the others' logs may lie beside it


def test_labels_beat_ranks_in_communicators(read_text: Read) -> None:
    lines = [f"{rank + 8}: {_init(rank, 2)}" for rank in range(2)]
    traces = read_text("\n".join(lines), "nccl.log")
    assert [(t.identity.rank, t.identity.rank_source, t.identity.world_size) for t in traces] == [
        (8, "label", None),
        (9, "label", None),
    ]


@pytest.mark.parametrize("number", ["", " splitCount 4", " childCount 4"])
def test_splits_without_an_id_are_named_by_where_they_come_from(read_text: Read, number: str) -> None:
    lines = []
    for rank in range(4):
        lines.append(_init(rank, 4))
        lines.append(
            f"a:{100 + rank}:{101 + rank} [{rank}] NCCL INFO ncclCommSplit comm 0x6{rank} rank {rank % 2} nranks 2 "
            f"cudaDev {rank} nvmlDev {rank} busId {rank + 1}000 parent 0x5{rank}{number} color {rank // 2} key {rank}"
            "- Init COMPLETE"
        )
    traces = read_text("\n".join(lines), "nccl.log")
    split = "/split4" if number else ""
    groups = {g["name"]: g["ranks"] for trace in traces for g in trace.groups.to_pylist()}
    assert groups == {
        "0xbeef": [0, 1, 2, 3],
        f"0xbeef{split}/color0": [0, 1],
        f"0xbeef{split}/color1": [2, 3],
    }


def test_a_pointer_that_is_used_again_is_another_communicator(read_text: Read) -> None:
    lines = [
        _init(0, 1, comm="0xaa"),
        "a:100:101 [0] NCCL INFO comm 0x50 rank 0 nranks 1 cudaDev 0 busId 1000 - Destroy COMPLETE",
        _init(0, 1, comm="0xbb", what="START"),
        _init(0, 1, comm="0xbb"),
    ]
    (trace,) = read_text("\n".join(lines), "nccl.log")
    assert trace.groups.column("name").to_pylist() == ["0xaa", "0xbb"]


# -- connections


def test_channels_belong_to_the_communicator_that_their_thread_makes(read_text: Read) -> None:
    lines = [
        _init(0, 2, comm="0xaa", what="START"),
        "a:100:101 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[1] via P2P/IPC",
        "a:100:101 [0] NCCL INFO Channel 01/0 : 0[0] -> 1[1] via P2P/IPC",
        _init(0, 2, comm="0xaa"),
    ]
    log = _log(read_text("\n".join(lines), "nccl.log"))
    (link,) = log.links.to_pylist()
    assert (link["group"], link["src"], link["dst"], link["kind"], link["how"]) == ("0xaa", 0, 1, "p2p", "IPC")
    assert (link["channels"], link["connection"]) == (2, 0)


def test_before_2_18_channels_come_before_their_communicator(read_text: Read) -> None:
    lines = [
        "a:100:101 [0] NCCL INFO Channel 00 : 0[1000] -> 1[2000] via direct shared memory",
        "a:100:101 [0] NCCL INFO comm 0x50 rank 0 nranks 2 cudaDev 0 busId 1000 - Init COMPLETE",
    ]
    (link,) = _log(read_text("\n".join(lines), "nccl.log")).links.to_pylist()
    assert (link["kind"], link["connection"], link["src_rank"], link["dst_rank"]) == ("shm", None, 0, None)


def test_both_ends_of_a_connection_are_one_link(read_text: Read) -> None:
    lines = [_init(rank, 2, host=f"h{rank}") for rank in range(2)]
    for rank, side in ((0, "send"), (1, "receive")):
        lines += [
            f"h{rank}:{100 + rank}:9 [0] NCCL INFO Channel 0{nic}/0 : 0[0] -> 1[0] [{side}] via NET/IB/{nic}/GDRDMA"
            for nic in (0, 1)
        ]
    links = _log(read_text("\n".join(lines), "nccl.log")).links.to_pylist()
    assert [(link["nic"], link["channels"], link["gdr"]) for link in links] == [(0, 1, True), (1, 1, True)]


def test_lines_that_fit_several_communicators_are_counted(read_text: Read) -> None:
    lines = [_init(0, 2, comm="0xaa"), _init(1, 2, comm="0xaa")]
    other = _init(0, 2, comm="0xbb").replace("comm 0x50", "comm 0x70")  # rank 1 of this one did not log
    late = "a:100:999 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[1] via P2P/IPC"  # a thread that made neither
    log = _log(read_text("\n".join([*lines, other, late]), "nccl.log"))
    assert log.uncertain_links == 1
    assert log.links.num_rows == 1


# -- calls


def test_calls_have_counts_types_and_volumes(read_text: Read) -> None:
    def call(op: str, count: int, kind: int, root: int = 0, number: str = "0", extra: str = "") -> str:
        return (
            f"a:100:7 [0] NCCL INFO {op}: opCount {number} sendbuff 0x7f recvbuff (nil){extra} count {count} "
            f"datatype {kind} op 0 root {root} comm 0x50 [nranks=4] stream 0x55"
        )

    calls = [
        call("AllReduce", 1024, 9),
        call("AllGather", 2359808, 7, number="1"),
        call("ReduceScatter", 10, 6, number="a"),
        call("Send", 100, 7, root=2),
        call("AlltoAll", 5, 4),
        call("Broadcast", 8, 1, root=3, extra=" acc (nil)") + " task 0 globalrank 0",  # RCCL
    ]
    traces = read_text("\n".join([*(_init(rank, 4) for rank in range(4)), *calls]), "nccl.log")
    rows = traces[0].comm_records.to_pylist()
    assert [(r["collective"], r["dtype"], r["in_nelems"], r["out_nelems"]) for r in rows] == [
        ("all_reduce", "ncclBfloat16", 1024, 1024),
        ("all_gather", "ncclFloat32", 2359808, 9439232),  # 37,756,928 bytes in all, as NCCL's tuner prints it
        ("reduce_scatter", "ncclFloat16", 40, 10),
        ("send", "ncclFloat32", 100, 100),
        ("all_to_all", "ncclInt64", 20, 20),
        ("broadcast", "ncclUint8", 8, 8),
    ]
    assert [r["seq"] for r in rows] == [0, 1, 10, 0, 0, 0]  # opCount is hexadecimal
    assert rows[3]["dst_rank"] == 2
    assert rows[5]["rank_arg"] == 3
    assert {r["comms_id"] for r in rows} == {0xBEEF}
    assert {r["ts_ns"] for r in rows} == {None}


def test_what_the_tuner_chose(read_text: Read) -> None:
    lines = [
        _init(0, 1),
        "a:100:7 [0] NCCL INFO 37756928 Bytes -> Algo 1 proto 2 time 99.5",
        "a:100:7 [0] NCCL INFO AllGather: 37756928 Bytes -> Algo RING proto SIMPLE channel{Lo..Hi}={0..15}",
        "a:100:7 [0] NCCL INFO AllGather: 37756928 Bytes -> Algo RING proto SIMPLE channel{Lo..Hi}={0..15}",
        "a:100:7 [0] NCCL INFO AllReduce [Symmetric]: 4096 Bytes -> Kernel AllReduce_AGxLL_R nchannels 4 nthreads 512",
    ]
    rows = _log(read_text("\n".join(lines), "nccl.log")).algorithms.to_pylist()
    assert [tuple(row.values()) for row in rows] == [
        (None, 37756928, "1", "2", 1),
        ("AllGather", 37756928, "RING", "SIMPLE", 2),
        ("AllReduce", 4096, "AllReduce_AGxLL_R", None, 1),
    ]


# -- damage


def test_torn_lines_are_left_out_and_counted(read_text: Read) -> None:
    lines = [
        _init(0, 2),
        "a:100:101 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[1] via P2P/a:101:102 [1] NCCL INFO Channel 01/0 : 1[1] -> 0",
        _init(1, 2),
        "a:100:101 [0] NCCL INFO Channel 02/0 : 0[0] -> 1[1] via P2P/IPC",
    ]
    traces = read_text("\n".join(lines), "nccl.log")
    assert _log(traces).links.num_rows == 1
    assert traces[0].health.dropped == 1  # the second half does not even begin to say how it is connected
    assert "torn lines of NCCL left out: 1" in traces[0].health.notes


def test_a_log_without_communicators_is_one_line(read_text: Read) -> None:
    with pytest.raises(InputError, match="names no communicator"):
        read_text("h:1:2 [0] NCCL INFO Using network IB\nh:1:2 [0] NCCL INFO cudaDriverVersion 12040\n", "nccl.log")


def test_content_tells_the_format() -> None:
    assert sniff(b"0: NCCL version 2.18.5+cuda12.2\n")
    assert sniff(b"RCCL version : 2.22.3-HEAD:271856d\n")
    assert sniff(b"some output\nhost:1:2 [0] transport/net.cc:12 NCCL WARN Connection refused\n")
    assert not sniff(b"set NCCL_DEBUG=INFO to see NCCL INFO lines\n")
    assert not sniff(b'{"traceEvents": [{"name": "h:1:2 [0] NCCL INFO x"}]}')


# -- real logs (mlcommons/training_results): nodes, ranks and wires are known

LOGS = {
    # file: (version, library, hosts, processes that logged, ranks of the job, kinds of link and network layer)
    "nccl2.18.5_h100_6node_ib_bert.log.gz": ("2.18.5", "nccl", 6, 48, 48, {"p2p IPC", "net IBext IB"}),
    "nccl2.18.5_h200_2node_roce_bert.log": ("2.18.5", "nccl", 2, 16, 16, {"p2p IPC", "net IBext RoCE"}),
    "nccl2.18.5_h200_1node_nvlink_bert.log": ("2.18.5", "nccl", 1, 8, 8, {"p2p IPC"}),
    "nccl2.22.3_h200_1node_nvlink_retinanet.log": ("2.22.3", "nccl", 1, 8, 8, {"p2p CUMEM"}),
    "nccl2.25.1_b200_1node_nvlink_retinanet.log": ("2.25.1", "nccl", 1, 8, 8, {"p2p CUMEM"}),
    "nccl2.25.1_b200_2node_roce_rgat.log.gz": ("2.25.1", "nccl", 2, 16, 16, {"p2p CUMEM", "net IBext_v9 RoCE"}),
    "nccl2.27.7_b200_2node_ib_llama2_70b_lora.log.gz": (
        "2.27.7",
        "nccl",
        2,
        16,
        16,
        {"p2p CUMEM", "net IBext_v10 RoCE"},
    ),
    "nccl2.27.7_b200_2node_ib_llama31_8b.log.gz": ("2.27.7", "nccl", 2, 16, 16, {"p2p CUMEM", "net IBext_v10 RoCE"}),
    "rccl2.22.3_mi300x_2node_llama2_70b_lora.log.gz": ("2.22.3", "rccl", 1, 8, 16, {"p2p IPC", "net Socket None"}),
    "rccl2.22.3_mi325x_2node_llama2_70b_lora.log.gz": ("2.22.3", "rccl", 1, 8, 16, {"p2p IPC", "net IB RoCE"}),
}


@pytest.mark.parametrize("name", LOGS)
def test_a_real_log_gives_its_nodes_ranks_and_links(shared: Path, name: str) -> None:
    version, library, hosts, logged, world, kinds = LOGS[name]
    traces = read(shared / "data/formats/nccl_logs" / name)
    log = _log(traces)
    assert (log.version, log.library) == (version, library)
    assert len({trace.identity.host for trace in traces}) == hosts
    assert sorted({trace.identity.rank for trace in traces if trace.identity.rank is not None}) == list(range(logged))
    assert {trace.identity.world_size for trace in traces} == {world}
    said = {
        f"{link['kind']} {link['how']}" + (f" {link['layer']}" if link["kind"] == "net" else "")
        for link in log.links.to_pylist()
    }
    assert said == kinds
    assert {trace.health.dropped for trace in traces} == {0}


def test_every_channel_line_of_the_real_logs_is_placed(shared: Path) -> None:
    uncertain = Counter[str]()
    for name in LOGS:
        uncertain[name] = _log(read(shared / "data/formats/nccl_logs" / name)).uncertain_links
    # One log has two processes that were rank 0: lines of the other ranks fit the communicators of both.
    assert +uncertain == Counter({"nccl2.25.1_b200_1node_nvlink_retinanet.log": 32})


def test_communicators_of_a_real_log(shared: Path) -> None:
    traces = read(shared / "data/formats/nccl_logs/nccl2.25.1_b200_2node_roce_rgat.log.gz")
    sizes = Counter(row["size"] for row in traces[0].groups.to_pylist())
    assert sizes == Counter({16: 2, 1: 2, 8: 1})
    groups = {row["name"]: row["ranks"] for trace in traces for row in trace.groups.to_pylist() if row["size"] == 8}
    assert sorted(groups.values()) == [list(range(8)), list(range(8, 16))]
