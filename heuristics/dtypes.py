"""Element types: the names that PyTorch, NCCL and C++ give them, one name each here, and their width.

Sources: c10/core/ScalarType.h (`AT_FORALL_SCALAR_TYPES_WITH_COMPLEX_AND_QINTS`) for Kineto's ``dtype``, the C++ type
names of caffe2::TypeMeta for ``Input type``, and src/device/generate.py of NCCL for kernel names.
"""

from __future__ import annotations

import re
from types import MappingProxyType

_TABLE: tuple[tuple[str, int, str], ...] = (
    # name, bytes, other names
    ("float64", 8, "Double double f64 ncclFloat64"),
    ("float32", 4, "Float float f32 ncclFloat32"),
    ("float16", 2, "Half half f16 __half ncclFloat16"),
    ("bfloat16", 2, "BFloat16 bf16 __nv_bfloat16 nv_bfloat16 rccl_bfloat16 hip_bfloat16 __hip_bfloat16 ncclBfloat16"),
    ("float8_e4m3fn", 1, "Float8_e4m3fn f8e4m3 __nv_fp8_e4m3 rccl_float8 ncclFloat8e4m3"),
    ("float8_e5m2", 1, "Float8_e5m2 f8e5m2 __nv_fp8_e5m2 rccl_bfloat8 ncclFloat8e5m2"),
    ("float8_e4m3fnuz", 1, "Float8_e4m3fnuz"),
    ("float8_e5m2fnuz", 1, "Float8_e5m2fnuz"),
    ("float8_e8m0fnu", 1, "Float8_e8m0fnu"),
    ("float4_e2m1fn_x2", 1, "Float4_e2m1fn_x2"),
    ("int64", 8, "Long long i64 int64_t longint longlong ncclInt64"),
    ("int32", 4, "Int int i32 int32_t ncclInt32"),
    ("int16", 2, "Short short shortint int16_t"),
    ("int8", 1, "Char char signedchar i8 int8_t QInt8 ncclInt8"),
    ("uint8", 1, "Byte byte unsignedchar u8 uint8_t QUInt8 Bits8 ncclUint8"),
    ("uint16", 2, "UInt16 unsignedshort uint16_t Bits16"),
    ("uint32", 4, "UInt32 unsignedint u32 uint32_t ncclUint32"),
    ("uint64", 8, "UInt64 unsignedlong unsignedlonglong u64 uint64_t ncclUint64"),
    ("bool", 1, "Bool"),
    ("complex32", 4, "ComplexHalf complex<Half> complex<c10::Half>"),
    ("complex64", 8, "ComplexFloat complex<float>"),
    ("complex128", 16, "ComplexDouble complex<double>"),
)

NAMES = tuple(name for name, _, _ in _TABLE)
"""Every normalised name, in the table's order."""

ITEMSIZE = MappingProxyType({name: size for name, size, _ in _TABLE})
"""Bytes an element takes, by normalised name."""

_ALIASES = MappingProxyType(
    {alias: name for name, _, others in _TABLE for alias in (name, *others.split())}
    | {alias.lower(): name for name, _, others in _TABLE for alias in (name, *others.split())}
)
_QUALIFIER = re.compile(r"^(?:torch\.|c10::|at::|std::)|\s+")


def normalise(name: str | None) -> str | None:
    """The one name of an element type, such as ``float32`` for ``Float``, ``float``, ``f32`` or ``torch.float32``.

    Returns null for a null, for what is not an element type (``TensorList``, ``Scalar``) and for unknown names.
    """
    if not name:
        return None
    bare = _QUALIFIER.sub("", name)
    found = _ALIASES.get(bare)
    return found if found is not None else _ALIASES.get(bare.lower())


def itemsize(name: str | None) -> int | None:
    """Bytes of one element of the named type, whatever naming it uses; null when unknown."""
    known = normalise(name)
    return None if known is None else ITEMSIZE[known]
