"""Kernel names of the communication libraries, release by release.

NCCL >= 2.19 (src/device/generate.py): one kernel per primitive and type, ``RING_LL`` in every name that is not a tree.
NCCL 2.8 to 2.18 (src/collectives/device/*.h): ``ncclKernel_<primitive>_<algorithm>_<protocol>_<op>_<C type>``.
RCCL since ROCm 6.2: one generic kernel.
"""

from __future__ import annotations

from benchmarks.synthesis.program import Kernel, Launch, Message

NEW_TYPES = {
    "BFloat16": "bf16",
    "Half": "f16",
    "Float": "f32",
    "Double": "f64",
    "Byte": "u8",
    "Bool": "u8",
    "Int": "u32",
    "Long": "u64",
    "Float8_e4m3fn": "f8e4m3",
}
OLD_TYPES = {
    "BFloat16": "__nv_bfloat16",
    "Half": "half",
    "Float": "float",
    "Double": "double",
    "Byte": "uint8_t",
    "Bool": "uint8_t",
    "Int": "int32_t",
    "Long": "int64_t",
    "Float8_e4m3fn": "uint8_t",
}


def kernel_name(message: Message, library: str) -> str:
    """The name that a profiler shows for one call."""
    what = message.primitive
    if library == "rccl":
        return "ncclDevKernel_Generic_4(ncclDevKernelArgsStorage<4096ul>)"
    if library == "nccl-2.17":
        if what in ("AllReduce", "ReduceScatter", "Reduce"):
            return f"ncclKernel_{what}_RING_LL_Sum_{OLD_TYPES[message.dtype]}(ncclDevComm*, unsigned long, ncclWork*)"
        protocol = "SIMPLE" if what == "SendRecv" else "LL"
        return f"ncclKernel_{what}_RING_{protocol}_Sum_int8_t(ncclDevComm*, unsigned long, ncclWork*)"
    tail = "(ncclDevKernelArgsStorage<4096ul>)"
    if what in ("AllReduce", "ReduceScatter", "Reduce"):
        return f"ncclDevKernel_{what}_Sum_{NEW_TYPES[message.dtype]}_RING_LL{tail}"
    if what in ("AllGather", "Broadcast"):
        return f"ncclDevKernel_{what}_RING_LL{tail}"
    return f"ncclDevKernel_SendRecv{tail}"


def block_of(operation: Kernel | Launch) -> tuple[list[int], list[int]]:
    """Grid and block: channels for NCCL, tiles for compute."""
    if isinstance(operation, Launch):
        size = sum(m.in_n for m in operation.messages)
        return ([24, 1, 1] if size > 1 << 16 else [4, 1, 1]), [512, 1, 1]
    return [132, 1, 1], [384, 1, 1]
