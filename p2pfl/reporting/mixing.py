"""How a federation mixes, for reports: the malicious neighbors that each node tolerates under its rule and against
which it has proof, and the traffic on the edges, with mistakes in the compressors.

`topologies.metrics.byzantine` computes the effect of the graph, `aggregate` has the rules, and the core defines the
faults that count. Bytes of a round are those of messages: the compressed models, with header and seal, and the short
messages by which neighbors ask for them. Vitals, new sessions, TCP and WebSocket are not counted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from p2pfl.aggregate import liars_of
from p2pfl.compress import Compressor, make_compressor, require_fit, require_library, require_replicas
from p2pfl.config.graph import rule_of
from p2pfl.config.model import Edges, FederationConfig, OwnNetwork
from p2pfl.core.messages import CHUNK_BYTES
from p2pfl.errors import UserError
from p2pfl.reporting.report import HeldAgainst, NodeReport


@dataclass(frozen=True, slots=True, kw_only=True)
class Bearing:
    """The number of malicious neighbors that one node tolerates. `liars` is the rule's b, 0 if it gives no protection.

    `needed` is the fewest neighbors with which it mixes: at least 2 b + 1, because b liars could be half of 2 b.
    """

    rule: str
    neighbors: int
    liars: int
    needed: int

    @property
    def mixes(self) -> bool:
        return self.neighbors >= self.needed

    @property
    def borne(self) -> int:
        """Return the number of its neighbors that may lie; 0 for a node that never mixes, because no neighbor can harm
        or help it.
        """
        return self.liars if self.mixes else 0

    def __str__(self) -> str:
        """Describe the tolerance in one sentence."""
        if self.liars and not self.mixes:
            return f"mixes with nobody: {self.rule} needs {self.needed} neighbors and has {self.neighbors}"
        borne = f"tolerates {count(self.liars, 'malicious neighbor')} of {self.neighbors}"
        if not self.liars:
            return f'{borne}: rule = "{self.rule}" trusts all of them'
        return f"{borne} under {self.rule}, and mixes while {self.needed} of them are connected"


def bearings(federation: FederationConfig) -> list[Bearing]:
    """Return the tolerance of each member, in order. Raises UserError: the rule is the user's own and cannot be
    imported.
    """
    rule, degrees = rule_of(federation), Counter(node for edge in federation.edges for node in edge)
    liars, needed = (0, 1) if rule is None else (rule.liars, rule.least)
    return [
        Bearing(rule=federation.gossip.rule, neighbors=degrees[node], liars=liars, needed=needed)
        for node in range(len(federation.members))
    ]


def count(number: int, what: str) -> str:
    """Write a number with its noun: `1 liar`, `2 liars`."""
    return f"{number} {what}{'' if number == 1 else 's'}"


def names(federation: FederationConfig, nodes: Sequence[int], most: int = 5) -> str:
    """Write the first few names, and how many others there are."""
    told = ", ".join(federation.members[node].name for node in nodes[:most])
    return f"{told} and {len(nodes) - most} more" if len(nodes) > most else told


def held_against(nodes: Iterable[NodeReport]) -> list[HeldAgainst]:
    """Return one entry for each neighbor against which a node has proven a fault."""
    return [
        HeldAgainst(
            node=node.name,
            neighbor=neighbor.name,
            standing=neighbor.standing,
            faults=neighbor.faults,
            quarantines=neighbor.quarantines,
        )
        for node in nodes
        for neighbor in node.neighbors or []
        if neighbor.faults
    ]


def in_words(held: Sequence[HeldAgainst]) -> str | None:
    """Describe the faults: `node3: payload 40, flood 2, told by 4 neighbors, quarantined by 3`; return None if there
    are none.
    """
    told = []
    for name in sorted({one.neighbor for one in held}):
        against = [one for one in held if one.neighbor == name]
        kinds: Counter[str] = Counter()
        for one in against:
            kinds.update(one.faults)
        faults = ", ".join(f"{kind} {number}" for kind, number in sorted(kinds.items()))
        away = sum(one.quarantines > 0 for one in against)
        quarantined = f", quarantined by {away}" if away else ""
        told.append(f"{name}: {faults}, told by {count(len(against), 'neighbor')}{quarantined}")
    return "; ".join(told) or None


VALUE_BYTES = 4
MESSAGE_BYTES = 100
"""Bytes around one model: header and seal take 70 to 85, its share of the messages that ask for exchanges the rest."""
SEAL_BYTES = 17
"""Bytes around each further chunk of a long message."""
BITS = 8


def compressor_mistakes(federation: FederationConfig, size: int | None = None) -> list[UserError]:
    """Return the mistakes in the common compressor and in those for single edges, for models of `size` values if the
    size is known.
    """
    found = []
    for key, spec in _named(federation):
        try:
            compressor = make_compressor(spec)
            require_library(compressor)
            if liars_of(federation.gossip.rule):
                require_replicas(compressor, federation.gossip.rule)
            if size is not None:
                require_fit(compressor, size)
        except UserError as error:
            error.file, error.key = str(federation.path), key
            found.append(error)
    return found


def _named(federation: FederationConfig) -> Iterator[tuple[str, str]]:
    yield "gossip.compressor", federation.gossip.compressor
    for place, spec in enumerate(federation.edge_compressors.values()):
        yield f"edge[{place}].compressor", spec


def compressor_figures(compressor: Compressor, size: int) -> dict[str, Any]:
    """Return the cost of one message for a model of `size` values, and the figures that the theory needs."""
    payload = compressor.size_bytes(size)
    return {
        "compressor": compressor.spec,
        "message_bytes": payload,
        "exact": compressor.fixed,
        "bits_per_parameter": BITS * payload / size if size else 0.0,
        "times_smaller": VALUE_BYTES * size / payload if payload else 1.0,
        "delta": compressor.delta(size),
        "gamma": compressor.gamma(size),
        "random": compressor.random,
    }


def traffic(federation: FederationConfig, size: int) -> dict[str, Any]:
    """Return the traffic in a federation whose models have `size` values and whose compressors are all valid.

    A node sends a compressed model to each neighbor in its own round, and another when that neighbor asks in its round.
    So the figures for a round are bounds, for one and for two exchanges on every edge. For a schedule they cover the
    edges of one round, on average over all nodes. If a compressor is not `exact`, its bytes are an upper bound.
    """
    names = [member.name for member in federation.members]
    edges = Counter(federation.compressor_of(*edge) for edge in federation.edges)
    specs = dict.fromkeys((federation.gossip.compressor, *federation.edge_compressors.values()))
    rows = {spec: {"edges": edges[spec], **compressor_figures(make_compressor(spec), size)} for spec in specs}
    sent = {edge: sealed_bytes(rows[federation.compressor_of(*edge)]["message_bytes"]) for edge in federation.edges}
    rounds = federation.schedule or (federation.edges,)
    busiest = max((_busiest(one, sent) for one in rounds), default=0)
    in_all = fmean(2 * sum(sent[edge] for edge in one) for one in rounds)
    plain = 2 * federation.edges_at_once * sealed_bytes(VALUE_BYTES * size)
    usual = rows[federation.gossip.compressor]
    return {
        "parameters": size,
        "model_bytes": VALUE_BYTES * size,
        "compressor": federation.gossip.compressor,
        "message_bytes": usual["message_bytes"],
        "exact": all(row["exact"] for row in rows.values()),
        "bytes_per_round_busiest_node": [busiest, 2 * busiest],
        "bytes_per_round_all_nodes": [round(in_all), round(2 * in_all)],
        "float32_bytes_per_round_all_nodes": [round(plain), round(2 * plain)],
        "times_smaller": plain / in_all if in_all else 1.0,
        "compressors": list(rows.values()),
        "edges": [
            {"between": [names[i], names[j]]}
            | {key: rows[spec][key] for key in ("compressor", "message_bytes", "exact")}
            for (i, j), spec in federation.edge_compressors.items()
        ],
    }


def slowest_send_s(federation: FederationConfig, index: int, own: OwnNetwork, size: int) -> float:
    """Return how long a node takes to send a model of `size` values to a neighbor, at the rates that its file states; 0
    if it states none.
    """
    seconds = [0.0]
    for peer in federation.neighbors(index):
        bits = BITS * sealed_bytes(make_compressor(federation.compressor_of(index, peer)).size_bytes(size))
        bounds = own.neighbors.get(federation.members[peer].name)
        rates = (own.max_kbit_s, None if bounds is None else bounds.max_kbit_s)
        seconds += [bits / (1000 * kbit_s) for kbit_s in rates if kbit_s]
    return max(seconds)


def sealed_bytes(payload: int) -> int:
    """Return the bytes of a message whose body has `payload` bytes."""
    return payload + MESSAGE_BYTES + SEAL_BYTES * (payload // CHUNK_BYTES)


def _busiest(edges: Edges, sent: dict[tuple[int, int], int]) -> int:
    """Return the most that one node sends to its neighbors, once to each."""
    by_node: Counter[int] = Counter()
    for edge in edges:
        for end in edge:
            by_node[end] += sent[edge]
    return max(by_node.values(), default=0)
