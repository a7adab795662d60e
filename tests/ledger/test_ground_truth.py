"""Published byte counts: a real FSDP trace (TraceLens), generated Megatron and DeepSpeed workloads (AICB), layouts."""

import csv
from collections import Counter, defaultdict
from dataclasses import replace

import pytest

from ledger.errors import LedgerError
from ledger.model import BIASES, ModelSpec
from ledger.parallel import ParallelConfig, predict, predict_stage
from ledger.presets import preset
from ledger.profiles.deepspeed import deepspeed

MIB = 2**20
WORKLOADS = "data/ground_truth/aicb/workload/physical/model_workload"


def read_csv(path):
    return list(csv.DictReader(path.read_text(encoding="utf-8").splitlines()))


def test_llama_70b_fsdp_trace_to_a_hundredth_of_a_mebibyte(shared):
    """The trace's input sizes: a rank's share for gathers, the whole for scatters; calls over two steps."""
    reported = [
        row
        for row in read_csv(shared / "data" / "tables" / "tracelens_llama70b_fsdp_real_trace.csv")
        if row["ledger_mib"]
    ]
    assert len(reported) == 4
    config = ParallelConfig(dp=8, zero_stage=3)
    ledger = Counter()
    for row in predict(preset("llama3-70b"), config, "torchtitan_0_1"):
        if not row.noise:
            share = 8 if row.primitive == "all_gather" else 1
            ledger[row.primitive, row.dtype, f"{row.payload_bytes / share / MIB:.2f}"] += row.calls_per_step
    names = {"_allgather_base": "all_gather", "_reduce_scatter_base": "reduce_scatter"}
    dtypes = {"bf16": "bfloat16", "fp32": "float32", "": None}
    for row in reported:
        size = f"{float(row['in_msg_mib_reported']):.2f}"
        calls = [
            count
            for (primitive, dtype, mib), count in ledger.items()
            if primitive == names[row["collective"]] and dtype == dtypes[row["dtype"]] and mib == size
        ]
        assert calls == [int(row["count_2steps"]) / 2]
    assert sum(ledger.values()) == 159 + 80 + 1 + 1  # nothing else


def llama(layers, hidden, ffn, heads):
    return replace(preset("llama2-7b"), layers=layers, hidden=hidden, ffn=ffn, heads=heads, kv_heads=heads)


def workload(shared, name):
    """Calls per (collective, group, where in the step, bytes); initialisation left out."""
    lines = (shared / WORKLOADS / name).read_text(encoding="utf-8").splitlines()
    calls = Counter()
    for row in csv.DictReader(line for line in lines if not line.startswith("[")):
        kind, where = row["comm_type"].removeprefix("CommType."), row["stage"]
        if kind in ("epoch_end", "barrier", "comm_type", "broadcast") or where.startswith("init"):
            continue
        calls[kind, row["comm_group"].removeprefix("CommGroup."), where, int(row["msg_size"])] += 1
    return calls


def sums(rows, **fields):
    """(calls, payload) over the ledger's rows that match."""
    chosen = [row for row in rows if all(getattr(row, key) == value for key, value in fields.items())]
    return sum(row.calls_per_step for row in chosen), {row.payload_bytes for row in chosen}


GPT13B = ModelSpec(
    layers=40, hidden=5120, ffn=20480, heads=40, vocab=32768, gated=False, tied=True, norm="layernorm",
    biases=BIASES, positions=2048,
)  # fmt: skip
# The generator's 7B is Llama's size with GPT's parts: two matrices per feed-forward block, biases, positions.
GPT7B = replace(GPT13B, layers=32, hidden=4096, ffn=11008, heads=32, vocab=32000)
PLAIN = {"seq_len": 2048, "zero_stage": 1}


@pytest.mark.parametrize(
    ("name", "model", "layout"),
    [
        ("G13B-M1-C01_GPT13B_megatron_tp8_pp1_mbs1.csv", GPT13B, "tp8-dp16"),
        ("L7B-M1-C04_Llama7B_megatron_tp2_pp1_mbs1.csv", GPT7B, "tp2-dp64"),
    ],
)
def test_megatron_tensor_and_data_parallel_workloads(shared, name, model, layout):
    seen = workload(shared, name)
    rows = predict(model, ParallelConfig.parse(layout, **PLAIN, sequence_parallel=False), "megatron")
    boundary = 2 * 2048 * model.hidden
    per_layer = 2 * model.layers
    assert seen["all_reduce", "tp_group", "forward.MegatronRowLinear", boundary] == per_layer
    assert seen["all_reduce", "tp_group", "backward.MegatronColumnLinear", boundary] == per_layer
    assert sums(rows, part="layer activations", phase="forward") == (per_layer, {boundary})
    assert sums(rows, part="layer activations", phase="backward") == (per_layer, {boundary})
    # one more in each direction for the vocabulary: embedding forward, output layer backward
    every = sum(count for key, count in seen.items() if key[0] == "all_reduce" and key[3] == boundary)
    assert sums(rows, dim="tp", primitive="all_reduce", payload_bytes=boundary)[0] == every == 2 * per_layer + 2
    loss = seen["all_reduce", "tp_group", "forward_step._VocabParallelCrossEntropy", 8192]
    assert sums(rows, part="cross entropy") == (loss, {8192}) == (3, {8192})
    (reduced,) = [key[3] for key in seen if key[0] == "reduce_scatter" and key[1] == "dp_group"]
    (gathered,) = [key[3] for key in seen if key[0] == "all_gather" and key[1] == "dp_group"]
    assert sums(rows, part="gradients") == (1, {reduced})
    assert sums(rows, part="parameters") == (1, {gathered})
    assert reduced == 2 * gathered


def test_megatron_sequence_parallel_workload(shared):
    seen = workload(shared, "G13B-M1-C02_GPT13B_megatron_tp8_pp1_mbs1_sp.csv")
    rows = predict(GPT13B, ParallelConfig.parse("tp8-dp16", **PLAIN), "megatron")
    boundary = 2 * 2048 * 5120
    for primitive, phase in (
        ("all_gather", "forward"),
        ("reduce_scatter", "forward"),
        ("all_gather", "backward"),
        ("reduce_scatter", "backward"),
    ):
        listed = sum(
            count
            for key, count in seen.items()
            if key[0] == primitive and key[1] == "tp_group" and key[2].startswith(phase)
        )
        assert sums(rows, part="layer activations", primitive=primitive, phase=phase) == (listed, {boundary})
    gathers, _ = sums(rows, part="layer activations", primitive="all_gather")
    scatters, _ = sums(rows, part="layer activations", primitive="reduce_scatter")
    assert (gathers, scatters) == (240, 160)
    # The generator keeps an all-reduce at each end where Megatron scatters the embedding and gathers for the output.
    assert seen["all_reduce", "tp_group", "forward.MegatronEmbedding", boundary] == 1
    assert sums(rows, part="embedding", primitive="reduce_scatter") == (1, {boundary})
    assert sums(rows, part="gradients")[1] == {6_422_958_080}
    assert sums(rows, part="parameters")[1] == {3_211_479_040}


def test_megatron_pipeline_workload(shared):
    # 8 microbatches over 8 stages: the first stage sends 8 messages, an inner one 16
    lines = (shared / WORKLOADS / "L65B-M1-C05_Llama65B_megatron_tp2_pp8_mbs1.csv").read_text().splitlines()
    messages = defaultdict(int)
    stage = None
    for line in lines:
        if "pp_stage" in line:
            stage = int(line.split("pp_stage")[1].split(":")[0])
        elif "isend" in line:
            messages[stage, int(line.split(",")[3])] += 1
    model = replace(GPT13B, layers=80, hidden=8192, ffn=22016, heads=64)
    config = ParallelConfig.parse("tp2-pp8-dp8", **PLAIN, microbatches=8, sequence_parallel=False)
    for stage in (0, 3):
        rows = predict_stage(model, config, stage, "megatron")
        calls, sizes = sums(rows, part="stage boundary")
        assert (calls, sizes) == (messages[stage, 33_554_432], {33_554_432})
    assert (messages[0, 33_554_432], messages[3, 33_554_432]) == (8, 16)


@pytest.mark.parametrize(
    ("name", "model"),
    [
        ("L7B-D1-C02_Llama7B_zero3_mbs1.csv", preset("llama2-7b")),
        ("L13B-D1-C04_Llama13B_zero3_mbs1.csv", preset("llama2-13b")),
        ("L30B-D1-C06_Llama30B_zero3_mbs1.csv", llama(60, 6656, 17920, 52)),
        ("L65B-D1-C07_Llama65B_zero3_mbs1.csv", llama(80, 8192, 28672, 64)),
    ],
)
def test_deepspeed_stage_3_workloads(shared, name, model):
    """All-gathers of both directions and reduce-scatters, 8 of 8; the generator drops every tensor at once."""
    seen = workload(shared, name)
    config = ParallelConfig(dp=128, zero_stage=3)

    def listed(kind, prefix):
        return sum(count * key[3] for key, count in seen.items() if key[0] == kind and key[2].startswith(prefix))

    at_once = deepspeed(persistence_threshold=0, reuse_distance=0)
    rows = predict(model, config, at_once)
    for phase in ("forward", "backward"):
        (_, (payload,)) = sums(rows, primitive="all_gather", phase=phase)
        assert payload == listed("all_gather", phase) == 2 * model.parameters
    scattered = listed("reduce_scatter", "backward") + listed("reduce_scatter", "step")
    assert sums(rows, primitive="reduce_scatter") == (1, {scattered})
    # the small tensors gathered after the step are DeepSpeed's persistent ones
    kept = predict(model, config, "deepspeed")
    (_, (persistent,)) = sums(kept, part="persistent parameters")
    assert persistent == listed("all_gather", "step")


def test_deepspeed_stage_2_workload(shared):
    seen = workload(shared, "L7B-D1-C01_Llama7B_zero2_mbs1.csv")
    reduced = sum(count * key[3] for key, count in seen.items() if "allreduce_bucket" in key[2])
    gathered = sum(count * key[3] for key, count in seen.items() if "all_gather" in key[2])
    rows = predict(preset("llama2-7b"), ParallelConfig(dp=128, zero_stage=2), "deepspeed")
    assert sums(rows, part="gradients") == (1, {reduced})
    (_, (parameters,)) = sums(rows, part="parameters")
    assert 0 <= gathered - parameters < 6 * 128 * 2  # each of six pieces is padded to the ranks


def test_llama_3_table_4_layouts_multiply(shared):
    for row in read_csv(shared / "data" / "tables" / "llama3_table4.csv"):
        config = ParallelConfig(tp=int(row["tp"]), cp=int(row["cp"]), pp=int(row["pp"]), dp=int(row["dp"]))
        assert config.world_size == int(row["gpus"])


def test_every_published_mlperf_layout_can_be_predicted(shared):
    models = {
        "llama31_405b": "llama3-405b",
        "llama31_8b": "llama3-8b",
        "llama2_70b_lora": "llama2-70b",
        "gpt3": "gpt3-175b",
    }
    layouts = set()
    for row in read_csv(shared / "data" / "tables" / "mlperf_training_parallel_configs.csv"):
        if row["benchmark"] in models and row["dp"].isdigit():
            keys = (row[key] for key in ("tp", "cp", "pp", "dp", "vp", "gpus_per_node", "world"))
            layouts.add((models[row["benchmark"]], *(int(key) if key.isdigit() else 1 for key in keys)))
    assert len(layouts) > 79
    for name, tp, cp, pp, dp, v, per_node, world in layouts:
        schedule = "interleaved_1f1b" if v > 1 else "1f1b"
        config = ParallelConfig(
            tp=tp, cp=cp, pp=pp, dp=dp, virtual_stages=v, schedule=schedule, zero_stage=1, microbatches=4,
            gpus_per_node=per_node,
        )  # fmt: skip
        assert config.world_size == world
        if pp * v > preset(name).layers:  # 405B layouts filed under the 8B benchmark: 64 chunks, 32 layers
            with pytest.raises(LedgerError, match="cannot fill"):
                predict(preset(name), config, "megatron")
            continue
        rows = predict(preset(name), config, "megatron")
        dims = {row.dim for row in rows if not row.noise}
        assert {dim for dim, degree in (("tp", tp), ("cp", cp), ("pp", pp)) if degree > 1} <= dims
        assert ("dp" in dims) == (dp * cp > 1)
        if tp <= per_node and per_node % tp == 0:
            assert {row.link for row in rows if row.dim == "tp"} <= {"intra_node"}
