"""Robust profile: when a node mixes by its rule, and with whom.

Exchanges move no model there, for clipping what a liar sends and conserving the sum exclude each other: they only tell
each end the other's model. After each round's exchanges one rule is applied to the own model and to the replicas of
the neighbors that are present. With no more than 2 b of them the b liars could be half: then nothing is mixed.
"""

from __future__ import annotations

from collections.abc import Mapping

from p2pfl.core.edge import Edge
from p2pfl.core.effects import Alarm, Effect, Mix
from p2pfl.core.facts import Facts
from p2pfl.core.settings import Settings

GRACE = 4
"""rounds in a row without enough replicas, until it is told of although the sessions are there: at the beginning, and
after an edge began anew, replicas take two exchanges to fill."""


class Mixing:
    """`alone` counts the rounds that mixed with nobody, `mixed` the others; `too_few` is what was told last."""

    def __init__(self, edges: Mapping[int, Edge], facts: Facts, settings: Settings) -> None:
        self.edges = edges
        self.facts = facts
        self.settings = settings
        self.profile = settings.profile
        self.mixed = self.alone = 0
        self.too_few = False
        self._in_a_row = 0

    def begin(self, elapsed_s: float) -> list[Effect]:
        """What to do once a round's exchanges are through: `Mix` is among it if there is something to mix."""
        if not self.profile.mixes_by_rule:
            return []
        shares = {peer: edge.exchange.share() for peer, edge in self.edges.items()}
        present = tuple(peer for peer, part in shares.items() if part > 0.0)
        if not self.is_safe(len(present)):
            self.alone += 1
            self._in_a_row += 1
            return self._miss(len(present))
        self._in_a_row = 0
        weights = tuple(shares[peer] for peer in present)
        return [*self._find(len(present)), Mix(peers=present, weights=weights, progress=self._progress(elapsed_s))]

    def end(self, *, failed: bool) -> list[Effect]:
        """What was begun is done, or (`failed`) the rule gave no model: then the round has mixed with nobody."""
        self.mixed += not failed
        self.alone += failed
        if not failed:
            return []
        text = "the rule raised, or gave no finite model: nothing was mixed"
        return [Alarm(kind="mixing-failed", peer=None, text=text)]

    def is_safe(self, neighbors: int) -> bool:
        """Whether liars among so many cannot choose what comes out."""
        return neighbors >= self.profile.neighbors_needed

    def _progress(self, elapsed_s: float) -> float:
        rounds = self.settings.rounds
        done = self.facts.rounds / rounds if rounds is not None else elapsed_s / (self.settings.time_s or 1.0)
        return min(1.0, done)

    def _miss(self, present: int) -> list[Effect]:
        """Tell once that there are too few."""
        there = sum(edge.is_open for edge in self.edges.values())
        if self.too_few or (self.is_safe(there) and self._in_a_row < GRACE):
            return []
        self.too_few = True
        text = f"{there} neighbors are there, with fresh models of {present}: {self.profile.condition}"
        return [Alarm(kind="too-few-neighbors", peer=None, text=text)]

    def _find(self, present: int) -> list[Effect]:
        """Tell once that there are enough again."""
        if not self.too_few:
            return []
        self.too_few = False
        text = f"there are fresh models of {present} neighbors: mixing goes on"
        return [Alarm(kind="enough-neighbors", peer=None, text=text)]
