"""Derive the settings of cores from a federation file: from `[gossip]`, and from the diameter of the graph."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from p2pfl.aggregate import Rule, liars_of, make_rule
from p2pfl.config.model import FederationConfig
from p2pfl.config.stop import parse_stop
from p2pfl.core.profiles import Conservative, Robust
from p2pfl.core.settings import Settings
from p2pfl.core.staleness import parse_staleness

FARTHEST = 32
"""Nodes up to this many hops apart wait for each other to start; each further hop would cost one more message on every
edge.
"""

COLUMNS = 8192
"""The number of nodes to reach that are looked at together: a bit for each and node, twice."""
BLOCK = 32
"""The number of nodes whose neighbors are processed in one step."""


def rule_of(federation: FederationConfig) -> Rule | None:
    """Return the robust profile's rule, or None in the conservative profile.

    Raises UserError: it is the user's own and cannot be imported.
    """
    return make_rule(federation.gossip.rule, federation.path.parent)


def settings_of(
    federation: FederationConfig,
    *,
    hops: int,
    gammas: Mapping[int, float] | None = None,
    shares: Mapping[int, float] | None = None,
    least: int = 0,
    fragments: Mapping[int, int] | None = None,
) -> Settings:
    """Build the settings of one core. `hops` is the distance of the farthest member; `gammas` has, by neighbor, the
    values that differ from `gossip.gamma`, and `shares` the weights of the edges, if the graph has any; `least` is the
    number of neighbors that the rule itself needs; `fragments` counts those of a model, by neighbor without replicas.
    """
    training, gossip = federation.training, federation.gossip
    liars = liars_of(gossip.rule)
    return Settings(
        rounds=training.rounds,
        time_s=training.time_s,
        closing_rounds=training.closing_rounds,
        profile=Robust(liars=liars, least=least)
        if liars
        else Conservative(gamma=gossip.gamma, gammas=gammas or {}, shares=shares or {}),
        staleness=parse_staleness(gossip.staleness),
        speed_limit=training.speed_correction,
        stop=None if training.stop is None else parse_stop(training.stop),
        when_through=training.when_through,
        start_wait_s=gossip.start_wait_s,
        linger_s=gossip.linger_s,
        max_wait_s=gossip.max_wait_s,
        exchanges_per_s=gossip.exchanges_per_s,
        members=len(federation.members),
        retired=federation.retired,
        hops=hops,
        fragments=fragments or {},
        audit_every=gossip.audit_every,
    )


def shares_of(federation: FederationConfig, member: int) -> dict[int, float]:
    """Return the mixing weights of the member's edges by neighbor; empty if the graph's file has none."""
    return {i + j - member: weight for (i, j), weight in federation.edge_weights.items() if member in (i, j)}


def all_shares(federation: FederationConfig) -> list[dict[int, float]]:
    """Return `shares_of` for every member."""
    found: list[dict[int, float]] = [{} for _ in federation.members]
    for (i, j), weight in federation.edge_weights.items():
        found[i][j] = found[j][i] = weight
    return found


def hops(federation: FederationConfig, member: int) -> int:
    """Return the distance of the farthest node from `member`, between 1 and FARTHEST."""
    neighbors: list[list[int]] = [[] for _ in federation.members]
    for a, b in federation.edges:
        neighbors[a].append(b)
        neighbors[b].append(a)
    reached, rim, depth = {member}, [member], 0
    while rim and depth < FARTHEST:
        beyond = {peer for node in rim for peer in neighbors[node]} - reached
        reached |= beyond
        rim = list(beyond)
        depth += bool(beyond)
    return max(1, depth)


def all_hops(federation: FederationConfig) -> list[int]:
    """Compute `hops` for every member: the set of nodes reached, as bits, is joined with the neighbors' sets hop by
    hop, for some of the nodes to reach at a time.
    """
    count = len(federation.members)
    ends = np.array(federation.edges, dtype=np.int64).reshape(-1, 2)
    source, target = np.concatenate([ends, ends[:, ::-1], np.arange(count)[:, None].repeat(2, axis=1)]).T
    order = np.argsort(source, kind="stable")
    target, first = target[order], np.searchsorted(source[order], np.arange(count + 1))
    depth = np.ones(count, dtype=np.int64)
    for begin in range(0, count, COLUMNS):
        reached = np.zeros((count, (min(COLUMNS, count - begin) + 7) // 8), np.uint8)
        own = np.arange(begin, min(begin + COLUMNS, count))
        reached[own, (own - begin) // 8] = 1 << own % 8
        for hop in range(1, FARTHEST + 1):
            wider, grown = np.empty_like(reached), np.zeros(count, np.bool_)
            for low in range(0, count, BLOCK):  # the rows of all neighbors at once would be a gigabyte in a dense graph
                cuts = first[low : low + BLOCK + 1]
                some = reached[target[cuts[0] : cuts[-1]]]
                rows = cuts[: min(BLOCK, count - low)] - cuts[0]
                block = slice(low, low + BLOCK)
                wider[block] = np.bitwise_or.reduceat(some, rows, axis=0)
                grown[block] = (wider[block] != reached[block]).any(axis=1)
            if not grown.any():
                break
            depth[grown] = np.maximum(depth[grown], hop)
            reached = wider
    return [int(one) for one in depth]
