"""Profiles: how far a node may trust its neighbors, and what follows from that.

The conservative profile assumes that no neighbor lies: each exchange moves both models. In the robust profile up to b
neighbors of a node may lie. Exchanges then move no model, because clipping a liar's model is incompatible with
conserving the sum; a rule mixes once per round. No other part of the core asks which profile it has.

Both have the same attributes and methods; `Conservative` says what they mean.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from statistics import median
from typing import ClassVar

from p2pfl.core.facts import Facts
from p2pfl.core.staleness import Turns, most_at_once


@dataclass(frozen=True, slots=True, kw_only=True)
class Conservative:
    """The default: every exchange conserves `sum n_i x_i`."""

    mixes_by_rule: ClassVar = False
    """True if a rule mixes after the exchanges of a round; otherwise each exchange mixes by itself."""
    keeps_flows: ClassVar = True
    """True if edges keep flows, so that all members must learn who has lost its memory and begun a new life."""
    words_needed: ClassVar = 1
    """How many neighbors must say something before a node believes it."""
    neighbors_needed: ClassVar = 0
    """How many neighbors a median or a rule needs so that liars cannot choose the result."""
    condition: ClassVar = ""
    """The condition that keeps a rule from mixing, worded for the user."""

    gamma: float = 1.0
    gammas: Mapping[int, float] = field(default_factory=dict)
    """The gamma of each neighbor whose value differs from `gamma`."""
    shares: Mapping[int, float] = field(default_factory=dict)
    """The mixing weight w of each neighbor's edge, the same at both its ends, if the graph's file has weights. Those of
    a node add up to at most 1, and none is above 1/2.
    """

    def weight_of(self, peer: int, facts: Facts) -> float:
        """Return a_i for an exchange with this neighbor, in samples: n_i w_ij, or n_i/(deg_i+1) without weights.

        Both ends take the smaller of a_i and a_j, so k = min(n_i, n_j) w_ij is the same at both, k/n_i + k/n_j <= 1,
        and the exchanges of one round move a node by at most the sum of its weights.
        """
        share = self.shares.get(peer)
        return facts.weight if share is None else facts.samples * share

    def samples_behind(self, weight: float, peer: int, facts: Facts) -> float:
        """Return the number of samples with which `weight_of` was computed."""
        share = self.shares.get(peer)
        return weight * (facts.degree + 1) if share is None else weight / share

    def gamma_of(self, peer: int) -> float:
        """Return the factor that damps an exchange with this neighbor; at 0 the exchange moves no model."""
        return self.gammas.get(peer, self.gamma)

    def degree(self, turns: Mapping[int, Turns]) -> int:
        """Return how many edges share the node's weight in one round; `turns` has the turns of each neighbor."""
        return most_at_once(turns)

    def whole(self, begun: int, members: int) -> int:
        """Return the number of members of which half must be through, if `begun` are known to have begun."""
        return begun

    def told_pace_s(self, own_s: float, gained_s: float, mixed_s: float) -> float:
        """Return the pace to send to neighbors, in seconds per local step; the own one was `gained_s` lower before.

        By dynamic average consensus it is the mixed estimate, plus what the node's own figure has gained.
        """
        return max(0.0, mixed_s + gained_s)

    def usual_pace_s(self, own_s: float, mixed_s: float, neighbors_s: Iterable[float]) -> float:
        """Return the pace with which to compare the node's own, in seconds per local step.

        A value of 0 in `neighbors_s` means that a neighbor's pace is not known yet.
        """
        return mixed_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Robust:
    """Up to b = `liars` neighbors of a node may lie. With 2 b neighbors or fewer, the liars could be half of them."""

    mixes_by_rule: ClassVar = True
    keeps_flows: ClassVar = False

    liars: int
    least: int = 0
    """How many neighbors the rule itself needs, if more than 2 b + 1."""

    @property
    def words_needed(self) -> int:
        return self.liars + 1

    @property
    def neighbors_needed(self) -> int:
        return max(2 * self.liars + 1, self.least)

    @property
    def condition(self) -> str:
        liars = "1 liar" if self.liars == 1 else f"{self.liars} liars"
        return f"with {liars} among them nothing is mixed below {self.neighbors_needed}"

    def weight_of(self, peer: int, facts: Facts) -> float:
        return facts.weight

    def samples_behind(self, weight: float, peer: int, facts: Facts) -> float:
        return weight * (facts.degree + 1)

    def gamma_of(self, peer: int) -> float:
        return 0.0

    def degree(self, turns: Mapping[int, Turns]) -> int:
        """Return the number of all neighbors: the rule mixes with all of them in each round, with weights that add up
        to at most 1.
        """
        return len(turns)

    def whole(self, begun: int, members: int) -> int:
        return members

    def told_pace_s(self, own_s: float, gained_s: float, mixed_s: float) -> float:
        return own_s

    def usual_pace_s(self, own_s: float, mixed_s: float, neighbors_s: Iterable[float]) -> float:
        """Return the median of the node's own pace and its neighbors', which b of 2 b + 1 cannot move far.

        It is the node's own pace if too few neighbors' paces are known.
        """
        known_s = [pace_s for pace_s in neighbors_s if pace_s > 0]
        return median([own_s, *known_s]) if len(known_s) >= self.neighbors_needed else own_s


Profile = Conservative | Robust
