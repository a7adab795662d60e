from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import pytest

from analyzer.findings import Facts, findings
from analyzer.job import roster
from analyzer.layout_doc import layout_document
from analyzer.measured import Measured
from analyzer.model import Clock, Finding
from analyzer.rows import collect
from analyzer.step_time import exposure
from analyzer.trust import trust
from heuristics.labelled import GpuRole, LabelStats
from heuristics.verdict import Layout
from parsers.tables import Health
from tests.analyzer.hand_made import Call, Kernel, labelled, measured

COMM = GpuRole.COMM
NO_CLOCK = Clock(aligned=False, residual_us=None, offset_us={})
KNOWN = Layout(tp=2, cp=1, pp=1, dp=1, ep=1)


def facts(ranks: Sequence[Measured], layout: Layout = KNOWN, **more: Any) -> Facts:
    traces = [r.source for r in ranks]
    who = roster(traces)
    base = Facts(
        ranks=ranks,
        trust=trust(traces, [r.source for r in ranks], who, NO_CLOCK),
        world_size=who.world_size,
        layout=layout_document(layout),
        declared=None,
        rows=collect(ranks),
        exposure=exposure(ranks),
        ledger=None,
        ledger_refused=None,
    )
    return dataclasses.replace(base, **more)


def found(ranks: Sequence[Measured], **more: Any) -> dict[str, Finding]:
    return {f.id: f for f in findings(facts(ranks, **more))}


def step(kernels: Sequence[Kernel], calls: Sequence[Call], dims: Sequence[str], **how: Any) -> Measured:
    link = how.pop("link", None)
    rank = labelled(kernels, [dataclasses.replace(c, step=0) for c in calls], steps=[(0, 0, 1000)], **how)
    return measured(rank, dims, link=link)


def test_tensor_parallelism_across_hosts_costs_what_it_exposes() -> None:
    kernels = [Kernel(0, 100, COMM, 20, call=0), Kernel(50, 100)]
    inter = found([step(kernels, [Call()], ["tp"], link="inter_node")])["tp.crosses_nodes"]
    assert (inter.severity, inter.cost_us, inter.dim) == ("warning", 50, "tp")
    assert "tp.crosses_nodes" not in found([step(kernels, [Call()], ["tp"], link="intra_node")])
    assert "tp.crosses_nodes" not in found([step(kernels, [Call()], ["dp"], link="inter_node")])


@pytest.mark.parametrize(("gathers", "scatters", "said"), [(6, 4, True), (4, 4, False), (3, 2, True), (3, 0, False)])
def test_gathering_again_in_backward_is_told_by_its_ratio(gathers: int, scatters: int, said: bool) -> None:
    calls = [Call(primitive="all_gather")] * gathers + [Call(primitive="reduce_scatter")] * scatters
    kernels = [Kernel(i * 30, 15, COMM, 20, call=i) for i in range(len(calls))]
    layout = dataclasses.replace(KNOWN, sequence_parallel=True)
    result = found([step(kernels, calls, ["tp"] * len(calls))], layout=layout_document(layout))
    assert ("tp.regather" in result) == said
    if said:
        assert result["tp.regather"].cost_us == gathers * 15 / 3


def test_exposed_time_below_the_noise_of_a_step_is_no_finding() -> None:
    small = found([step([Kernel(0, 9, COMM, 20, call=0)], [Call()], ["dp"])])
    large = found([step([Kernel(0, 10, COMM, 20, call=0)], [Call()], ["dp"])])
    assert "exposed.dp" not in small
    assert large["exposed.dp"].cost_us == 10
    assert large["exposed.dp"].severity == "warning"


def test_exposed_time_on_the_critical_path_by_design_is_information() -> None:
    assert found([step([Kernel(0, 100, COMM, 20, call=0)], [Call()], ["tp"])])["exposed.tp"].severity == "info"


def test_nccl_on_a_stream_that_computes_is_named_with_its_ranks() -> None:
    kernels = [Kernel(0, 100), Kernel(100, 100, COMM, 7, call=0)]
    result = found([step(kernels, [Call()], ["dp"])])["comm.on_compute_stream"]
    assert result.ranks == [0]
    custom = found([step(kernels, [Call(library="custom_all_reduce")], ["tp"])])
    assert "comm.on_compute_stream" not in custom


def test_a_cut_file_without_gpu_events_is_an_error() -> None:
    cut = Health(complete=False, file_bytes=1)
    whole = found([step([Kernel(0, 100, COMM, 20, call=0)], [Call()], ["dp"], health=cut)])
    bare = found([step([], [Call(ts=0, dur=10)], ["dp"], health=cut)])
    assert whole["trace.cut"].severity == "warning"
    assert bare["trace.cut"].severity == "error"
    assert "No GPU event is left" in bare["trace.cut"].detail


def test_two_floating_types_of_one_primitive_are_named_and_integers_are_not() -> None:
    kernels = [Kernel(0, 10, COMM, 20, call=0), Kernel(20, 10, COMM, 20, call=1)]
    mixed = found([step(kernels, [Call(dtype="float32"), Call(dtype="bfloat16")], ["dp", "dp"])])["dtype.mixed"]
    assert mixed.detail == "Sent per step and rank: 1,024 B in float32, 1,024 B in bfloat16."
    assert "dtype.mixed" not in found([step(kernels, [Call(dtype="int64"), Call()], ["ep", "ep"])])


def test_communication_of_unknown_kind_names_its_kernels() -> None:
    rank = step([Kernel(0, 100, COMM, 20, call=0)], [Call()], ["dp"])
    stats = LabelStats({"metadata": 75}, 25, (("mystery_kernel", 25),), (("kernel says a, operator says b", 3),))
    result = found([dataclasses.replace(rank, source=dataclasses.replace(rank.source, stats=stats))])
    assert result["comm.unclassified"].title == "25.0 % of communication time is of unknown kind"
    assert "mystery_kernel" in result["comm.unclassified"].detail
    assert result["comm.name_conflict"].title == "kernel names contradict the operation in 3 calls"


def test_a_declared_layout_is_held_against_what_was_seen() -> None:
    rank = step([Kernel(0, 100, COMM, 20, call=0)], [Call()], ["tp"])
    degrees = {"tp": 2, "cp": 1, "pp": 1, "dp": 1, "ep": 1}
    assert "layout.declared_holds" in found([rank], declared=degrees)
    assert found([rank], declared={**degrees, "tp": 4})["layout.declared_differs"].severity == "error"
    unknown = layout_document(dataclasses.replace(KNOWN, dp=None))
    assert "layout.declared_unverified" in found([rank], declared=degrees, layout=unknown)
    both = found([rank], declared={**degrees, "tp": 4}, layout=unknown)
    assert "layout.declared_differs" in both


def test_findings_come_by_severity_and_then_by_cost() -> None:
    kernels = [Kernel(0, 100, COMM, 20, call=0), Kernel(200, 300, COMM, 24, call=1), Kernel(600, 50, COMM, 28, call=2)]
    rank = step(kernels, [Call(), Call(), Call()], ["tp", "pp", "dp"])
    order = [f.id for f in findings(facts([rank], declared={"tp": 8}))]
    assert order[0] == "layout.declared_differs"
    assert order[1] == "exposed.dp"
    assert order.index("exposed.pp") < order.index("exposed.tp")
