"""Over which wire: links from node size, host names and devices."""

from __future__ import annotations

from dataclasses import replace

import pytest

from heuristics.links import find_nodes, link_of, link_type
from parsers.tables import RankTrace
from tests.heuristics.traces import TraceMaker


@pytest.mark.parametrize(
    ("ranks", "per_node", "link"),
    [
        ([0, 1, 2, 3], 8, "intra_node"),
        ([0, 8, 16, 24], 8, "inter_node"),
        ([7, 8], 8, "inter_node"),
        ([0, 4, 8, 12], 8, "mixed"),
        (list(range(16)), 8, "mixed"),
        ([0, 1], None, None),
        (None, 8, None),
        ([3], 8, None),
    ],
)
def test_a_group_is_inside_a_node_between_nodes_or_both(
    ranks: list[int] | None, per_node: int | None, link: str | None
) -> None:
    assert link_of(ranks, per_node) == link


def test_host_names_beat_the_node_size_where_they_name_every_rank() -> None:
    hosts = {0: "a", 1: "b", 2: "a", 3: "b"}
    assert link_of([0, 1], 4, hosts) == "inter_node"
    assert link_of([0, 2], 4, hosts) == "intra_node"
    assert link_of([0, 9], 4, hosts) == "inter_node"  # rank 9 is not named: by node size
    assert link_of([0, 9], None, hosts) is None


def _trace(rank: int, world: int, devices: int, host: str | None = None) -> RankTrace:
    trace = TraceMaker(rank, world).done(devices=tuple({"id": i, "name": "NVIDIA H200"} for i in range(devices)))
    return replace(trace, identity=replace(trace.identity, host=host))


def test_node_size_comes_from_the_user_then_hosts_then_devices() -> None:
    ranks = [_trace(rank, 4, 8, f"host{rank // 2}") for rank in range(4)]
    assert find_nodes(ranks, 4).gpus_per_node == 4
    by_host = find_nodes(ranks)
    assert (by_host.gpus_per_node, by_host.source) == (2, "hosts")
    assert by_host.link([1, 2]) == "inter_node"
    assert find_nodes(ranks[:1]).gpus_per_node == 8
    assert find_nodes(ranks[:1]).source == "devices"


def test_one_visible_device_and_disagreeing_files_say_nothing() -> None:
    assert find_nodes([_trace(0, 16, 1)]).gpus_per_node is None
    assert find_nodes([_trace(0, 16, 8), _trace(1, 16, 4)]).gpus_per_node is None
    assert find_nodes([_trace(0, 16, 0)]).source == "none"


@pytest.mark.parametrize(
    ("device", "kind"),
    [
        ("NVIDIA A100-SXM4-80GB", "nvlink"),
        ("NVIDIA H100 80GB HBM3", "nvlink"),
        ("NVIDIA H200", "nvlink"),
        ("NVIDIA B200", "nvlink"),
        ("NVIDIA GB200", "nvlink"),
        ("AMD Instinct MI300X", "xgmi"),
        ("NVIDIA L40S", "pcie"),
        ("Tesla T4", "pcie"),
        # may or may not be bridged, or only some pairs are
        ("NVIDIA H100 PCIe", None),
        ("NVIDIA H200 NVL", None),
        ("NVIDIA A100-PCIE-40GB", None),
        ("Tesla V100-SXM2-16GB", None),
        ("SYNTH", None),
    ],
)
def test_the_connector_is_named_only_where_the_product_fixes_it(device: str, kind: str | None) -> None:
    assert link_type("intra_node", [device, device]) == kind


def test_the_network_between_nodes_does_not_show() -> None:
    assert link_type("inter_node", ["NVIDIA H200"]) is None
    assert link_type(None, ["NVIDIA H200"]) is None
    assert link_type("intra_node", ["NVIDIA H200", "NVIDIA L4"]) is None
