"""The parts of the result document (`analyzer.model`) that other sources than traces fill: logs, profilers of NCCL."""

from __future__ import annotations

from analyzer.doc import Doc


class WireRow(Doc, frozen=True, kw_only=True):
    """Communicators of as many ranks on as many nodes with the same wires."""

    communicators: int
    unlogged: int  # of these, how many connections are not in the log: judged by others of the same job
    size: int | None  # ranks of each
    nodes: int | None
    link: str | None  # intra_node | inter_node | mixed
    intra: str | None  # wire between ranks of one node: nvlink, xgmi, pcie, shm, ...
    inter: str | None  # wire between nodes: ib, roce, efa, tcp, nvlink, ...
    gpudirect_rdma: bool | None  # whether the network reads GPU memory itself
    transports: list[str]  # as logged: P2P/CUMEM, NET/IBext_v9/GDRDMA
    nics: list[int]  # numbers of the network devices in use
    groups: list[list[int]]  # global ranks of each whose members are all known
    evidence: list[str]


class WiresDoc(Doc, frozen=True, kw_only=True):
    """Over what the ranks are connected, as NCCL's logs and profilers of its plugins say."""

    sources: list[str]  # formats
    libraries: list[str]  # nccl 2.25.1
    networks: list[str]  # plugins in use: IBext_v9, Socket, ...
    hosts: dict[str, list[int]]  # ranks by host
    settings: dict[str, list[str]]  # NCCL_* variables that the log says were set
    communicators: list[WireRow]


class LoggedRow(Doc, frozen=True, kw_only=True):
    """Calls of one operation and size as a logger counted them, without groups or steps."""

    op: str
    caller: str | None  # the function that called it
    size_bytes: int | None
    size_error_bytes: int  # by how much rounding may have moved the size; 0 where it is exact
    calls: int | None
    total_us: float | None
    mean_us: float | None  # of the middle four fifths where the logger leaves the extremes out
    wait_us: float | None  # of the total: until the last rank was there
    algbw_gbps: float | None  # as the logger computes it
    busbw_gbps: float | None


class Logged(Doc, frozen=True, kw_only=True):
    """What a logger counted on one rank; its times are those of a run in which it waited for every call."""

    source: str  # the format
    path: str
    rank: int | None
    rows: list[LoggedRow]
