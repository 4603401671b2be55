"""How much an exchange counts: the weight that an end offers, and what staleness leaves of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from p2pfl.core.staleness import LIMIT

if TYPE_CHECKING:
    from p2pfl.core.edge import Edge

FILLED = 2
"""transactions: the first after empty replicas carries a whole model, with an error 13 times its usual size."""


def offer(edge: Edge) -> float:
    """a_i of the next request: n_i/(deg_i+1), or half of what the requests that are out have left of n_i.

    D counts from the model at the freeze, and moves the own model when the Reply comes. Were the shares a_i/n_i of
    all requests that are out to sum to more than 1, the model could be thrown past its neighbors, further each
    time. On a static graph at most deg_i are out, and they sum to deg_i/(deg_i+1). In a schedule deg_i counts the
    edges of one round, and neighbors in other rounds may ask for theirs at the same time: halving what is left
    keeps the sum below 1 whatever comes together. A neighbor without a session keeps nothing from the others: its
    D comes once, after the session has.
    """
    facts = edge.facts
    if facts.degree >= len(edge.siblings):
        return facts.weight
    out = [other.offered for other in edge.siblings.values() if other is not edge and other.is_out and other.offered]
    if len(out) < facts.degree:
        return facts.weight
    return min(facts.weight, max(0.0, facts.samples - sum(out)) / 2)


def stale_weight(edge: Edge, known: int | None) -> float:
    """s(tau), tau = turns of the edge since the own version that the peer's replica held when it last sent.

    On a static graph that is the number of rounds. In a schedule an edge that rests for P rounds is not late.
    """
    if known is None or edge.facts.joining:
        return 0.0
    edge.staleness = edge.turns.between(known, edge.facts.version)
    edge.staleness_count += 1
    edge.staleness_sum += edge.staleness
    edge.staleness_max = max(edge.staleness_max, edge.staleness)
    weight = edge.settings.staleness(edge.staleness)
    # An edge that once fell to zero must be able to come back.
    return max(weight, edge.settings.staleness(LIMIT)) if edge.record.last_factor_zero else weight


def share(edge: Edge) -> float:
    """a_ij s_j of the robust profile, min(a_i, a_j) s(tau) / n_i: at most 1/(deg_i+1) whatever the neighbor claims.

    0 where nothing is known that could be mixed. tau is the neighbor's as above, by what it told in the latest
    exchange; beyond the limit nothing counts under any staleness, or a replica from long ago would hold on for ever.
    """
    told = edge.told
    if told is None or not edge.is_open or is_young(edge):
        return 0.0
    tau = edge.turns.between(told.echo, edge.facts.version)
    if tau > LIMIT:
        return 0.0
    return min(edge.facts.weight, told.weight) / edge.facts.samples * edge.settings.staleness(tau)


def is_young(edge: Edge) -> bool:
    """Whether the replicas are not filled yet."""
    return edge.record.seq < FILLED
