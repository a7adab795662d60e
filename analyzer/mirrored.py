"""The ledger without a model: the rest of a step predicted from its own forward pass and its own gradients.

Backward mirrors forward: the adjoint of an all-gather is a reduce-scatter of the same size and the reverse, that of an
all-to-all an all-to-all back. Parameters travel as often as the data-parallel scheme says for every time that gradients
do. What a framework repeats on top is in the ledger's laws.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence

from analyzer.predicted import Predicted
from analyzer.traffic import Flow, Sent, Traffic, elements
from heuristics.dtypes import itemsize
from heuristics.verdict import Layout
from ledger.errors import LedgerError
from ledger.laws import tp_law
from ledger.payloads import cp_calls_per_layer, gradient_calls, tp_calls_per_layer
from ledger.pipeline import sends_per_rank

NO_PHASES = "its calls are not told apart into forward and backward"
REPLICATED = "gradients of weights that every tensor-parallel rank holds, such as norms"
LOSS = "loss and logits of a split vocabulary"


def from_forward(seen: Traffic, layout: Layout, profile: str, stages: Sequence[int]) -> Predicted:
    """Predict from what the run did in forward, dimension by dimension.

    Args:
        seen: what was sent.
        layout: the layout inferred.
        profile: whose laws.
        stages: pipeline stage of each rank that was read.
    """
    out = Predicted(profile)
    for dim, rule in (("tp", _tensor), ("cp", _context), ("pp", _stages), ("dp", _replicas), ("ep", _experts)):
        flows = {flow: sent for flow, sent in seen.items() if flow.dim == dim and sent.bytes}
        if flows:
            rule(flows, layout, out, stages)
    return out


def _sum(flows: Traffic, primitive: str, *phases: str) -> float:
    """Bytes of a primitive, in the given phases or in all."""
    return sum(s.bytes for f, s in flows.items() if f.primitive == primitive and (not phases or f.phase in phases))


def _again(layout: Layout) -> int:
    """How often backward runs forward again."""
    return 1 if layout.recompute == "full" else 0


def _phased(flows: Traffic) -> bool:
    return {"forward", "backward"} <= {flow.phase for flow in flows}


def _tensor(flows: Traffic, layout: Layout, out: Predicted, _stages: Sequence[int]) -> None:
    """Layer activations: what forward gathers, backward scatters, and the reverse."""
    if not _phased(flows):
        out.skipped["tp"] = NO_PHASES
        return
    main = _activations(flows, layout)
    law = tp_law(out.profile)
    gathered, scattered = _sum(main, "all_gather", "forward"), _sum(main, "reduce_scatter", "forward")
    said = "forward of this run, mirrored in backward"
    if layout.sequence_parallel:
        regather = gathered * (law.gather.backward - 1)
        repeated = _repeated(main, layout, out.profile)
        out.add("tp", "all_gather", gathered + scattered + regather + repeated["all_gather"], said)
        out.add("tp", "reduce_scatter", gathered + scattered + repeated["reduce_scatter"], said)
    else:
        reduced = _sum(main, "all_reduce", "forward")
        backward = _column_inputs(main, layout.microbatches or 1) if law.per_column_linear else reduced
        out.add("tp", "all_reduce", reduced + backward + _again(layout) * reduced, said)
    for flow, sent in flows.items():
        if flow not in main:
            cause = LOSS if flow.phase == "forward" else REPLICATED
            out.name("tp", flow.primitive, sent.bytes, cause)


def _repeated(main: Traffic, layout: Layout, profile: str) -> dict[str, float]:
    """Bytes that layers send again in backward where they are recomputed; embedding and output layer are not."""
    found = {}
    for primitive, calls in tp_calls_per_layer(profile, True, layout.recompute or "none").items():
        forward = sum(s.calls for f, s in main.items() if f.primitive == primitive and f.phase == "forward")
        layers = (layout.model.layers or 0) * (layout.microbatches or 1) * calls.forward
        inside = min(layers / forward, 1.0) if forward and layers else 1.0
        found[primitive] = _sum(main, primitive, "forward") * inside * calls.recompute / calls.forward
    return found


def _activations(flows: Traffic, layout: Layout) -> Traffic:
    """The flows whose payload is the layer-boundary activation: as inferred, else the size that moves most."""
    known = layout.model.activation_elements
    primitives = ("all_gather", "reduce_scatter") if layout.sequence_parallel else ("all_reduce",)
    chosen = {f: s for f, s in flows.items() if f.primitive in primitives}
    if known is None:
        by_size: dict[int, float] = defaultdict(float)
        for flow, sent in chosen.items():
            by_size[flow.size_bytes] += sent.bytes
        size = max(by_size, key=lambda s: by_size[s], default=0)
        return {f: s for f, s in chosen.items() if f.size_bytes == size}
    return {f: s for f, s in chosen.items() if f.size_bytes == known * (itemsize(f.dtype) or 0)}


def _column_inputs(main: Traffic, microbatches: int) -> float:
    """Bytes of backward reductions where every column-parallel linear reduces its own input gradient.

    A layer reduces twice in forward. Its column-parallel linears are q, k, v, up and gate: five, fewer without a gate
    or where inputs are prepared together, at least one for each of the two sublayers. A split embedding reduces once
    more in forward, a split output layer once more in backward.
    """
    calls = {phase: sum(s.calls for f, s in main.items() if f.phase == phase) for phase in ("forward", "backward")}
    forward, backward = calls["forward"] / microbatches, calls["backward"] / microbatches
    if not forward:
        return 0.0
    possible = [
        linears * (forward - embedding) / 2 + output
        for linears in (2, 3, 4, 5)
        for embedding in (0, 1)
        for output in (0, 1)
        if (forward - embedding) % 2 == 0
    ]
    nearest = min(possible, key=lambda n: abs(n - backward), default=forward)
    return _sum(main, "all_reduce", "forward") * nearest / forward


def _context(flows: Traffic, layout: Layout, out: Predicted, _stages: Sequence[int]) -> None:
    """What attention exchanges in backward for every exchange in forward."""
    kind, n = layout.cp_kind, layout.cp
    if kind is None or n is None or kind == "hierarchical":
        out.skipped["cp"] = "the kind of context parallelism is not known" if kind is None else "two kinds are mixed"
        return
    if "backward" not in {flow.phase for flow in flows}:
        out.skipped["cp"] = NO_PHASES
        return
    if kind == "ulysses":
        forward = _sum(flows, "all_to_all", "forward")
        out.add("cp", "all_to_all", (2 + _again(layout)) * forward, "forward of this run, mirrored in backward")
        return
    kept = kind == "all_gather" and not _sum(flows, "all_gather", "backward")
    laws = cp_calls_per_layer(out.profile, kind, n, kept=kept)
    said = "keys and values of this run's forward, " + ("kept for backward, " if kept else "") + "and their gradients"
    first = [law for law in laws if law.phase == "forward"]
    # Messages outside of all marks stay without a phase; those of backward lie inside autograd's.
    forward = sum(_sum(flows, p, "forward", "unknown") for p in {law.primitive for law in first})
    width = next((itemsize(f.dtype) for f in flows if f.phase != "backward"), None) or 1
    block = forward / float(sum(law.calls * law.kv_blocks * _share_sent(law.primitive, n) for law in first) or 1)
    for law in laws:
        sent = block * float(law.calls * law.kv_blocks) * (1 if law.one_hot else _share_sent(law.primitive, n))
        sent *= (itemsize(law.dtype) or width) / width
        out.add("cp", law.primitive, sent, said)
    beyond = _sum(flows, "send_recv") - out.bytes.get(("cp", "send_recv"), 0.0)
    if kind == "ring" and beyond == block:
        out.name("cp", "send_recv", beyond, "gradients of keys and values take one more hop, back to their owner")


def _share_sent(primitive: str, n: int) -> float:
    """Share of a payload that one rank sends."""
    return 1.0 if primitive == "send_recv" else (n - 1) / n


def _experts(flows: Traffic, layout: Layout, out: Predicted, _stages: Sequence[int]) -> None:
    """Tokens go out and come back in forward, and their gradients in backward; counts travel once."""
    if not _phased(flows):
        out.skipped["ep"] = NO_PHASES
        return
    for primitive in sorted({flow.primitive for flow in flows}):
        tokens = {f: s for f, s in flows.items() if f.primitive == primitive and "float" in f.dtype}
        out.add(
            "ep",
            primitive,
            (2 + _again(layout)) * _sum(tokens, primitive, "forward"),
            "forward of this run, mirrored in backward",
        )
        counts = _sum({f: s for f, s in flows.items() if f not in tokens}, primitive)
        out.name("ep", primitive, counts, "counts of tokens for each expert")


def _stages(flows: Traffic, layout: Layout, out: Predicted, stages: Sequence[int]) -> None:
    """Messages between stages: as many as the schedule says, of the size seen."""
    messages = {f: s for f, s in flows.items() if f.primitive == "send_recv"}
    for flow, sent in flows.items():
        if flow not in messages:
            out.name("pp", flow.primitive, sent.bytes, "gradients of an embedding that the first and last stage share")
    if layout.pp is None or layout.microbatches is None or layout.pp_schedule is None or not messages:
        out.skipped["pp"] = "schedule or microbatches are not known"
        return
    usual = max(messages, key=lambda flow: messages[flow].bytes)
    try:
        of_stage = {
            stage: sends_per_rank(layout.pp_schedule, layout.pp, layout.virtual_stages or 1, layout.microbatches, stage)
            for stage in sorted(set(stages))
        }
    except LedgerError as error:
        out.skipped["pp"] = str(error)
        return
    sends = sum(of_stage[stage].total for stage in stages) / len(stages)
    out.add("pp", "send_recv", sends * usual.size_bytes, f"{sends:g} messages of the usual size by schedule")


def _replicas(flows: Traffic, layout: Layout, out: Predicted, _stages: Sequence[int]) -> None:
    """Parameters travel as often as the scheme says for each time that gradients do."""
    stage, shard, replicas = layout.zero_stage, layout.dp_shard, layout.dp_replicate
    if stage is None:
        out.skipped["dp"] = "the ZeRO stage is not known"
        return
    laws = gradient_calls(out.profile, stage, _reductions(flows, layout), pipelined=(layout.pp or 1) > 1)
    source = "reduce_scatter" if "reduce_scatter" in laws else "all_reduce"
    reduced = [(f, s) for f, s in flows.items() if f.primitive == source]
    out.add("dp", source, sum(s.bytes for _, s in reduced), "gradients of this run: they give the number of parameters")
    sent = sum(elements(f, s) for f, s in reduced)
    if source == "reduce_scatter" and (replicas or 1) > 1 and shard:
        width = itemsize(next((f.dtype for f in flows if f.primitive == "all_reduce"), "")) or 0
        # Gradients scattered over the shards are summed over the replicas: 2(r-1)/r of N/shard against (s-1)/s of N.
        over = 2 * (replicas - 1) / replicas / (shard - 1) if replicas and shard > 1 else 0.0
        out.add("dp", "all_reduce", sent * over * width, "gradients of one shard, over the replicas")
    if stage == 0:
        # torch/nn/parallel/distributed.py, _sync_buffers
        out.name("dp", "broadcast", _sum(flows, "broadcast"), "buffers such as running means, from rank 0 in forward")
    if "all_gather" in laws:
        _gathers(flows, reduced, laws["all_gather"] / laws[source] / (2 if source == "all_reduce" else 1), out)


def _reductions(flows: Traffic, layout: Layout) -> int:
    """Microbatches in which gradients may be reduced: as inferred, else the whole number that the parameters give.

    An all-reduce sends twice what an all-gather of the same array does.
    """
    if layout.microbatches is not None:
        return layout.microbatches
    reduced = sum(elements(f, s) for f, s in flows.items() if f.primitive == "all_reduce") / 2
    gathered = sum(elements(f, s) for f, s in flows.items() if f.primitive == "all_gather")
    times = reduced / gathered if gathered else 1.0
    return int(times) if times >= 1 and times.is_integer() else 1


def _gathers(flows: Traffic, reduced: Iterable[tuple[Flow, Sent]], times: float, out: Predicted) -> None:
    """All-gathers of parameters, ``times`` for each reduction of gradients."""
    gathers = [(f, s) for f, s in flows.items() if f.primitive == "all_gather"]
    scattered, gathered = _by_unit(reduced), _by_unit(gathers)
    widths = {_unit(f): itemsize(f.dtype) or 0 for f, _ in gathers}
    usual = max(widths.values(), key=list(widths.values()).count, default=0)
    sent = {unit: elements * widths.get(unit, usual) for unit, elements in scattered.items()}
    expected = times * sum(sent.values())
    out.add("dp", "all_gather", expected, f"parameters, {times:g} times per reduction")
    # The root unit, and units that are not resharded, are gathered for forward only (_fsdp_state.py).
    kept = sum(sent[unit] for unit, n in scattered.items() if gathered.get(unit) == n) if times == 2 else 0.0
    if abs(expected - kept - _sum(flows, "all_gather")) <= sum(s.calls for _, s in gathers):
        out.name("dp", "all_gather", -kept, "units that stay gathered between forward and backward")


def _unit(flow: Flow) -> int:
    """Elements of the whole array."""
    return flow.size_bytes // (itemsize(flow.dtype) or 1)


def _by_unit(flows: Iterable[tuple[Flow, Sent]]) -> dict[int, float]:
    """Elements sent, by elements of the whole array."""
    out: dict[int, float] = defaultdict(float)
    for flow, sent in flows:
        out[_unit(flow)] += elements(flow, sent)
    return out
