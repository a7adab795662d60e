"""Where sources of one job contradict each other: about who is who, who is in which group, and what was called.

Sources of one format that differ are two jobs in one folder, which is for whoever counts the ranks to say. Here sources
of different formats are held against each other.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import TYPE_CHECKING

from heuristics.call_conflicts import Said, differing_calls

if TYPE_CHECKING:
    from heuristics.account import Account


@dataclass(frozen=True)
class Conflict:
    """Two sources that contradict each other.

    Attributes:
        about: ``rank``, ``host``, ``world_size``, ``group``, ``communicator`` or ``calls``.
        sentence: what each says.
        paths: the files.
        ranks: whom it concerns.
    """

    about: str
    sentence: str
    paths: tuple[str, ...]
    ranks: tuple[int, ...] = ()


def conflicts(sources: Sequence[Account]) -> tuple[Conflict, ...]:
    """All contradictions between sources of different formats, each once."""
    if len({source.format for source in sources}) < 2:
        return ()
    rules = (_about_ranks, _about_hosts, _about_worlds, _about_groups, _about_communicators, _about_calls)
    return tuple(dict.fromkeys(conflict for rule in rules for conflict in rule(sources)))


def short(host: str | None) -> str | None:
    """A host's name without its domain."""
    return host.split(".", 1)[0].lower() if host else None


def _about_ranks(sources: Sequence[Account]) -> Iterator[Conflict]:
    """Processes that are one rank here and another there. A process with several GPUs may be several ranks."""
    by_process: dict[tuple[str, int], list[Account]] = {}
    for source in sources:
        one = source.identity
        if one.rank is not None and one.host and one.pid is not None:
            by_process.setdefault((short(one.host) or "", one.pid), []).append(source)
    for (host, pid), same in by_process.items():
        ranks: dict[str, set[int]] = {}
        for source in same:
            ranks.setdefault(source.format, set()).add(source.identity.rank if source.identity.rank is not None else -1)
        if any(not (a <= b or b <= a) for a, b in combinations(ranks.values(), 2)):
            yield _conflict("rank", f"process {pid} on {host} is", [(f"rank {s.identity.rank}", s) for s in same])


def _about_hosts(sources: Sequence[Account]) -> Iterator[Conflict]:
    by_rank: dict[int, list[Account]] = {}
    for source in sources:
        if source.identity.rank is not None and source.identity.host:
            by_rank.setdefault(source.identity.rank, []).append(source)
    for rank, same in by_rank.items():
        hosts: dict[str, set[str | None]] = {}
        for source in same:
            hosts.setdefault(source.format, set()).add(short(source.identity.host))
        if any(not a & b for a, b in combinations(hosts.values(), 2)):
            yield _conflict("host", f"rank {rank} is on", [(str(s.identity.host), s) for s in same])


def _about_worlds(sources: Sequence[Account]) -> Iterator[Conflict]:
    said: dict[tuple[str, int], Account] = {}
    for source in sources:
        if source.identity.world_size is not None:
            said.setdefault((source.format, source.identity.world_size), source)
    if len({form for form, _ in said}) > 1 and len({size for _, size in said}) > 1:
        yield _conflict("world_size", "the job has", [(f"{size} ranks", source) for (_, size), source in said.items()])


def _about_groups(sources: Sequence[Account]) -> Iterator[Conflict]:
    """Process groups of one name with other members in another source."""
    seen: dict[tuple[int, str], list[tuple[tuple[int, ...], Account]]] = {}
    for source in sources:
        if source.identity.rank is None:
            continue
        # torch.distributed may give one name to several groups (split_group), but each rank is in one of them.
        for row in source.groups.select(["name", "ranks"]).to_pylist():
            if row["name"] and row["ranks"]:
                seen.setdefault((source.identity.rank, row["name"]), []).append((tuple(sorted(row["ranks"])), source))
    for (rank, name), said in seen.items():
        if len({ranks for ranks, _ in said}) > 1 and len({source.format for _, source in said}) > 1:
            what = f"to rank {rank}, group {name} is"
            yield _conflict("group", what, [(_few(ranks), source) for ranks, source in said])


def _about_communicators(sources: Sequence[Account]) -> Iterator[Conflict]:
    """Communicators of one id with another size."""
    seen: dict[str, dict[int, Account]] = {}
    for source in sources:
        for row in source.groups.select(["name", "size"]).to_pylist():
            if row["name"] and row["name"].startswith("0x") and row["size"]:
                seen.setdefault(row["name"], {}).setdefault(row["size"], source)
    for name, sizes in seen.items():
        if len(sizes) > 1:
            said = [(f"{size} ranks", source) for size, source in sizes.items()]
            yield _conflict("communicator", f"communicator {name} has", said)


def _about_calls(sources: Sequence[Account]) -> Iterator[Conflict]:
    """Calls that one source shows and another, which lists the same rank's calls, does not or shows otherwise."""
    by_rank: dict[int, list[Account]] = {}
    for source in sources:
        if source.identity.rank is not None and source.collectives is not None and source.collectives.num_rows:
            by_rank.setdefault(source.identity.rank, []).append(source)
    found: dict[Hashable, list[tuple[int, Said, Account, Account]]] = {}
    for rank, same in by_rank.items():
        for one, other in combinations(same, 2):
            for said in differing_calls(one, other):
                found.setdefault((said.what, said.one, said.other), []).append((rank, said, one, other))
    for said_of in found.values():
        _, said, one, other = said_of[0]
        ranks = tuple(sorted(rank for rank, *_ in said_of))
        who = f"rank {ranks[0]}" if len(ranks) == 1 else f"ranks {_few(ranks)}"
        sentence = (
            f"{who}: {said.what} {said.one} in {one.path} ({one.format}), {said.other} in {other.path} ({other.format})"
        )
        yield Conflict("calls", sentence, (one.path, other.path), ranks)


def _conflict(about: str, what: str, said: Sequence[tuple[str, Account]]) -> Conflict:
    """One conflict, each of its sides once, with the first file that takes it."""
    sides: dict[str, Account] = {}
    for side, source in said:
        sides.setdefault(side, source)
    listed = ", ".join(f"{side} in {source.path} ({source.format})" for side, source in sides.items())
    ranks = {source.identity.rank for _, source in said if source.identity.rank is not None}
    return Conflict(
        about, f"{what} {listed}", tuple(dict.fromkeys(s.path for s in sides.values())), tuple(sorted(ranks))
    )


def _few(ranks: Sequence[int]) -> str:
    shown = ", ".join(map(str, ranks[:8]))
    return f"[{shown}, ... {len(ranks)} ranks]" if len(ranks) > 8 else f"[{shown}]"
