"""Lying neighbors, for reports and readers: how many a node tolerates under its rule, and which it has proven.

`p2pfl check`, a node's log and its status show how many a node tolerates. `topologies.metrics.byzantine` has the effect
of the graph, `aggregate` the rules, and the core the faults that count.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from p2pfl.config.cores import rule_of
from p2pfl.config.model import FederationConfig
from p2pfl.reporting.report import HeldAgainst, NodeReport


@dataclass(frozen=True, slots=True, kw_only=True)
class Bearing:
    """The number of malicious neighbors that one node tolerates. `liars` is the rule's b, 0 if it gives no protection.

    `needed`: the fewest neighbors with which it mixes, 2 b + 1 or more, because of 2 b the liars could be half.
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
        """The number of its neighbors that may lie; 0 for a node that never mixes, which none can harm or help."""
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
    """The tolerance of each member, in their order. Raises UserError: the rule is the user's own and cannot be
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
    """Write the first few names, and the number of the others."""
    told = ", ".join(federation.members[node].name for node in nodes[:most])
    return f"{told} and {len(nodes) - most} more" if len(nodes) > most else told


def held_against(nodes: Iterable[NodeReport]) -> list[HeldAgainst]:
    """Return one entry for each neighbor of which a node has proven a fault."""
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
    """Write the faults: `node3: payload 40, flood 2, told by 4 neighbors, quarantined by 3`; None where
    there is none.
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
