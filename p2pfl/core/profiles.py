"""Profiles: how far a node may trust its neighbors, and what follows from that.

The conservative profile assumes that no neighbor lies: each exchange moves both models. In the robust profile up to b
neighbors of a node may lie. Exchanges then move no model, because clipping a liar's model is incompatible with
conserving the sum; a rule mixes once per round. No other part of the core asks which profile it has.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from statistics import median
from typing import ClassVar, final

from p2pfl.core.facts import Facts
from p2pfl.core.staleness import Turns, most_at_once


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile(ABC):
    """A profile: `Conservative` or `Robust`."""

    mixes_by_rule: ClassVar[bool]
    """True if a rule mixes after the exchanges of a round; otherwise each exchange mixes by itself."""
    keeps_flows: ClassVar[bool]
    """True if edges keep flows, so that all members must learn who has lost its memory and begun a new life."""

    @property
    @abstractmethod
    def words_needed(self) -> int:
        """How many neighbors must say something before a node believes it."""

    @property
    @abstractmethod
    def neighbors_needed(self) -> int:
        """How many neighbors a median or a rule needs so that liars cannot choose the result."""

    @property
    @abstractmethod
    def condition(self) -> str:
        """The condition that keeps a rule from mixing, worded for the user."""

    @abstractmethod
    def gamma_of(self, peer: int) -> float:
        """Return the factor that damps an exchange with this neighbor; at 0 the exchange moves no model."""

    def weight_of(self, peer: int, facts: Facts) -> float:
        """Return a_i for an exchange with this neighbor: this node's bound on k, in samples."""
        return facts.weight

    def samples_behind(self, weight: float, peer: int, facts: Facts) -> float:
        """Return the number of samples with which `weight_of` was computed."""
        return weight * (facts.degree + 1)

    @abstractmethod
    def degree(self, turns: Mapping[int, Turns]) -> int:
        """Return how many edges share the node's weight in one round; `turns` has the turns of each neighbor."""

    @abstractmethod
    def whole(self, begun: int, members: int) -> int:
        """Return the number of members of which half must be through, given that `begun` members are known to have
        begun.
        """

    @abstractmethod
    def told_pace_s(self, own_s: float, gained_s: float, mixed_s: float) -> float:
        """Return the pace to send to neighbors, in seconds per local step.

        The node's own pace is `own_s` now, and was `gained_s` lower before.
        """

    @abstractmethod
    def usual_pace_s(self, own_s: float, mixed_s: float, neighbors_s: Iterable[float]) -> float:
        """Return the pace with which to compare the node's own, in seconds per local step.

        A value of 0 in `neighbors_s` means that a neighbor's pace is not known yet.
        """


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Conservative(Profile):
    """The default: every exchange conserves `sum n_i x_i`."""

    mixes_by_rule = False
    keeps_flows = True
    words_needed = 1
    neighbors_needed = 0
    condition = ""

    gamma: float = 1.0
    gammas: Mapping[int, float] = field(default_factory=dict)
    """The gamma of each neighbor whose value differs from `gamma`."""
    shares: Mapping[int, float] = field(default_factory=dict)
    """The mixing weight w of each neighbor's edge, the same at both its ends, if the graph's file has weights. Those of
    a node add up to at most 1, and none is above 1/2.
    """

    def weight_of(self, peer: int, facts: Facts) -> float:
        """Return a_i = n_i w_ij, or n_i/(deg_i+1) without weights.

        Both ends take the smaller of a_i and a_j, so k = min(n_i, n_j) w_ij is the same at both, k/n_i + k/n_j <= 1,
        and the exchanges of one round move a node by at most the sum of its weights.
        """
        share = self.shares.get(peer)
        return facts.weight if share is None else facts.samples * share

    def samples_behind(self, weight: float, peer: int, facts: Facts) -> float:
        share = self.shares.get(peer)
        return weight * (facts.degree + 1) if share is None else weight / share

    def gamma_of(self, peer: int) -> float:
        return self.gammas.get(peer, self.gamma)

    def degree(self, turns: Mapping[int, Turns]) -> int:
        return most_at_once(turns)

    def whole(self, begun: int, members: int) -> int:
        return begun

    def told_pace_s(self, own_s: float, gained_s: float, mixed_s: float) -> float:
        """Return the mixed estimate, by dynamic average consensus: it includes the gain in the node's own figure."""
        return max(0.0, mixed_s + gained_s)

    def usual_pace_s(self, own_s: float, mixed_s: float, neighbors_s: Iterable[float]) -> float:
        return mixed_s


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Robust(Profile):
    """Up to b = `liars` neighbors of a node may lie. With 2 b neighbors or fewer, the liars could be half of them."""

    mixes_by_rule = True
    keeps_flows = False

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
