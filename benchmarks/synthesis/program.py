"""What one rank does, in the order in which its Python code asks for it.

A `Program` is a flat list of operations. Kernels go to a stream; a collective goes to its group's stream or to the
caller's; `Wait` makes the compute stream wait for one; marks open and close the profiler's ranges; `OnThread` says
which CPU thread asks. The simulator gives them times, the writer makes Kineto events of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TypeAlias

from benchmarks.synthesis.groups import Group

COMPUTE = "compute"
MAIN, AUTOGRAD = "main", "autograd"


@dataclass(slots=True)
class Kernel:
    """A compute kernel (or a copy on the device)."""

    name: str
    us: float
    op: str = "aten::mm"
    stream: str = COMPUTE
    bytes: int = 0  # of a copy


@dataclass(slots=True)
class Message:
    """One collective call as c10d records it; sizes in elements.

    ``words`` are the four names of a call: Kineto's ``Collective name``, the operator of ``c10d::``, what follows
    ``nccl:`` in the annotation, and the primitive that NCCL runs.
    """

    group: Group
    words: tuple[str, str, str, str]
    in_n: int
    out_n: int
    dtype: str
    functional: str | None = None  # _c10d_functional::...
    in_split: tuple[int, ...] = ()
    out_split: tuple[int, ...] = ()
    peer: int | None = None  # global rank of the other side
    root: int = 0
    shape: tuple[int, ...] | None = None  # of the input
    out_shape: tuple[int, ...] | None = None

    @property
    def primitive(self) -> str:
        """What NCCL runs: AllReduce, AllGather, ReduceScatter, Broadcast, Reduce, SendRecv."""
        return self.words[3]


@dataclass(slots=True)
class Launch:
    """One launch of communication: a collective, or several messages as one group.

    Attributes:
        messages: what it carries.
        stream: a stream of its own name, or None for the group's.
        is_async: asked for with ``async_op=True`` (or batched): never on the caller's stream.
        batched: `batch_isend_irecv`: one kernel, without arguments.
        recorded: went through c10d; else only the kernel is there (pynccl, custom kernels).
        kernel: the kernel's name, where it is not NCCL's.
        sizes_known: whether the kernel carries arguments.
        waits_compute: the communication starts after the compute that was asked for before it.
    """

    messages: tuple[Message, ...]
    stream: str | None = None
    is_async: bool = False
    batched: bool = False
    recorded: bool = True
    kernel: str | None = None
    sizes_known: bool = True
    waits_compute: bool = True


@dataclass(slots=True)
class Wait:
    """The compute stream waits for the launch at a place of the program."""

    launch: int
    stream: str = COMPUTE


@dataclass(slots=True)
class Begin:
    """A range of the profiler opens."""

    name: str
    category: str  # user_annotation | cpu_op


@dataclass(slots=True)
class End:
    """The innermost range closes."""


@dataclass(slots=True)
class OnThread:
    """From here another thread asks."""

    thread: str


@dataclass(slots=True)
class Synchronize:
    """The CPU waits for the GPU."""


@dataclass(slots=True)
class Idle:
    """The CPU is busy elsewhere (data loading, Python): for about that long, or exactly."""

    us: float
    exact: bool = False


Operation: TypeAlias = Kernel | Launch | Wait | Begin | End | OnThread | Synchronize | Idle


@dataclass
class Program:
    """The operations of one rank."""

    rank: int
    operations: list[Operation] = field(default_factory=list)
    groups: Sequence[Group] = ()
    group_count: int = 0
    unmarked: bool = False  # the program has no `ProfilerStep#` of its own; each step begins with an `Idle`

    def add(self, operation: Operation) -> int:
        """Append, and say where."""
        self.operations.append(operation)
        return len(self.operations) - 1

    def compute(self, name: str, us: float, op: str = "aten::mm", stream: str = COMPUTE) -> None:
        """A kernel."""
        self.add(Kernel(name, us, op, stream))

    def copy(self, name: str, size: int, op: str, stream: str) -> None:
        """A copy over NVLink, of so many bytes."""
        self.add(Kernel(name, 2.0 + size / 250e3, op, stream, size))

    def wait(self, launch: int | None) -> None:
        """The compute stream waits for a launch."""
        if launch is not None:
            self.add(Wait(launch))

    def add_wait(self, launch: int, stream: str | None) -> None:
        """Another stream (the compute stream where None) waits for a launch."""
        self.add(Wait(launch, stream or COMPUTE))

    @contextmanager
    def mark(self, name: str, category: str = "user_annotation") -> Iterator[None]:
        """A range around what is added inside."""
        self.add(Begin(name, category))
        yield
        self.add(End())

    @contextmanager
    def backward_thread(self) -> Iterator[None]:
        """What is added inside is asked for by autograd's thread."""
        self.add(OnThread(AUTOGRAD))
        yield
        self.add(OnThread(MAIN))

    def launch(self, *messages: Message, **how: object) -> int:
        """A launch; nothing waits for it yet."""
        return self.add(Launch(tuple(messages), **how))  # type: ignore[arg-type]

    def collective(self, message: Message, *, is_async: bool = False, stream: str | None = None) -> int:
        """A collective; where it is synchronous the compute stream waits for it at once."""
        place = self.launch(message, is_async=is_async, stream=stream)
        if not is_async and stream is None:
            self.wait(place)
        return place
