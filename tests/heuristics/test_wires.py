"""The wires behind the connections that NCCL's logs show."""

from __future__ import annotations

from pathlib import Path

import pytest

from heuristics.wires import GroupLinks, Wires, links_of_group
from parsers import read
from parsers.nccl_log import NcclLog
from tests.heuristics.nccl_lines import job, link, said


def _wires(tmp_path: Path, *lines: str) -> Wires:
    path = tmp_path / "nccl.log"
    path.write_text("\n".join(lines) + "\n")
    return Wires.of(_logs(path))


def _logs(path: Path) -> list[NcclLog]:
    return [trace.witness for trace in read(path) if isinstance(trace.witness, NcclLog)]


def _short(found: GroupLinks) -> tuple[str | None, str | None, str | None]:
    return found.link, found.intra, found.inter


@pytest.mark.parametrize(
    ("sign", "wire"),
    [
        ("NVLS multicast support is available on dev 0", "nvlink"),
        ("MNNVL busId 0x0 fabric UUID 0.0 cliqueId 0x0 state 3 healthMask 0x80", "nvlink"),
        ("MNNVL busId 0x0 fabric UUID 0.0 cliqueId 0x0 state 0 healthMask 0x0", None),
        ("Pattern 4, crossNic 0, nChannels 12, bw 20.000000/20.000000, type NVL/PIX, sameChannels 1", "nvlink"),
        ("Pattern 4, crossNic 0, nChannels 2, speed 9.000000/9.000000, type PHB/PIX, sameChannels 1", "pcie"),
        ("Pattern 4, crossNic 0, nChannels 2, bw 9.000000/9.000000, type SYS/PIX, sameChannels 1", "pcie"),
        ("P2P Chunksize set to 524288", "nvlink"),
        ("P2P Chunksize set to 131072", None),
        ("cudaDriverVersion 12040", None),
    ],
)
def test_what_tells_nvlink_from_pcie(tmp_path: Path, sign: str, wire: str | None) -> None:
    wires = _wires(tmp_path, *job("aa"), said("aa", 0, sign), link("aa", 0, 1, "P2P/CUMEM"))
    assert _short(wires.group([0, 1])) == ("intra_node", wire, None)


def test_the_chunk_size_proves_nothing_across_nodes_or_where_it_was_set(tmp_path: Path) -> None:
    chunk = said("aabb", 0, "P2P Chunksize set to 524288")
    assert _wires(tmp_path, *job("aabb"), chunk, link("aabb", 0, 1, "P2P/IPC")).group([0, 1]).intra is None
    by_hand = said("aa", 0, "NCCL_P2P_PCI_CHUNKSIZE set by environment to 524288.")
    lines = [*job("aa"), by_hand, said("aa", 0, "P2P Chunksize set to 524288"), link("aa", 0, 1, "P2P/IPC")]
    assert _wires(tmp_path, *lines).group([0, 1]).intra is None


def test_reading_proves_nvlink_unless_it_was_asked_for(tmp_path: Path) -> None:
    lines = [*job("aa"), link("aa", 0, 1, "P2P/IPC/read")]
    assert _wires(tmp_path, *lines).group([0, 1]).intra == "nvlink"
    asked = said("aa", 0, "NCCL_P2P_READ_ENABLE set by environment to 1.")
    assert _wires(tmp_path, *lines, asked).group([0, 1]).intra is None


def test_signs_of_different_wires_decide_nothing(tmp_path: Path) -> None:
    lines = [
        *job("aa"),
        said("aa", 0, "NVLS multicast support is available on dev 0"),
        said("aa", 1, "Pattern 4, crossNic 0, nChannels 2, bw 9.0/9.0, type PHB/PIX, sameChannels 1"),
        link("aa", 0, 1, "P2P/IPC"),
    ]
    found = _wires(tmp_path, *lines).group([0, 1])
    assert found.intra is None
    assert "signs of different wires" in found.evidence[0]


def test_amd_boards_are_infinity_fabric(tmp_path: Path) -> None:
    lines = [
        "RCCL version : 2.22.3-HEAD:271856d",
        *job("aa"),
        said("aa", 0, "Enabled GDRCopy equivalent memory allocation on gfx942"),
        link("aa", 0, 1, "P2P/IPC comm 0x50 nRanks 02"),
    ]
    assert _wires(tmp_path, *lines).group([0, 1]).link_type == "xgmi"


def test_host_memory_is_no_gpu_link(tmp_path: Path) -> None:
    found = _wires(tmp_path, *job("aa"), link("aa", 0, 1, "SHM/direct/direct")).group([0, 1])
    assert _short(found) == ("intra_node", "shm", None)


@pytest.mark.parametrize(
    ("devices", "via", "wire"),
    [
        ("NET/IB : Using [0]mlx5_0:1/IB/SHARP [1]mlx5_1:1/IB/SHARP [RO]; OOB ib0:1.2.3.4<0>", "NET/IB/1/GDRDMA", "ib"),
        ("NET/IB : Using [0]mlx5_0:1/RoCE [RO]; OOB eth0:1.2.3.4<0>", "NET/IBext_v8/0/GDRDMA", "roce"),
        # mixed: the device in use decides
        ("NET/IB : Using [0]mlx5_0:1/RoCE [1]mlx5_1:1/IB [RO]; OOB eth0:1.2.3.4<0>", "NET/IB/1", "ib"),
        # a merged device has a number of its own; of unlike parts it tells nothing
        ("NET/IB : Using [0]mlx5_0:1/RoCE [1]mlx5_1:1/IB [RO]; OOB eth0:1.2.3.4<0>", "NET/IB/2", None),
        ("NET/IB : Using [0]mlx5_0:1/RoCE [1]mlx5_1:1/RoCE [RO]; OOB eth0:1.2.3.4<0>", "NET/IBext_v9/2", "roce"),
        ("NET/Socket : Using [0]eth0:1.2.3.4<0>", "NET/Socket/0", "tcp"),
        ("cudaDriverVersion 12040", "NET/AWS Libfabric/0/GDRDMA", "efa"),
        ("cudaDriverVersion 12040", "NET/IB/0", None),  # the log does not list the devices
    ],
)
def test_the_network_by_the_layer_of_its_devices(tmp_path: Path, devices: str, via: str, wire: str | None) -> None:
    lines = [*job("ab"), said("ab", 0, devices), said("ab", 1, devices)]
    lines += [link("ab", 0, 1, via, side) for side in ("send", "receive")]
    found = _wires(tmp_path, *lines).group([0, 1])
    assert (found.link, found.inter, found.link_type) == ("inter_node", wire, wire)
    assert found.direct is ("GDRDMA" in via)


def test_nvlink_between_nodes_is_no_network(tmp_path: Path) -> None:
    found = _wires(tmp_path, *job("ab"), link("ab", 0, 1, "P2P/MNNVL")).group([0, 1])
    assert (found.link, found.inter, found.direct) == ("inter_node", "nvlink", None)


def test_a_group_over_nodes_has_both_wires_and_the_network_names_it(tmp_path: Path) -> None:
    hosts = "aabb"
    device = "NET/IB : Using [0]mlx5_0:1/IB [RO]; OOB ib0:1.2.3.4<0>"
    lines = [*job(hosts), *(said(hosts, rank, device) for rank in range(4))]
    lines += [said(hosts, 0, "NVLS multicast support is available on dev 0")]
    lines += [link(hosts, 0, 1, "P2P/CUMEM"), link(hosts, 2, 3, "P2P/CUMEM")]
    lines += [link(hosts, 1, 2, "NET/IB/0/GDRDMA", side) for side in ("send", "receive")]
    wires = _wires(tmp_path, *lines)
    assert _short(wires.group([0, 1, 2, 3])) == ("mixed", "nvlink", "ib")
    assert wires.group([0, 1, 2, 3]).link_type == "ib"
    assert wires.group([0, 1]).link_type == "nvlink"
    # Ranks 0 and 2 never exchanged anything in the log: judged by the job's other connections between nodes.
    apart = wires.group([0, 2])
    assert _short(apart) == ("inter_node", None, "ib")
    assert apart.evidence[0] == "no connection of this group is logged: judged by others of the same job"
    assert _short(wires.group(None, "0xbeef")) == ("mixed", "nvlink", "ib")


def test_without_the_other_nodes_logs_the_librarys_count_of_nodes_decides(tmp_path: Path) -> None:
    lines = [line for line in job("aabb") if line.startswith("a:")]
    device = "NET/Socket : Using [0]eth0:1.2.3.4<0>"
    lines += [said("aabb", rank, device) for rank in range(2)]
    lines += [link("aabb", 1, 2, "NET/Socket/0", "send")]
    found = _wires(tmp_path, *lines).group([0, 1, 2, 3])
    assert (found.link, found.inter, found.link_type) == ("mixed", "tcp", "tcp")


REAL = {
    # the wire inside a node, the wire between nodes
    "nccl2.18.5_h100_6node_ib_bert.log.gz": ("nvlink", "ib"),
    "nccl2.18.5_h200_2node_roce_bert.log": ("nvlink", "roce"),
    "nccl2.18.5_h200_1node_nvlink_bert.log": ("nvlink", None),
    "nccl2.22.3_h200_1node_nvlink_retinanet.log": ("nvlink", None),
    "nccl2.25.1_b200_1node_nvlink_retinanet.log": ("nvlink", None),
    "nccl2.25.1_b200_2node_roce_rgat.log.gz": ("nvlink", "roce"),
    # The host has InfiniBand ports as well, but every connection of this job uses devices 0-3 and 8-11, which are RoCE.
    "nccl2.27.7_b200_2node_ib_llama2_70b_lora.log.gz": ("nvlink", "roce"),
    "nccl2.27.7_b200_2node_ib_llama31_8b.log.gz": ("nvlink", "roce"),
    "rccl2.22.3_mi300x_2node_llama2_70b_lora.log.gz": ("xgmi", "tcp"),
    "rccl2.22.3_mi325x_2node_llama2_70b_lora.log.gz": ("xgmi", "roce"),
}


@pytest.mark.parametrize("name", REAL)
def test_the_wires_of_real_jobs(shared: Path, name: str) -> None:
    intra, inter = REAL[name]
    traces = read(shared / "data/formats/nccl_logs" / name)
    logs = [trace.witness for trace in traces if isinstance(trace.witness, NcclLog)]
    world = traces[0].identity.world_size or 0
    everybody = links_of_group(logs, range(world))
    assert _short(everybody) == ("intra_node" if inter is None else "mixed", intra, inter)
    node = links_of_group(logs, range(8))
    assert (node.link, node.link_type) == ("intra_node", intra)
