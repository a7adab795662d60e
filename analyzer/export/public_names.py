"""Which names belong to everybody: those of public libraries, which say nothing about whose job it was.

Everything else is somebody's own and is hidden. A name that a public library makes from the user's code (the class of
an autograd function, an optimizer) keeps the library's part.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache

from heuristics.kernel_table import KernelTable

_WHOLE = re.compile(
    r"""(?x)
    (?: (?:aten|c10d|_?c10d_functional|_c10d_functional_autograd|symm_mem|prims)::\w+(?:\.\w+)?
    | record_param_comms | (?:nccl|rccl|gloo|mpi|ucc):\w+
    | ProfilerStep\#?\d* | \#\#\ Call\ CompiledFxGraph\ \w+\ \#\#
    | (?:cuda|cu|hip|musa|nvrtc|cudnn|cublas)[A-Z]\w* | INVALID
    | (?:Memcpy|Memset)\ ?\w*(?:\ \([\w\ ]+->\ ?[\w\ ]+\))?
    | (?:Stream|Event|Device|Context)\ (?:Sync|Wait\ Event|Synchronize)
    | \[memory\] | Activity\ Buffer\ Request | Runtime\ Triggered\ Module\ Loading
    | Lazy\ Function\ Loading | Buffer\ Flush | Command\ Buffer\ Full | Instrumentation | Resource
    | (?:process|thread)_(?:name|labels|sort_index) | num_steps | trace_buffer_overflowed | python | ac2g | fwdbwd
    | PyTorch\ Profiler(?:\ \(\d+\))? | Iteration\ Start:\ PyTorch\ Profiler | Record\ Window\ End
    | DistributedDataParallel\.forward | enumerate\(DataLoader\)\#\w+\.__next__
    )\Z
    """
)
_KERNELS = re.compile(
    r"(?:void )?(?:at::native::|at::cuda::|cutlass|cublas|cudnn|ampere_|volta_|turing_|hopper_|sm\d\d\w*_|flash_|fmha"
    r"|gemm|cask_|nvjet_|Cijk_|multi_tensor_apply_kernel|gatherTopK|cunn_|vectorized_|elementwise_kernel)"
)
_BACKWARD = re.compile(
    r"(autograd::engine::evaluate_function: )(.*?)((?:Backward\d*)?|torch::autograd::AccumulateGrad)\Z"
)
_ACCUMULATE = "torch::autograd::AccumulateGrad"
_OWN_NODE = re.compile(r"(\w+?)(Backward\d+)\Z")
_FSDP = re.compile(
    r"(FSDP::(?:pre|post)_(?:forward|backward)|FSDP::(?:all_gather(?:_copy_out)?|reduce_scatter"
    r"|post_backward_\w+|root_\w+|backward_prefetch))(?: ?(.+))?\Z"
)
_ATEN_NODES = re.compile(
    r"(?:Add|Sub|Mul|Div|Mm|Bmm|Addmm|Linear|Matmul|View|T|Transpose|Permute|Unsafe\w+|Split\w*|Cat|Slice|Select|Gelu"
    r"|Relu|Silu|Softmax|LogSoftmax|NativeLayerNorm|NativeDropout|Embedding|NllLoss|Mean|Sum|Pow|Rsqrt|ToCopy|Clone"
    r"|Expand|ScaledDotProduct\w+|Convolution|Index\w*|Sigmoid|Tanh|Mse\w*|AsStrided|Squeeze|Unsqueeze|Copy\w*)\Z"
)
_OPTIMIZER = re.compile(r"(Optimizer\.(?:step|zero_grad)#)(\w+)(\.\w+)?\Z")
_OPTIMIZERS = frozenset(("SGD", "Adam", "AdamW", "Adagrad", "RMSprop", "Adafactor", "NAdam", "RAdam", "LBFGS", "Muon"))

Token = Callable[[str, str], str]
"""Kind and text to what stands for the text."""


def safe_name(name: str, kind: str, token: Token) -> str:
    """A name as it may be shown.

    Args:
        name: of an operator, a kernel, a range.
        kind: what to call it where it has to be hidden.
        token: what stands for a text.
    """
    if not name or _WHOLE.match(name):
        return name
    known = _of_table(name)
    if known is not None:
        return known
    match = _BACKWARD.match(name)
    if match is not None:
        inner, suffix = match[2], match[3]
        public = inner in ("", _ACCUMULATE) or _ATEN_NODES.match(inner)
        return match[1] + (inner if public else token("node", inner)) + suffix
    match = _OPTIMIZER.match(name)
    if match is not None:
        return match[1] + (match[2] if match[2] in _OPTIMIZERS else token("optimizer", match[2])) + (match[3] or "")
    match = _KERNELS.match(name)
    if match is not None:
        # Of a template only its name: its arguments may be the user's own types.
        return match[0] + token("k", name)
    match = _OWN_NODE.match(name)
    if match is not None:
        return (match[1] if _ATEN_NODES.match(match[1]) else token("node", match[1])) + match[2]
    match = _FSDP.match(name)
    if match is not None:
        return match[1] + (f" ({token('module', match[2])})" if match[2] else "")
    return token(kind, name)


@cache
def _of_table(name: str) -> str | None:
    """The part of a name by which the table of communication kernels and operators knows it."""
    table = KernelTable.default()
    if table.operator(name) is not None:
        return name
    known = table.kernel(name)
    if known is None:
        return None
    for rule in table.kernels:
        match = rule.match.search(name)
        if match is not None:
            return match[0] if match[0] and table.kernel(match[0]) == known else None
    return None
