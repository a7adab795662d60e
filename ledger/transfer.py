"""How long a call takes on the links of a cluster: the least it can take, and what it is expected to take.

For a group of n ranks, of which k share a fast domain, and a call in which one rank sends b bytes (the ledger's
convention; b = (n-1)/n·S for all_gather, reduce_scatter and all_to_all, twice that for all_reduce, S for send_recv):

========================  ==========================================  ==========================================
group                     least                                       expected
========================  ==========================================  ==========================================
inside a domain (k = n)   b / intra                                   latency + b / busbw
one rank a domain (k=1)   b / inter                                   latency + b / busbw
several domains, several  max(b·(n-k)/((n-1)·k) / inter,              latency + b / min(busbw of intra,
ranks in each             b / (intra + inter))                        k · busbw of inter)
all_to_all there          max(b·(n-k)/(n-1) / inter,                  latency + the same of the busbws
                          b·(k-1)/(n-1) / intra)
========================  ==========================================  ==========================================

Least: each domain must take in (n-k)/n·S over the network interfaces of its k ranks, however the algorithm divides it.
Where switches reduce (`Link.in_network`) an all_reduce crosses each link once: b is then S, n/(2(n-1)) of the above.
Expected: k rings cross each domain's edge side by side, one per network interface (NCCL, src/graph/search.cc).

Latency is `latency_us` plus the hops on the way: n-1 of a ring (one per domain crosses its edge), those of an
all-reduce's tree up and down, 2·log2(k) inside domains and 2·log2(n/k) between them, one of a message.
"""

from __future__ import annotations

from math import ceil, log2

from ledger.clusters import Cluster, Link

MESSAGES = ("send_recv",)


def least_us(cluster: Cluster, primitive: str, n: int, k: int, sent_bytes: float) -> float:
    """The time in µs below which no algorithm gets.

    Args:
        cluster: whose links.
        primitive: as in the contract.
        n: ranks of the group.
        k: the most of them that share a domain.
        sent_bytes: what one rank sends.
    """
    intra, inter = cluster.intra_node, cluster.inter_node
    sent = sent_bytes
    if k >= n or (primitive in MESSAGES and k > 1):
        return _us(sent * _once(primitive, n, intra), intra.gbps)
    if k == 1:
        return _us(sent * _once(primitive, n, inter), inter.gbps)
    if primitive == "all_to_all":
        return _exchange(n, k, sent, intra.gbps, inter.gbps)
    across = _us(sent * _once(primitive, n, inter) * (n - k) / ((n - 1) * k), inter.gbps)
    return max(across, _us(sent * _once(primitive, n, intra), intra.gbps + inter.gbps))


def expected_us(cluster: Cluster, primitive: str, n: int, k: int, sent_bytes: float) -> float:
    """The time in µs that is expected once everyone is there; arguments as of `least_us`."""
    intra, inter = cluster.intra_node, cluster.inter_node
    link = intra if k >= n else inter
    latency = _latency(cluster, primitive, n, k)
    if k >= n or k == 1 or primitive in MESSAGES:
        return latency + _us(sent_bytes, link.reached_gbps)
    if primitive == "all_to_all":
        return latency + _exchange(n, k, sent_bytes, intra.reached_gbps, inter.reached_gbps)
    return latency + _us(sent_bytes, min(intra.reached_gbps, k * inter.reached_gbps))


def line_rates(cluster: Cluster) -> dict[str, float]:
    """GB/s of one GPU per kind of link, as a whole host's groups see it: several network interfaces side by side."""
    intra, inter = cluster.intra_node.gbps, cluster.inter_node.gbps
    return {"intra_node": intra, "inter_node": inter, "mixed": min(intra, cluster.domain * inter)}


def _once(primitive: str, n: int, link: Link) -> float:
    """What switches that reduce leave of the bytes of an all-reduce."""
    return n / (2 * (n - 1)) if primitive == "all_reduce" and link.in_network and n > 1 else 1.0


def _exchange(n: int, k: int, sent: float, intra: float, inter: float) -> float:
    return max(_us(sent * (n - k) / (n - 1), inter), _us(sent * (k - 1) / (n - 1), intra))


def _latency(cluster: Cluster, primitive: str, n: int, k: int) -> float:
    """Latency of the whole way: hops inside domains and hops between them."""
    intra, inter = cluster.intra_node, cluster.inter_node
    link = intra if k >= n else inter
    if primitive in MESSAGES or n < 2:
        return link.latency_us + link.hop_us
    domains = ceil(n / k)
    if primitive == "all_reduce":
        near, far = 2 * ceil(log2(min(k, n))), 2 * ceil(log2(domains))
    else:
        far = min(domains, n - 1) if domains > 1 else 0
        near = n - 1 - far
    return link.latency_us + near * intra.hop_us + far * inter.hop_us


def _us(sent_bytes: float, gbps: float) -> float:
    return sent_bytes / (gbps * 1e3)
