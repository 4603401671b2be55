"""Robust profile: when a node mixes by its rule, and with whom.

Exchanges move no model there, for clipping what a liar sends and conserving the sum exclude each other: they only tell
each end the other's model. After each round's exchanges one rule is applied to the own model and to the replicas of
the neighbors that are present. With no more than 2 b of them the b liars could be half: then nothing is mixed.
"""

from __future__ import annotations

from collections.abc import Mapping
from statistics import median

from p2pfl.core.edge import Edge
from p2pfl.core.effects import Alarm, Effect, Mix
from p2pfl.core.facts import Facts, Settings

FILLED = 2
"""transactions: the first after empty replicas carries a whole model, with an error 13 times its usual size."""


class Mixing:
    """`alone` counts the rounds that mixed with nobody, `mixed` the others."""

    def __init__(self, edges: Mapping[int, Edge], facts: Facts, settings: Settings) -> None:
        self.edges = edges
        self.facts = facts
        self.settings = settings
        self.mixed = self.alone = 0
        self.too_few = False

    def begin(self, elapsed_s: float) -> list[Effect]:
        """What to do once a round's exchanges are through: `Mix` is among it if there is something to mix."""
        if self.settings.liars is None:
            return []
        shares = {peer: share(edge) for peer, edge in self.edges.items()}
        present = tuple(peer for peer, part in shares.items() if part > 0.0)
        effects = self._tell(sum(edge.is_open for edge in self.edges.values()))
        if len(present) <= 2 * self.settings.liars:
            self.alone += 1
            return effects
        self.mixed += 1
        weights = tuple(shares[peer] for peer in present)
        return [*effects, Mix(peers=present, weights=weights, progress=self._progress(elapsed_s))]

    def _progress(self, elapsed_s: float) -> float:
        rounds = self.settings.rounds
        done = self.facts.rounds / rounds if rounds is not None else elapsed_s / (self.settings.time_s or 1.0)
        return min(1.0, done)

    def usual_pace_s(self, own_s: float) -> float:
        """The median of the own pace and of what the neighbors tell of theirs: no b of 2 b + 1 can move it far."""
        told = [edge.told.pace_s for edge in self.edges.values() if edge.is_open and edge.told is not None]
        return median([own_s, *told])

    def _tell(self, there: int) -> list[Effect]:
        """Once when there are too few, once when there are enough again."""
        liars, before = self.settings.liars or 0, self.too_few
        self.too_few = there <= 2 * liars
        if self.too_few == before:
            return []
        if self.too_few:
            text = f"{there} neighbors are there: with b = {liars} liars nothing is mixed below {2 * liars + 1}"
            return [Alarm(kind="too-few-neighbors", peer=None, text=text)]
        return [Alarm(kind="enough-neighbors", peer=None, text=f"{there} neighbors are there: mixing goes on")]


def share(edge: Edge) -> float:
    """a_ij s_j = min(a_i, a_j) s(tau) / n_i: at most 1/(deg_i+1) whatever the neighbor claims. 0 where it is not there.

    tau counts the edge's turns since the own version that the neighbor's replica held when it last sent.
    """
    told = edge.told
    if told is None or not edge.is_open or edge.record.seq < FILLED:
        return 0.0
    tau = edge.turns.between(told.echo, edge.facts.version)
    return min(edge.facts.weight, told.weight) / edge.facts.samples * edge.settings.staleness(tau)
