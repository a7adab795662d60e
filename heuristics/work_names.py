"""What a compute kernel or operator is for, by its name: attention, experts, embedding tables, the optimizer.

Every function takes a name and whether it is a kernel's; operators (on a CPU) are named otherwise.
"""

from __future__ import annotations

_ATTENTION_KERNELS = (
    "flash_fwd",
    "flash_bwd",
    "flash_attn",
    "flashattn",
    "fmha",
    "attention",
    "batchprefill",
    "batchdecode",
)


def is_attention(name: str, kernel: bool) -> bool:
    """Whether it is attention, forward or backward."""
    low = name.lower()
    if kernel:
        return any(word in low for word in _ATTENTION_KERNELS)
    return low.startswith(("aten::_scaled_dot_product", "aten::scaled_dot_product_attention_math"))


def is_expert(name: str, kernel: bool) -> bool:  # noqa: ARG001 (the words are the same in kernels and operators)
    """Whether it belongs to a mixture of experts."""
    low = name.lower()
    return any(word in low for word in ("moe", "expert", "grouped_gemm", "grouped_mm", "topk_softmax", "topkgating"))


def is_embedding_bag(name: str, kernel: bool) -> bool:  # noqa: ARG001 (the words are the same in kernels and operators)
    """Whether it looks up embedding tables of a recommendation model."""
    low = name.lower()
    return any(word in low for word in ("embedding_bag", "embeddingbag", "split_embedding", "jagged"))


def is_attention_backward(name: str, kernel: bool) -> bool:
    """Whether it is the backward of attention."""
    low = name.lower()
    return is_attention(name, kernel) and any(word in low for word in ("bwd", "backward", "dgrad"))


_OPTIMIZER_KERNELS = ("adam", "sgdfunctor", "fusedsgd", "lamb", "adagrad")


def is_optimizer(name: str) -> bool:
    """Whether a kernel updates parameters."""
    return any(word in name.lower() for word in _OPTIMIZER_KERNELS)
