"""The lines of an NCCL or RCCL log: who printed one, and what it says.

Logs of several processes share one stream, so a line may hold several messages or half of one. A message counts only
where it is whole; every expression is anchored and bounded, so that a line costs time in proportion to its length.

Sources: NVIDIA/nccl src/debug.cc (prefix), init.cc (communicators), transport/{p2p,shm,net,coll_net}.cc (channels),
enqueue.cc (calls, algorithms), graph/search.cc (patterns), transport/net_ib.cc and net_socket.cc (devices); ROCm/rccl.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

PREFIX = re.compile(
    rb"(?<![\w.\-])([\w.\-]{1,255}):(\d{1,10}):(\d{1,10}) (?:\[(\d{1,4})\] )?(?:\S{1,400}:\d{1,6} )?"
    rb"(?:\(\w{1,80}\) )?NCCL (INFO|WARN) "
)
"""``host:pid:tid [device] NCCL INFO``, before a WARN with the place in the source."""

_TELLING = re.compile(
    rb" via |opCount |COMPLETE|START|nNodes| Bytes -> |Using |Pattern |Chunksize|fabric UUID|multicast support is av"
    rb"|set by environment to |CCL version|gfx"
)
"""Words of the messages that are read: lines without any of them are passed over."""

_LABEL = re.compile(rb"\s{0,8}(?:(\d{1,7}): ?|\[\d{1,4},(\d{1,7})\]<\w{1,8}>:? ?|\[rank(\d{1,7})\]: ?)")
"""What launchers put before each line with the rank: ``srun --label``, ``mpirun --tag-output``, torch's loggers."""

VERSION = re.compile(rb"NCCL version (\d+\.\d+\.\d+)(?:\+(?:cuda|hip)(\d+\.\d+))?")
RCCL_VERSION = re.compile(rb"RCCL version ?: ?(\d+\.\d+\.\d+)")
COMM = re.compile(
    rb"(?:\[Rank \d{1,7}\] )?(?:(\w{1,40}) )?comm (0x[0-9a-f]{1,16}) rank (\d{1,7}) nranks (\d{1,7}) cudaDev (\d{1,4})"
    rb"(?: nvmlDev (\d{1,4}))? busId ([0-9a-f]{1,16})(.{0,300}?) ?- (Init START|Init COMPLETE|Destroy COMPLETE|"
    rb"Abort COMPLETE|Revoke COMPLETE)\s*$"
)
COMM_ID = re.compile(rb" commId (0x[0-9a-f]{1,16})")
PARENT = re.compile(
    rb" parent (0x[0-9a-f]{1,16})(?: (?:splitCount|childCount) (\d{1,9}))? color (-?\d{1,10}) key (-?\d{1,10})"
)
NODES = re.compile(
    rb"comm (0x[0-9a-f]{1,16}) rank (\d{1,7}) nRanks (\d{1,7}) nNodes (\d{1,6}) localRanks (\d{1,4}) "
    rb"localRank (\d{1,4})(?: MNNVL (\d))?\s*$"
)
CHANNEL = re.compile(
    rb"(?:Channel|Ring|CollNet) (\d{1,3})(?:/(\d{1,3}))? : (\d{1,7})(?:\[\w{1,16}\])? "
    rb"(?:-> (\d{1,7})(?:\[\w{1,16}\])? )?(?:\[(send|receive)\] )?"
    rb"via ((?:P2P|SHM|NET|COLLNET|direct)[^\n]{0,120}?)(?: comm (0x[0-9a-f]{1,16}) nRanks \d{1,7})?\s*$"
)
CALL = re.compile(
    rb"(\w{2,24}): opCount ([0-9a-f]{1,16}) sendbuff (?:0x[0-9a-f]{1,16}|\(nil\)) recvbuff (?:0x[0-9a-f]{1,16}|\(nil\))"
    rb"(?: acc \S{1,20})? count (\d{1,19}) datatype (\d{1,3}) op (\d{1,10}) root (-?\d{1,9}) comm (0x[0-9a-f]{1,16}) "
    rb"\[nranks=(\d{1,7})\] stream (0x[0-9a-f]{1,16}|\(nil\))(?: task \d{1,9} globalrank (\d{1,7}))?"
)
ALGORITHM = re.compile(
    rb"(?:(\w{2,24})(?: \[[\w ]{1,24}\])?: )?(\d{1,19}) Bytes -> "
    rb"(?:Algo (\w{1,24}) proto (\w{1,12})|Kernel ([\w.]{1,80}))"
)
PATTERN = re.compile(
    rb"Pattern (\d), crossNic \d, nChannels (\d{1,3}), (?:bw|speed) [\d./]{3,40}, type (\w{2,4})/(\w{2,4})"
)
CHUNK = re.compile(rb"P2P Chunksize set to (\d{1,12})\s*$")
FABRIC = re.compile(rb"MNNVL busId 0x[0-9a-f]{1,16} fabric UUID ([0-9a-f]{1,16}\.[0-9a-f]{1,16}) .{0,60}?state (\d)")
NVLS = re.compile(rb"NVLS multicast support is available on dev \d{1,4}")
SETTING = re.compile(rb"(NCCL_\w{1,60}) set by environment to (.{0,400}?)\.?\s*$")
ARCHITECTURE = re.compile(rb"\b(gfx[0-9a-f]{3,5})\b")
NETWORK = re.compile(rb"Using network (.{1,60}?)\s*$")
DEVICES = re.compile(rb"NET/([\w ]{1,24}) : Using (\[.{3,8000})")
_MERGED = re.compile(rb"\[(\d{1,3})\]=\{([^{}]{3,800})\}")
_DEVICE = re.compile(rb"\[(\d{1,3})\] ?([\w.\-]{1,64}):([\w.:]{1,48})(?:/(\w{2,8}))?")

_NET = re.compile(r"(NET|COLLNET)/(.+?)/(\d{1,4})(?:\((\d{1,7})\))?((?:/\w+|\(PCI\))*)\Z")

_P2P = re.compile(r"P2P/(IPC|CUMEM|direct pointer|MNNVL|indirect)(?:/\S{1,40})*\Z")
_SHM = re.compile(r"(?:SHM(?:/(?:direct|CE)){0,2}|direct shared memory)\Z")


@dataclass(frozen=True)
class Message:
    """One whole message, and who printed it."""

    host: str
    pid: int
    tid: int
    device: int | None
    label: int | None  # the rank, as the launcher wrote it before the line
    text: bytes


def messages(line: bytes) -> Iterator[Message]:
    """The messages of a line that may be of interest; the label before it belongs to the first of them."""
    if _TELLING.search(line) is None:
        return
    starts = list(PREFIX.finditer(line))
    for place, found in enumerate(starts):
        end = starts[place + 1].start() if place + 1 < len(starts) else len(line)
        host, pid, tid, device, _ = found.groups()
        label = _LABEL.fullmatch(line, 0, found.start()) if place == 0 and found.start() else None
        rank = next((int(group) for group in label.groups() if group is not None), None) if label else None
        yield Message(
            host.decode("utf-8", "replace"),
            int(pid),
            int(tid),
            int(device) if device else None,
            rank,
            line[found.end() : end],
        )


@dataclass(frozen=True)
class Transport:
    """How two ranks are connected, as a channel line says it.

    Attributes:
        kind: ``p2p`` (the other GPU's memory), ``shm`` (host memory), ``net``, or ``collnet`` (reduced in the network).
        how: for p2p ``IPC``, ``CUMEM``, ``direct pointer``, ``MNNVL``, ``indirect``; for networks the plugin's name.
        nic: number of the network device on its host.
        gdr: whether the network reads GPU memory itself.
        through: the rank whose device is used instead of the own (PXN).
        read: whether the receiver reads (``/read``), which NCCL does only over NVLink between GPUs of one A100 kind.
    """

    kind: str
    how: str
    nic: int | None = None
    gdr: bool | None = None
    through: int | None = None
    read: bool = False


def transport(text: str) -> Transport | None:
    """Read what follows ``via``; null where it is no known form."""
    text = text.strip()
    net = _NET.match(text)
    if net is not None:
        kind, plugin, nic, through, rest = net.groups()
        return Transport(kind.lower(), plugin, int(nic), "GDRDMA" in rest, int(through) if through else None)
    p2p = _P2P.match(text)
    if p2p is not None:
        return Transport("p2p", p2p[1], read="/read" in text)
    return Transport("shm", "direct") if _SHM.match(text) else None


@dataclass(frozen=True)
class NetDevice:
    """One network device that a process may use.

    Attributes:
        plugin: as in the line that lists it: ``IB``, ``Socket``, ``OFI``, ``gIB``, ...
        index: the number that channel lines refer to.
        name: of the adapter or interface.
        layer: ``IB``, ``RoCE``, ... as written; null where the line has none (sockets).
    """

    plugin: str
    index: int
    name: str
    layer: str | None


def devices(plugin: str, text: bytes) -> list[NetDevice]:
    """The devices of a ``NET/... : Using`` line; of ports that are used as one, the first stands for all."""
    found: dict[int, NetDevice] = {}
    for index, ports in _MERGED.findall(text):
        first = _DEVICE.search(ports)
        if first is not None:
            found[int(index)] = _device(plugin, int(index), first)
    for match in _DEVICE.finditer(_MERGED.sub(b"", text)):
        found.setdefault(int(match[1]), _device(plugin, int(match[1]), match))
    return [found[index] for index in sorted(found)]


def _device(plugin: str, index: int, match: re.Match[bytes]) -> NetDevice:
    layer = match[4].decode("utf-8", "replace") if match[4] else None
    return NetDevice(plugin, index, match[2].decode("utf-8", "replace"), layer)
