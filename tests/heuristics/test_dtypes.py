"""Element types have one name and one width, whoever names them."""

from __future__ import annotations

import pytest

from heuristics.dtypes import ITEMSIZE, itemsize, normalise
from ledger.dtypes import DTYPE_BYTES


@pytest.mark.parametrize(
    ("written", "name", "size"),
    [
        ("BFloat16", "bfloat16", 2),
        ("c10::BFloat16", "bfloat16", 2),
        ("__nv_bfloat16", "bfloat16", 2),
        ("torch.float16", "float16", 2),
        ("Half", "float16", 2),
        ("Float", "float32", 4),
        ("float", "float32", 4),
        ("f64", "float64", 8),
        ("Long", "int64", 8),
        ("long int", "int64", 8),
        ("long", "int64", 8),
        ("Int", "int32", 4),
        ("unsigned char", "uint8", 1),
        ("signed char", "int8", 1),
        ("Bool", "bool", 1),
        ("Float8_e4m3fn", "float8_e4m3fn", 1),
        ("c10::Float8_e5m2", "float8_e5m2", 1),
        ("c10::complex<float>", "complex64", 8),
    ],
)
def test_each_spelling_has_one_name(written: str, name: str, size: int) -> None:
    assert normalise(written) == name
    assert itemsize(written) == size


@pytest.mark.parametrize("written", [None, "", "TensorList", "Scalar", "ScalarList", "quaternion"])
def test_what_is_no_element_type_has_no_name(written: str | None) -> None:
    assert normalise(written) is None
    assert itemsize(written) is None


def test_widths_are_those_of_the_ledger() -> None:
    assert {name: ITEMSIZE[name] for name in DTYPE_BYTES} == dict(DTYPE_BYTES)
