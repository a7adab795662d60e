"""The compute kernels of a transformer layer, with the times of an H100-class GPU."""

from __future__ import annotations

from benchmarks.synthesis.program import Program
from benchmarks.synthesis.spec import Model

FLOPS_PER_US = 400e6
BYTES_PER_US = 2.2e6

_TILE = "tilesize128x256x64_warpgroupsize2x1x1_execute_segment_k_off_kernel__5x_cublas"
GEMM = f"sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_{_TILE}"
FLASH = (
    "void cutlass::device_kernel<flash::FlashAttnFwdSm90<...>>(flash::Params)",
    "void cutlass::device_kernel<flash::FlashAttnBwdSm90<...>>(flash::Params)",
)
ELEMENTWISE = "void at::native::vectorized_elementwise_kernel<4, at::native::{word}, std::array<char*, 3ul> >(int)"
NORM = "void at::native::(anonymous namespace)::vectorized_layer_norm_kernel<c10::BFloat16, float>(int, float)"
ADAM = "void at::native::(anonymous namespace)::multi_tensor_apply_kernel<TensorListMetadata<4>, FusedAdamMathFunctor>"


class Compute:
    """Emits kernels into a program."""

    def __init__(self, program: Program, model: Model, tokens: int, tp: int) -> None:
        self.p, self.model, self.tokens, self.tp = program, model, tokens, tp

    def gemm(self, rows: int, inner: int, columns: int, op: str = "aten::mm") -> None:
        """A matrix product."""
        self.p.compute(GEMM, max(4.0, 2.0 * rows * inner * columns / FLOPS_PER_US), op)

    def elementwise(self, elements: int, word: str = "AddFunctor", op: str = "aten::add") -> None:
        """Something bound by memory."""
        self.p.compute(ELEMENTWISE.format(word=word), max(2.0, 4.0 * elements / BYTES_PER_US), op)

    def norm(self, rows: int) -> None:
        """A normalisation over the hidden width."""
        self.p.compute(NORM, max(2.5, 4.0 * rows * self.model.hidden / BYTES_PER_US), "aten::native_layer_norm")

    def attention(self, backward: bool = False, share: float = 1.0) -> None:
        """Flash attention over the local queries; ``share`` of all keys."""
        flops = 2.0 * self.tokens * self.model.seq * self.model.hidden / self.tp * share
        op = "aten::_flash_attention_backward" if backward else "aten::_flash_attention_forward"
        self.p.compute(FLASH[backward], max(8.0, flops * (2.5 if backward else 1.0) / FLOPS_PER_US), op)

    def qkv(self) -> None:
        """The fused projection of queries, keys and values."""
        width = self.model.hidden + 2 * self.model.kv_width
        self.gemm(self.tokens, self.model.hidden, width // self.tp)

    def projection(self) -> None:
        """The output projection of attention."""
        self.gemm(self.tokens, self.model.hidden // self.tp, self.model.hidden)

    def fc1(self) -> None:
        """Into the feed-forward block."""
        self.gemm(self.tokens, self.model.hidden, (2 if self.model.gated else 1) * self.model.ffn // self.tp)

    def fc2(self) -> None:
        """Out of the feed-forward block."""
        self.gemm(self.tokens, self.model.ffn // self.tp, self.model.hidden)

    def activation(self) -> None:
        """The non-linearity between."""
        self.elementwise(self.tokens * self.model.ffn // self.tp, "SiluFunctor", "aten::silu")

    def head(self) -> None:
        """Logits of the local part of the vocabulary."""
        self.gemm(self.tokens, self.model.hidden, self.model.vocab // self.tp)

    def embedding(self) -> None:
        """Rows of the embedding table."""
        self.elementwise(self.tokens * self.model.hidden, "IndexFunctor", "aten::embedding")

    def loss(self) -> None:
        """Softmax over the local logits."""
        self.elementwise(self.tokens * self.model.vocab // self.tp, "SoftMaxFunctor", "aten::_log_softmax")

    def experts(self, rows: int, local_experts: int, etp: int = 1) -> None:
        """Grouped products over the received tokens."""
        width = self.model.expert_ffn // etp
        share = max(1, rows // max(1, local_experts))
        for inner, columns in ((self.model.hidden, 2 * width), (width, self.model.hidden)):
            us = max(4.0, 2.0 * share * local_experts * inner * columns / FLOPS_PER_US)
            self.p.compute("void cutlass::device_kernel<GroupedGemmSm90<...>>(Params)", us, "aten::_grouped_mm")

    def adam(self, elements: int) -> None:
        """The optimizer on what this rank owns."""
        for part in range(2):
            self.p.compute(ADAM, max(3.0, 8.0 * elements / BYTES_PER_US), f"aten::_fused_adamw_{part}_"[:18])
