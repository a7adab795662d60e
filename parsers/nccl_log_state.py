"""What the lines of an NCCL log add up to: processes, their communicators, connections and calls."""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from parsers import nccl_log_lines as lines
from parsers.nccl_log_lines import Message, NetDevice, Transport

MAX_CALLS = 50_000_000


@dataclass(frozen=True)
class Connection:
    """One channel line: ranks are those of the communicator, which the line does not name."""

    how: Transport
    source: int
    target: int | None
    channel: int
    number: int | None  # 0 ring and tree, 1 messages
    receiving: bool

    @property
    def own(self) -> int:
        """The rank that printed the line."""
        return self.target if self.receiving and self.target is not None else self.source

    @property
    def highest(self) -> int:
        """The higher of the two ranks."""
        return max(self.source, self.target or 0)


@dataclass(eq=False)
class Comm:
    """One communicator as one rank of it has it (a communicator has one such record per member)."""

    process: Process
    pointer: str
    rank: int
    size: int
    device: int | None = None
    nvml_device: int | None = None
    bus_id: str | None = None
    comm_id: str | None = None
    parent: Comm | None = None
    split: int | None = None
    color: int | None = None
    key: int | None = None
    nodes: int | None = None
    local_ranks: int | None = None
    local_rank: int | None = None
    mnnvl: bool | None = None
    complete: bool = False
    closed: bool = False
    announced: bool = True  # by a line of its own; calls may refer to communicators whose making was not logged
    chunk: int | None = None
    path: str | None = None
    net_path: str | None = None
    nvls: bool = False

    @property
    def group(self) -> str:
        """What is equal on all members: the id; for splits that print none, where they come from.

        Members of one split have the same parent, number of split and color (init.cc: the child's hash is made of
        these); without the number, splits of one parent into the same color cannot be told apart.
        """
        if self.comm_id is not None:
            return self.comm_id
        if self.parent is not None:
            number = "" if self.split is None else f"/split{self.split}"
            return f"{self.parent.group}{number}/color{self.color}"
        return f"{self.process.host}:{self.process.pid}:{self.pointer}"


@dataclass(eq=False)
class Calls:
    """Columns of the calls of one process, in order."""

    comm: list[Comm] = field(default_factory=list)
    op: list[str] = field(default_factory=list)
    numbers: array[int] = field(default_factory=lambda: array("q"))  # count, type, root or peer, opCount: four a call
    stream: list[int] = field(default_factory=list)


@dataclass(eq=False)
class Process:
    """One process of the job."""

    host: str
    pid: int
    labels: Counter[int] = field(default_factory=Counter)
    comms: list[Comm] = field(default_factory=list)
    by_pointer: dict[str, Comm] = field(default_factory=dict)
    opening: dict[int, Comm] = field(default_factory=dict)  # thread -> the communicator that it is making
    waiting: list[tuple[int, Connection]] = field(default_factory=list)  # thread, and what it said
    devices: dict[tuple[str, int], NetDevice] = field(default_factory=dict)
    network: str | None = None
    fabric_state: int | None = None
    fabric_uuid: str | None = None
    architecture: str | None = None
    settings: dict[str, str] = field(default_factory=dict)
    calls: Calls = field(default_factory=Calls)

    def holds(self, rank: int, highest: int) -> list[Comm]:
        """The communicators in which this process is the given rank and that reach the highest one."""
        return [comm for comm in self.comms if comm.rank == rank and comm.size > highest]


Pair = tuple[str, int, int | None, Transport, int | None]
"""A connection: group, from rank, to rank, how, and NCCL's number of the connection (0 ring and tree, 1 messages)."""


class Collected:
    """Takes lines in any order of processes and keeps what they say."""

    def __init__(self) -> None:
        self.processes: dict[tuple[str, int], Process] = {}
        self.channels: dict[Pair, list[set[int]]] = {}
        self.algorithms: Counter[tuple[str | None, int, str, str | None]] = Counter()
        self.version: str | None = None
        self.library: str | None = None
        self.messages = 0
        self.torn = 0  # messages that begin like a known one, but are not whole
        self.unplaced = 0  # connections whose communicator is not certain
        self._kinds: tuple[tuple[bytes, Callable[[Process, Message], bool]], ...] = (
            (b" via ", self._channel),
            (b"opCount ", self._call),
            (b"- Init ", self._comm),
            (b"COMPLETE", self._comm),
            (b"nNodes", self._nodes),
            (b" Bytes -> ", self._algorithm),
            (b"Chunksize", self._chunk),
            (b"fabric UUID", self._fabric),
            (b"multicast support is av", self._nvls),
            (b"Pattern ", self._pattern),
            (b" : Using ", self._devices),
            (b"Using network", self._network),
            (b"set by environment to ", self._setting),
            (b"gfx", self._architecture),
        )

    def take(self, line: bytes) -> None:
        """Read one line."""
        if self.version is None and b"CCL version" in line:
            found = lines.VERSION.search(line) or lines.RCCL_VERSION.search(line)
            self.version = found[1].decode("utf-8", "replace") if found else None
            self.library = "rccl" if found and found.re is lines.RCCL_VERSION else "nccl" if found else None
        for message in lines.messages(line):
            self.messages += 1
            take = next((take for word, take in self._kinds if word in message.text), None)
            if take is None:
                continue
            key = (message.host, message.pid)
            process = self.processes.get(key)
            if process is None:
                process = self.processes[key] = Process(*key)
            if message.label is not None:
                process.labels[message.label] += 1
            if not take(process, message):
                self.torn += 1

    def finish(self) -> None:
        """Place what could not be placed when it was read; forget processes of torn names."""
        members: dict[str, dict[int, tuple[str, int]]] = {}
        for key, process in self.processes.items():
            for comm in process.comms:
                members.setdefault(comm.group, {})[comm.rank] = key
        for process in self.processes.values():
            for _, connection in process.waiting:
                self._connect_late(process, connection, members)
            process.waiting.clear()
        named = {pid: host for (host, pid), process in self.processes.items() if process.comms}
        self.processes = {
            key: process
            for key, process in self.processes.items()
            if process.comms or process.calls.op or key[1] not in named or not key[0].endswith(named[key[1]])
        }

    # -- one kind of message each; false where the message is not whole

    def _comm(self, process: Process, message: Message) -> bool:
        found = lines.COMM.match(message.text)
        if found is None:
            return b"comm 0x" not in message.text
        _, pointer, rank, size, device, nvml, bus, rest, state = found.groups()
        comm = process.by_pointer.get(pointer.decode("utf-8", "replace"))
        if state.startswith(b"Init"):
            said = lines.COMM_ID.search(rest)
            comm_id = said[1].decode("utf-8", "replace") if said else None
            known = comm is not None and not comm.closed and (comm.rank, comm.size) == (int(rank), int(size))
            if not known or comm is None or (comm.complete and comm.comm_id != comm_id):
                comm = Comm(process, pointer.decode("utf-8", "replace"), int(rank), int(size))
                process.by_pointer[comm.pointer] = comm
                process.comms.append(comm)
            self._fill(process, comm, comm_id, rest)
            comm.device, comm.bus_id = int(device), bus.decode("utf-8", "replace")
            comm.nvml_device = int(nvml) if nvml else None
            if state == b"Init START":
                process.opening[message.tid] = comm
            else:
                comm.complete = True
                self._place(process, message.tid, comm)
        elif comm is not None:
            comm.closed = True
        return True

    def _fill(self, process: Process, comm: Comm, comm_id: str | None, rest: bytes) -> None:
        parent = lines.PARENT.search(rest)
        comm.announced = True
        if parent is not None:
            comm.parent = process.by_pointer.get(parent[1].decode("utf-8", "replace"))
            comm.split = int(parent[2]) if parent[2] else None
            comm.color, comm.key = int(parent[3]), int(parent[4])
        # A split prints the id of the call that made its parent, or 0: not its own (init.cc, commIdHash).
        if comm_id is not None and int(comm_id, 16) and parent is None:
            comm.comm_id = comm_id

    def _place(self, process: Process, tid: int, comm: Comm) -> None:
        """A communicator is made: connections that its thread announced before belong to it (NCCL up to 2.17)."""
        if tid not in process.opening:
            mine = [connection for thread, connection in process.waiting if thread == tid]
            process.waiting = [item for item in process.waiting if item[0] != tid]
            for connection in mine:
                self._connect(comm, connection)
        process.opening[tid] = comm

    def _channel(self, process: Process, message: Message) -> bool:
        found = lines.CHANNEL.match(message.text)
        how = lines.transport(found[6].decode("utf-8", "replace")) if found else None
        if found is None or how is None:
            return False
        channel, number, source, target, side, _, pointer = found.groups()
        connection = Connection(
            how=how,
            source=int(source),
            target=int(target) if target else None,
            channel=int(channel),
            number=int(number) if number else None,
            receiving=side == b"receive",
        )
        comm = (
            process.by_pointer.get(pointer.decode("utf-8", "replace")) if pointer else process.opening.get(message.tid)
        )
        if comm is not None and comm.rank == connection.own and comm.size > connection.highest:
            self._connect(comm, connection)
        else:
            process.waiting.append((message.tid, connection))
        return True

    def _connect_late(
        self, process: Process, connection: Connection, members: dict[str, dict[int, tuple[str, int]]]
    ) -> None:
        """Connections made on first use, by another thread: on the newest communicator that fits.

        It is not certain where the communicators that fit have other processes at the two ends.
        """
        fits = process.holds(connection.own, connection.highest)
        ends = {
            (members[comm.group].get(connection.source), members[comm.group].get(connection.target or 0))
            for comm in fits
        }
        if len(ends) != 1:
            self.unplaced += 1
        if fits:
            self._connect(fits[-1], connection)

    def _connect(self, comm: Comm, connection: Connection) -> None:
        key = (comm.group, connection.source, connection.target, connection.how, connection.number)
        self.channels.setdefault(key, [set(), set()])[connection.receiving].add(connection.channel)

    def _call(self, process: Process, message: Message) -> bool:
        found = lines.CALL.match(message.text)
        if found is None:
            return False
        op, op_count, count, kind, _, root, pointer, size, stream, _ = found.groups()
        comm = process.by_pointer.get(pointer.decode("utf-8", "replace"))
        if comm is None or comm.size != int(size):
            comm = Comm(
                process, pointer.decode("utf-8", "replace"), -1, int(size), device=message.device, announced=False
            )
            process.by_pointer[comm.pointer] = comm
            process.comms.append(comm)
        calls = process.calls
        number, elements = int(op_count, 16), int(count)
        if max(number, elements) >= 2**63 or len(calls.op) >= MAX_CALLS:
            return False
        calls.comm.append(comm)
        calls.op.append(op.decode("utf-8", "replace"))
        calls.numbers.extend((elements, int(kind), int(root), number))
        calls.stream.append(0 if stream == b"(nil)" else int(stream, 16) % 2**63)
        return True

    def _nodes(self, process: Process, message: Message) -> bool:
        found = lines.NODES.match(message.text)
        comm = process.by_pointer.get(found[1].decode("utf-8", "replace")) if found else None
        if found is None:
            return False
        if comm is not None:
            comm.nodes, comm.local_ranks, comm.local_rank = int(found[4]), int(found[5]), int(found[6])
            comm.mnnvl = found[7] == b"1" if found[7] else None
        return True

    def _algorithm(self, process: Process, message: Message) -> bool:  # noqa: ARG002 (not of one process)
        found = lines.ALGORITHM.match(message.text)
        if found is None:
            return False
        function, size, algorithm, protocol, kernel = (
            None if part is None else part.decode("utf-8", "replace") for part in found.groups()
        )
        self.algorithms[function, int(size or 0), algorithm or kernel or "", protocol] += 1
        return True

    def _chunk(self, process: Process, message: Message) -> bool:
        found = lines.CHUNK.match(message.text)
        comm = process.opening.get(message.tid)
        if found is not None and comm is not None:
            comm.chunk = int(found[1])
        return found is not None

    def _fabric(self, process: Process, message: Message) -> bool:
        found = lines.FABRIC.match(message.text)
        if found is not None:
            process.fabric_uuid, process.fabric_state = found[1].decode("utf-8", "replace"), int(found[2])
        return found is not None

    def _nvls(self, process: Process, message: Message) -> bool:
        found = lines.NVLS.match(message.text)
        comm = process.opening.get(message.tid)
        if found is not None and comm is not None:
            comm.nvls = True
        return found is not None

    def _pattern(self, process: Process, message: Message) -> bool:
        found = lines.PATTERN.match(message.text)
        comm = process.opening.get(message.tid)
        if found is not None and comm is not None and found[1] == b"4":  # of the rings
            comm.path, comm.net_path = found[3].decode("utf-8", "replace"), found[4].decode("utf-8", "replace")
        return found is not None

    def _devices(self, process: Process, message: Message) -> bool:
        found = lines.DEVICES.match(message.text)
        if found is not None:
            for device in lines.devices(found[1].decode("utf-8", "replace").strip(), found[2]):
                process.devices[device.plugin, device.index] = device
        return found is not None or not message.text.startswith(b"NET/")

    def _network(self, process: Process, message: Message) -> bool:
        found = lines.NETWORK.match(message.text)
        if found is not None:
            process.network = found[1].decode("utf-8", "replace")
        return found is not None

    def _setting(self, process: Process, message: Message) -> bool:
        found = lines.SETTING.match(message.text)
        if found is not None:
            process.settings[found[1].decode("utf-8", "replace")] = found[2].decode("utf-8", "replace")
        return found is not None

    def _architecture(self, process: Process, message: Message) -> bool:
        found = lines.ARCHITECTURE.search(message.text)
        if found is not None:
            process.architecture = found[1].decode("utf-8", "replace")
        return True
