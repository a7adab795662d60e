"""Element sizes of the data types that travel, by their normalised names."""

from types import MappingProxyType

from ledger.errors import LedgerError

DTYPE_BYTES = MappingProxyType(
    {
        "float64": 8,
        "float32": 4,
        "bfloat16": 2,
        "float16": 2,
        "float8_e4m3fn": 1,
        "float8_e5m2": 1,
        "int64": 8,
        "int32": 4,
        "int16": 2,
        "int8": 1,
        "uint8": 1,
        "bool": 1,
    }
)
"""Bytes per element."""


def dtype_bytes(name: str) -> int:
    """Bytes of one element of ``name``.

    Raises:
        LedgerError: the name is not one of `DTYPE_BYTES`.
    """
    try:
        return DTYPE_BYTES[name]
    except KeyError:
        raise LedgerError(f"unknown dtype {name!r}; known: {', '.join(DTYPE_BYTES)}", key="dtype") from None
