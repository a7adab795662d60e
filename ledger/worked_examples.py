"""Six placements worked out with the closed forms: Llama 3 405B twice as trained and once as plain ZeRO-3, 70B thrice.

Layouts and sequence lengths of the first two: Dubey et al. 2024 (Llama 3), table 4. Sizes are printed in binary units
under the decimal names (1 GB here is 2^30 bytes).
"""

from __future__ import annotations

from collections.abc import Iterator

from ledger.config import ParallelConfig
from ledger.memory import activation_bytes_per_layer, per_gpu_state, state_bytes
from ledger.model import ModelSpec
from ledger.pipeline import bubble
from ledger.presets import preset
from ledger.profiles import profile
from ledger.rows import CommRow, stage_rows


def examples() -> tuple[tuple[ModelSpec, ParallelConfig], ...]:
    """The six models and layouts."""
    large, small = preset("llama3-405b"), preset("llama3-70b")
    return (
        (large, ParallelConfig.parse("tp8-cp1-pp16-dp128", zero_stage=1, microbatches=16)),
        (large, ParallelConfig.parse("tp8-cp16-pp16-dp4", zero_stage=1, microbatches=32, seq_len=131072)),
        (large, ParallelConfig.parse("dp16384", zero_stage=3)),
        (small, ParallelConfig.parse("tp8-pp8-dp16", zero_stage=1, microbatches=32)),
        (
            small,
            ParallelConfig.parse(
                "tp8-pp4-dp32", zero_stage=1, microbatches=16, virtual_stages=2, schedule="interleaved_1f1b"
            ),
        ),
        (small, ParallelConfig.parse("dp1024", zero_stage=3, hsdp_shard=64)),
    )


def binary_size(size: float) -> str:
    """Ten characters: a number of two decimals and a unit that is a power of 1024."""
    for unit in ("B", "KB", "MB", "GB", "TB"):
        if abs(size) < 1024 or unit == "TB":
            return f"{size:8.2f} {unit}"
        size /= 1024
    raise AssertionError("unreachable")


def _lines(rows: tuple[CommRow, ...]) -> Iterator[tuple[str, str, str, str, int]]:
    """Rows of one dimension and primitive as one line: dim, primitive, link, overlap, bytes."""
    sums: dict[tuple[str, str, str, str], int] = {}
    for row in rows:
        link = "nvlink" if row.link == "intra_node" else "ib"
        key = (row.dim, row.primitive, link, row.overlap)
        sums[key] = sums.get(key, 0) + row.sent_bytes_per_step
    for (dim, primitive, link, overlap), sent in sums.items():
        yield dim, primitive, link, overlap, sent


def report(model: ModelSpec, config: ParallelConfig) -> str:
    """One placement as text: state, activations, bubble, and what a GPU sends per step."""
    textbook = profile("textbook")
    (stage,) = textbook.stages(model, textbook.resolve(config))
    lines = list(_lines(stage_rows(stage, textbook.flows(stage))))
    held = per_gpu_state(model, config, state_bytes(model.parameters))
    idle = bubble(config.schedule, config.pp, config.microbatches, config.virtual_stages)
    size = binary_size
    activation = activation_bytes_per_layer(model, config)
    text = [
        f"{model.name}: tp={config.tp} cp={config.cp} pp={config.pp} dp={config.dp} ep={config.ep} "
        f"zero={config.zero_stage} sp={config.sp} mb={config.micro_batch_size} "
        f"m={config.microbatches} -> {config.world_size} GPUs",
        f"  per-GPU state : params {size(held.params_bytes)}  grads {size(held.grads_bytes)}  "
        f"optim {size(held.optim_bytes)}  total {size(held.total_bytes)}",
        f"  activation/layer/GPU (flash, 1 mb): {size(activation)}"
        f"   layers/stage {model.layers / config.pp:.1f}   tokens/GPU/mb {config.tokens}",
        f"  PP bubble fraction: {idle.share_of_total:.3f}",
    ]
    text += [
        f"  {dim:3s} {kind:15s} {link:7s} {size(sent)}  overlap={overlap}" for dim, kind, link, overlap, sent in lines
    ]
    by_link = {link: sum(line[4] for line in lines if line[2] == link) for link in ("nvlink", "ib")}
    text.append(
        f"  total per GPU per step: {size(sum(by_link.values()))}"
        f"  (nvlink {size(by_link['nvlink'])}, ib {size(by_link['ib'])})"
    )
    return "\n".join(text)


def main() -> None:
    """Print the six reports."""
    for model, config in examples():
        print(report(model, config))
