"""Message sizes from the arguments of operators, as PyTorch writes them into `Input Dims`."""

from __future__ import annotations

from typing import Any

import pytest

from heuristics.label import label
from tests.heuristics.traces import TraceMaker

LIST = "TensorList"


def _sizes(name: str, dims: list[list[int]], types: list[str], concrete: list[str] | None = None) -> tuple[Any, ...]:
    make = TraceMaker()
    layer = "c10d" if name.startswith("c10d::") else "functional"
    make.record(layer, name, 0, 50, input_dims=dims, input_types=types, concrete_inputs=concrete)
    columns = ["in_nelems", "out_nelems", "dtype", "shape", "group_size"]
    (row,) = zip(*label(make.done()).collectives.select(columns).to_pydict().values(), strict=True)
    return row


@pytest.mark.parametrize(
    ("name", "dims", "types", "sizes"),
    [
        # a list in place: every tensor of it counts, its element type is not recorded
        ("c10d::allreduce_", [[4, 8], [3], [], []], [LIST, "", ""], (35, 35, None, [4, 8], None)),
        ("c10d::_allgather_base_", [[8, 12], [1, 12], []], ["float", "float", ""], (12, 96, "float32", [1, 12], 8)),
        ("c10d::_reduce_scatter_base_", [[5], [20], []], ["c10::Half", "c10::Half", ""], (20, 5, "float16", [20], 4)),
        # two lists, equally long: outputs, then inputs
        (
            "c10d::reduce_scatter_tensor_coalesced_",
            [[2, 4], [3], [8, 4], [12], [], []],
            [LIST, LIST, "", ""],
            (44, 11, None, [8, 4], 4),
        ),
        # outputs as a list of lists are not recorded; the input is
        ("c10d::allgather_", [[], [4128], [], []], ["", LIST, "", "Scalar"], (4128, None, None, [4128], None)),
        ("c10d::scatter_", [[7], [], [], []], [LIST, "", "", "Scalar"], (None, 7, None, None, None)),
        ("c10d::alltoall_base_", [[6, 2], [8, 2], []], ["long int", "long int", ""], (16, 12, "int64", [8, 2], None)),
        # traces of 2023 write nothing for a list
        ("c10d::allreduce_", [[], [], [], []], [LIST, "", "", "Scalar"], (None, None, None, None, None)),
        # a scalar has no dimensions, but an element type
        ("_c10d_functional::all_reduce", [[], [], []], ["long int", "", ""], (1, 1, "int64", [], None)),
    ],
)
def test_sizes_of_operators(name: str, dims: list[list[int]], types: list[str], sizes: tuple[Any, ...]) -> None:
    assert _sizes(name, dims, types) == sizes


def test_the_group_size_is_an_argument_of_functional_collectives() -> None:
    gather = _sizes(
        "_c10d_functional::all_gather_into_tensor", [[2, 24], [], []], ["float", "Scalar", ""], ["", "4", ""]
    )
    assert gather == (48, 192, "float32", [2, 24], 4)
    scatter = _sizes(
        "_c10d_functional::reduce_scatter_tensor", [[8, 6], [], [], []], ["float", "", "Scalar", ""], ["", "", "2", ""]
    )
    assert scatter == (48, 24, "float32", [8, 6], 2)


def test_split_lists_are_arguments_of_exchanges() -> None:
    make = TraceMaker(rank=1, world_size=4, groups={"0": [0, 1, 2, 3]})
    make.record(
        "c10d",
        "c10d::alltoall_base_",
        0,
        50,
        input_dims=[[12, 2], [10, 2], [], [], []],
        input_types=["float", "float", "", "ScalarList", "ScalarList"],
        concrete_inputs=["", "", "", "[3, 3, 3, 3]", "[1, 2, 3, 4]"],
    )
    row = label(make.done()).collectives.to_pylist()[0]
    assert (row["in_split"], row["out_split"], row["group_size"]) == ([1, 2, 3, 4], [3, 3, 3, 3], 4)
    assert row["sent_bytes"] == (10 - 2) * 2 * 4


def test_a_fused_product_scatters_what_it_computes() -> None:
    make = TraceMaker()
    dims, types = [[32, 64], [64, 8], [], [], []], ["c10::BFloat16", "c10::BFloat16", "", "Scalar", ""]
    make.record("symm_mem", "symm_mem::fused_matmul_reduce_scatter", 0, 50, input_dims=dims, input_types=types)
    row = label(make.done()).collectives.to_pylist()[0]
    assert (row["primitive"], row["in_nelems"], row["dtype"]) == ("reduce_scatter", 32 * 8, "bfloat16")


@pytest.mark.parametrize(("name", "place"), [("c10d::broadcast_", 2), ("c10d::reduce_", 3)])
def test_the_root_is_an_argument(name: str, place: int) -> None:
    make = TraceMaker()
    concrete = [""] * 5
    concrete[place] = "3"
    make.record("c10d", name, 0, 50, input_dims=[[4]], input_types=[LIST], concrete_inputs=concrete)
    assert label(make.done()).collectives["root"].to_pylist() == [3]
