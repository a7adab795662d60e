"""Cluster presets, files, and times reckoned by hand."""

from __future__ import annotations

from pathlib import Path

import pytest

from ledger.clusters import CLUSTERS, Cluster, Link, cluster, load_cluster
from ledger.config import ParallelConfig
from ledger.errors import LedgerError
from ledger.presets import preset
from ledger.report import prediction
from ledger.times import dimension_times
from ledger.transfer import expected_us, least_us, line_rates

PLAIN = Cluster(
    "plain",
    8,
    Link("nvlink", 400, 300, latency_us=5, hop_us=1),
    Link("ib", 50, 40, latency_us=10, hop_us=2),
)
REDUCING = Cluster("reducing", 8, Link("nvlink", 400, in_network=True), Link("ib", 50))


@pytest.mark.parametrize(
    ("name", "intra", "inter", "domain"),
    [
        ("a100-hdr", 300, 25, 8),
        ("h100-ndr", 450, 50, 8),
        ("b200-ndr", 900, 50, 8),
        ("gb200-nvl72-ndr", 900, 50, 72),
        ("mi300x-ndr", 448, 50, 8),
        ("aws-p4d", 300, 6.25, 8),
        ("gcp-a3-mega", 450, 25, 8),
    ],
)
def test_presets_have_the_published_rates(name: str, intra: float, inter: float, domain: int) -> None:
    known = CLUSTERS[name]
    assert (known.intra_node.gbps, known.inter_node.gbps, known.domain) == (intra, inter, domain)


def test_every_figure_names_its_source_and_no_link_is_faster_than_its_line() -> None:
    for known in CLUSTERS.values():
        for link in (known.intra_node, known.inter_node):
            assert link.source
            assert 0 < link.reached_gbps <= link.gbps


def test_names_are_forgiving_and_misspellings_answered() -> None:
    assert cluster(" H100_NDR ").name == "h100-ndr"
    assert cluster("dgx-a100").name == "a100-hdr"
    with pytest.raises(LedgerError, match="did you mean h100-ndr"):
        cluster("h100-nrd")
    with pytest.raises(LedgerError, match="`analyze clusters` lists"):
        cluster("cray")


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("own.yaml", "preset: h100-ndr\ngpus_per_node: 4\ninter_node: {gbps: 12.5}\n"),
        ("own.json", '{"preset": "h100-ndr", "gpus_per_node": 4, "inter_node": {"gbps": 12.5}}'),
        ("own.toml", 'preset = "h100-ndr"\ngpus_per_node = 4\n[inter_node]\ngbps = 12.5\n'),
    ],
)
def test_a_file_changes_what_it_names(tmp_path: Path, name: str, text: str) -> None:
    (tmp_path / name).write_text(text)
    found = load_cluster(str(tmp_path / name))
    assert (found.name, found.gpus_per_node, found.domain) == ("own", 4, 4)
    assert (found.inter_node.kind, found.inter_node.gbps, found.inter_node.source) == ("ib", 12.5, "")
    assert found.intra_node == CLUSTERS["h100-ndr"].intra_node


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("gpus_per_node: 8\n", "missing key intra_node"),
        ("preset: h100-ndr\ninter_node: 50\n", "inter_node must be a mapping"),
        ("preset: h100-ndr\ninter_node: {gbps: fast}\n", "inter_node.gbps must be float"),
        ("preset: h100-ndr\ninter_node: {gbps: -1}\n", "inter_node.gbps must be a positive number, not -1"),
        ("preset: h100-ndr\ninter_node: {kind: pigeon}\n", "inter_node.kind 'pigeon' is not one of nvlink"),
        ("preset: h100-ndr\ninter_node: {speed: 3}\n", "unknown key inter_node.speed"),
        ("preset: h101-ndr\n", "did you mean h100-ndr"),
        ("gpus_per_domain: 2\npreset: h100-ndr\n", "gpus_per_domain 2 is less than gpus_per_node 8"),
        ("[1, 2]\n", "a cluster config is a mapping, not a list"),
        ("a: [\n", "not valid YAML"),
    ],
)
def test_a_bad_file_is_refused_with_the_key(tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / "bad.yaml").write_text(text)
    with pytest.raises(LedgerError) as caught:
        load_cluster(str(tmp_path / "bad.yaml"))
    assert str(tmp_path / "bad.yaml") in caught.value.message
    assert said in caught.value.message


def test_bad_toml_and_a_missing_file_are_refused(tmp_path: Path) -> None:
    (tmp_path / "bad.toml").write_text("a = ")
    with pytest.raises(LedgerError, match="not valid TOML"):
        load_cluster(str(tmp_path / "bad.toml"))
    with pytest.raises(LedgerError, match="cannot read cluster config"):
        load_cluster(str(tmp_path / "none.yaml"))


@pytest.mark.parametrize(
    ("primitive", "n", "k", "sent", "least"),
    [
        ("all_gather", 8, 8, 70e6, 70e6 / 400e3),  # inside: line rate of NVLink
        ("all_gather", 4, 1, 30e6, 30e6 / 50e3),  # one a node: line rate of the network
        # 16 ranks on 2 nodes send 15 MB of 16 MB each; a node takes in 8 MB over 8 interfaces of 50 GB/s: 20 µs,
        # and every rank 15 MB over 450 GB/s in all: 33.3 µs
        ("all_gather", 16, 8, 15e6, 15e6 / 450e3),
        # of 15 MB to 15 others, 8 leave the node over the rank's own interface
        ("all_to_all", 16, 8, 15e6, 8e6 / 50e3),
        ("send_recv", 4, 1, 10e6, 10e6 / 50e3),
        ("send_recv", 4, 2, 10e6, 10e6 / 400e3),  # some pairs are inside a node: no more is certain
    ],
)
def test_the_least_time_by_hand(primitive: str, n: int, k: int, sent: float, least: float) -> None:
    assert least_us(PLAIN, primitive, n, k, sent) == pytest.approx(least)


def test_switches_that_reduce_halve_an_all_reduce() -> None:
    """8 ranks, 8 MB: a ring sends 14 MB a rank; with reduction in the switch each sends its 8 MB once."""
    assert least_us(REDUCING, "all_reduce", 8, 8, 14e6) == pytest.approx(8e6 / 400e3)
    assert least_us(PLAIN, "all_reduce", 8, 8, 14e6) == pytest.approx(14e6 / 400e3)
    assert least_us(REDUCING, "all_gather", 8, 8, 14e6) == pytest.approx(14e6 / 400e3)


@pytest.mark.parametrize(
    ("primitive", "n", "k", "sent", "expected"),
    [
        ("all_gather", 8, 8, 70e6, 5 + 7 * 1 + 70e6 / 300e3),
        ("all_reduce", 8, 8, 70e6, 5 + 6 * 1 + 70e6 / 300e3),  # a tree of 8: three hops up, three down
        ("all_gather", 4, 1, 30e6, 10 + 3 * 2 + 30e6 / 40e3),  # 4 domains: 3 hops, all of the network
        # 2 nodes of 8: 15 hops, two of them across; rings over 8 interfaces of 40 GB/s are held up by NVLink's 300
        ("all_gather", 16, 8, 15e6, 10 + 13 * 1 + 2 * 2 + 15e6 / 300e3),
        ("send_recv", 4, 1, 10e6, 10 + 2 + 10e6 / 40e3),
    ],
)
def test_the_expected_time_by_hand(primitive: str, n: int, k: int, sent: float, expected: float) -> None:
    assert expected_us(PLAIN, primitive, n, k, sent) == pytest.approx(expected)


@pytest.mark.parametrize("known", CLUSTERS.values(), ids=lambda c: c.name)
@pytest.mark.parametrize("primitive", ["all_reduce", "all_gather", "all_to_all", "send_recv", "broadcast"])
def test_nothing_is_expected_to_take_less_than_the_least(known: Cluster, primitive: str) -> None:
    for n, k in ((2, 1), (2, 2), (8, 8), (16, 8), (64, 1), (64, 8), (1024, 4)):
        for sent in (1e3, 1e6, 1e9):
            assert least_us(known, primitive, n, k, sent) <= expected_us(known, primitive, n, k, sent)


def test_a_layout_s_times_are_those_of_its_calls() -> None:
    """Llama-3 8B, fully sharded over 16 GPUs of two hosts, bf16: a node takes in half of 16.06 GB over 8 interfaces."""
    model = preset("llama3-8b")
    found = prediction(model, ParallelConfig.parse("dp16", zero_stage=3), "textbook")
    (data,) = dimension_times(found, PLAIN)
    whole = 2 * model.parameters
    assert (data.dim, data.link, data.overlap) == ("dp", "mixed", "yes")
    assert data.sent_bytes == pytest.approx(3 * whole * 15 / 16)
    assert data.least_us == pytest.approx(3 * max(whole / 2 / 8 / 50e3, whole * 15 / 16 / 450e3), rel=1e-6)


def test_line_rates_for_limits() -> None:
    assert line_rates(PLAIN) == {"intra_node": 400, "inter_node": 50, "mixed": 400}
