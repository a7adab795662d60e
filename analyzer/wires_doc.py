"""What the document says of wires: communicators as NCCL's logs and the plugins of its profiler show them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from analyzer.model_sources import WireRow, WiresDoc
from analyzer.words import plural
from heuristics.links import link_over

if TYPE_CHECKING:
    from analyzer.summary.model import RankSummary
    from analyzer.witnesses import Sources
    from heuristics.wires import Wires
    from parsers.profiled import ProfilerWitness


@dataclass(frozen=True)
class _One:
    """One communicator; ``borrowed`` where its wires are those of others."""

    size: int | None
    nodes: int | None
    link: str | None
    intra: str | None = None
    inter: str | None = None
    direct: bool | None = None
    borrowed: bool = False
    transports: tuple[str, ...] = ()
    nics: tuple[int, ...] = ()
    ranks: tuple[int, ...] | None = None
    evidence: tuple[str, ...] = ()

    @property
    def kind(self) -> tuple[object, ...]:
        """What communicators of one row have in common."""
        return (self.size, self.nodes, self.link, self.intra, self.inter, self.direct)


def wires_document(sources: Sources) -> WiresDoc | None:
    """The wires of a job; None where no source tells of any communicator's."""
    wires = sources.wires
    logged = dict(_logged(wires)) if wires is not None else {}
    counted = {name: one for name, one in _counted(sources.given).items() if name not in logged}
    every = [*logged.values(), *counted.values()]
    if not every:
        return None
    logs = wires.logs if wires is not None else ()
    libraries = {f"{log.library or 'nccl'} {log.version or 'of unknown version'}" for log in logs}
    networks = {name for log in logs for name in log.processes.column("network").to_pylist() if name}
    settings: dict[str, set[str]] = {}
    for log in logs:
        for name, values in log.settings.items():
            settings.setdefault(name, set()).update(values)
    formats = {rank.format for rank in sources.given if rank.log is not None or _profiler(rank) is not None}
    return WiresDoc(
        sources=sorted(formats),
        libraries=sorted(libraries),
        networks=sorted(networks),
        hosts=_hosts(wires) if wires is not None else {},
        settings={name: sorted(values) for name, values in sorted(settings.items())},
        communicators=_rows(every),
    )


def _logged(wires: Wires) -> Iterator[tuple[str, _One]]:
    from heuristics.wires import UNLOGGED, GroupLinks

    for name, one in wires.communicators.items():
        rows = wires.connections(name)
        said = wires.group(None, name) if one.size > 1 else GroupLinks(None, None, None)
        yield (
            name,
            _One(
                size=one.size,
                nodes=one.nodes,
                link=one.link,
                intra=said.intra,
                inter=said.inter,
                direct=said.direct,
                borrowed=UNLOGGED in said.evidence,
                transports=tuple(sorted({_transport(row) for row in rows})),
                nics=tuple(sorted({row["nic"] for row in rows if row["nic"] is not None})),
                ranks=one.ranks,
                evidence=tuple(sentence for sentence in said.evidence if sentence != UNLOGGED),
            ),
        )


def _transport(row: Mapping[str, Any]) -> str:
    """A connection in the words of the log."""
    parts = [row["kind"].upper(), row["how"], "GDRDMA" if row["gdr"] else None]
    return "/".join(part for part in parts if part)


def _profiler(rank: RankSummary) -> ProfilerWitness | None:
    """What a profiler plugin said of its communicators; None of any other source."""
    if rank.witness is None:
        return None
    from parsers.profiled import ProfilerWitness

    return rank.witness if isinstance(rank.witness, ProfilerWitness) and rank.witness.own_ranks else None


def _counted(given: Sequence[RankSummary]) -> dict[str, _One]:
    """Communicators of which a profiler tells the size, how many nodes they span, or that they use a network."""
    found: dict[str, _One] = {}
    peers: dict[str, set[int]] = {}
    for rank in given:
        witness = _profiler(rank)
        if witness is None:
            continue
        for row in rank.groups.select(["name", "size", "ranks"]).to_pylist():
            name, size = row["name"] or "", row["size"]
            if name not in witness.own_ranks:
                continue
            peers.setdefault(name, set()).update(witness.networked.get(name, ()))
            spans = witness.nodes.get(name)
            said = "the profiler names no wire" if spans is None else "the profiler counts nodes and names no wire"
            ranks = tuple(sorted(row["ranks"])) if row["ranks"] else None
            found.setdefault(name, _One(size, spans, link_over(size, spans), ranks=ranks, evidence=(said,)))
    told = {name: one for name, one in found.items() if peers[name] or one.size is not None or one.nodes is not None}
    return {name: _over_network(one, peers[name]) for name, one in told.items()}


def _over_network(one: _One, peers: set[int]) -> _One:
    if not peers:
        return one
    said = f"NCCL's proxy thread moved data for {plural(len(peers), 'rank')}, as it does over a network"
    return replace(one, transports=("PROXY",), evidence=(*one.evidence, said))


def _hosts(wires: Wires) -> dict[str, list[int]]:
    hosts: dict[str, list[int]] = {}
    for log in wires.logs:
        for row in log.processes.select(["host", "rank"]).to_pylist():
            own = hosts.setdefault(row["host"], [])
            if row["rank"] is not None and row["rank"] not in own:
                own.append(row["rank"])
    return {
        host: sorted(ranks) for host, ranks in sorted(hosts.items(), key=lambda item: (min(item[1], default=0), item))
    }


def _rows(every: Sequence[_One]) -> list[WireRow]:
    """Communicators of one kind in one row, the largest first."""
    kinds: dict[tuple[object, ...], list[_One]] = {}
    for one in every:
        kinds.setdefault(one.kind, []).append(one)
    rows = [_row(ones) for ones in kinds.values()]
    return sorted(rows, key=lambda r: (-(r.size or 0), -(r.nodes or 0), -r.communicators, str(r.intra), str(r.inter)))


def _row(ones: Sequence[_One]) -> WireRow:
    first = ones[0]
    return WireRow(
        communicators=len(ones),
        unlogged=sum(one.borrowed for one in ones),
        size=first.size,
        nodes=first.nodes,
        link=first.link,
        intra=first.intra,
        inter=first.inter,
        gpudirect_rdma=first.direct,
        transports=sorted({name for one in ones for name in one.transports}),
        nics=sorted({nic for one in ones for nic in one.nics}),
        groups=sorted(list(one.ranks) for one in ones if one.ranks is not None),
        evidence=list(dict.fromkeys(sentence for one in ones for sentence in one.evidence)),
    )
