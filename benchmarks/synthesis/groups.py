"""Process groups: which ranks, under which name, created in which order.

torch numbers groups with one counter for the whole world when every rank calls `new_group` for every group
(torch/distributed/distributed_c10d.py `_process_group_name`), so a rank's own names have gaps as wide as the number of
its sibling groups.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod


@dataclass(frozen=True)
class Group:
    """One process group, ranks in group order."""

    name: str
    desc: str
    ranks: Sequence[int]
    backend: str = "cuda:nccl"

    @cached_property
    def size(self) -> int:
        """How many ranks are in it."""
        return len(self.ranks)

    @cached_property
    def stride(self) -> int | None:
        """The distance of neighbours, or None where it is not constant."""
        if self.size < 2:
            return 0
        steps = {b - a for a, b in zip(self.ranks, self.ranks[1:], strict=False)}
        return steps.pop() if len(steps) == 1 else None


@dataclass(frozen=True)
class Mesh:
    """Ranks laid out along named axes, fastest axis first."""

    axes: Mapping[str, int]

    @property
    def world(self) -> int:
        """How many ranks there are."""
        return prod(self.axes.values())

    def coordinates(self, rank: int) -> dict[str, int]:
        """Where a rank is."""
        found = {}
        for axis, size in self.axes.items():
            rank, found[axis] = divmod(rank, size)
        return found

    def rank(self, at: Mapping[str, int]) -> int:
        """Who is there."""
        found, stride = 0, 1
        for axis, size in self.axes.items():
            found += at[axis] * stride
            stride *= size
        return found

    def members(self, rank: int, dims: Iterable[str]) -> tuple[int, ...]:
        """The ranks that differ from a rank along the given axes only, the fastest axis first."""
        at, wanted = self.coordinates(rank), set(dims)
        ranks = [0]
        stride = 1
        for axis, size in self.axes.items():
            steps = range(size) if axis in wanted else (at[axis],)
            ranks = [base + step * stride for step in steps for base in ranks]
            stride *= size
        return tuple(ranks)

    def index(self, rank: int, dims: Iterable[str]) -> int:
        """Which of the groups along the given axes a rank is in, groups counted along the other axes, fastest first.

        The order of Megatron-LM's `RankGenerator.get_ranks` (megatron/core/parallel_state.py).
        """
        at, wanted = self.coordinates(rank), set(dims)
        found, stride = 0, 1
        for axis, size in self.axes.items():
            if axis not in wanted:
                found += at[axis] * stride
                stride *= size
        return found

    def device_mesh_index(self, rank: int, dim: str) -> int:
        """As `index`, in the order of `DeviceMesh`: last axis swapped with ``dim`` and rows counted.

        torch/distributed/device_mesh.py, `pg_ranks_by_dim = mesh.swapdims(-1, dim).reshape(-1, size)`.
        """
        at = self.coordinates(rank)
        rows = list(self.axes)[::-1]
        place = rows.index(dim)
        rows[place], rows[-1] = rows[-1], rows[place]
        found = 0
        for axis in rows[:-1]:
            found = found * self.axes[axis] + at[axis]
        return found

    def count(self, dims: Iterable[str]) -> int:
        """How many groups there are along the given axes."""
        wanted = set(dims)
        return prod(size for axis, size in self.axes.items() if axis not in wanted)


class Registry:
    """The groups of one rank, numbered as torch numbers them."""

    def __init__(self, rank: int, world: int, backend: str = "cuda:nccl") -> None:
        self.rank, self.world, self.backend = rank, world, backend
        self.count = 0
        self.own: list[Group] = []
        self.default = self.next("default_pg", range(world))

    def next(
        self, desc: str, ranks: Sequence[int], index: int = 0, total: int = 1, backend: str | None = None
    ) -> Group:
        """Create a family of ``total`` groups, of which this rank is in number ``index``."""
        group = Group(str(self.count + index), desc, ranks, backend or self.backend)
        self.own.append(group)
        self.count += total
        return group

    def skip(self, total: int) -> None:
        """Groups that this rank is in none of."""
        self.count += total

    def along(self, mesh: Mesh, dims: Iterable[str], desc: str, backend: str | None = None) -> Group:
        """A family along the axes of a mesh, in Megatron's order."""
        dims = tuple(dims)
        return self.next(
            desc, mesh.members(self.rank, dims), mesh.index(self.rank, dims), mesh.count(dims), backend=backend
        )

    def device_mesh(self, mesh: Mesh, dim: str, desc: str | None = None, backend: str | None = None) -> Group:
        """The group of one dimension of a `DeviceMesh`; the default group where it spans the world."""
        if mesh.axes[dim] == self.world:
            return self.default
        return self.next(
            desc or f"mesh_{dim}",
            mesh.members(self.rank, (dim,)),
            mesh.device_mesh_index(self.rank, dim),
            mesh.count((dim,)),
            backend=backend,
        )

    @property
    def used_count(self) -> int:
        """`pg_count` of the header: a counter of the process, not the length of the list."""
        return self.count
