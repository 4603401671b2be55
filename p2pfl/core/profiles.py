"""Profiles: how far a node may trust its neighbors, and what follows from that.

The conservative profile assumes that no neighbor lies: each exchange moves both models. In the robust profile up to b
neighbors of a node may lie: exchanges move no model, because clipping a liar's model and conserving the sum exclude
each other, and a rule mixes once in a round. No other part of the core asks which of the two profiles it has.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from statistics import median
from typing import ClassVar, final

from p2pfl.core.staleness import Turns, most_at_once


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile(ABC):
    """A profile: `Conservative` or `Robust`."""

    mixes_by_rule: ClassVar[bool]
    """True if a rule mixes after the exchanges of a round; otherwise each exchange mixes by itself."""
    keeps_flows: ClassVar[bool]
    """True if edges keep flows, so that all members must learn which of them has lost its memory and begun a new life.
    """

    @property
    @abstractmethod
    def words_needed(self) -> int:
        """The number of neighbors that must say something before a node believes it."""

    @property
    @abstractmethod
    def neighbors_needed(self) -> int:
        """The number of neighbors that a median or a rule needs, so that liars cannot choose the result."""

    @property
    @abstractmethod
    def condition(self) -> str:
        """The condition that keeps a rule from mixing, in words for the user."""

    @abstractmethod
    def gamma_of(self, peer: int) -> float:
        """Return the factor that damps an exchange with this neighbor; 0: the exchange moves no model."""

    @abstractmethod
    def degree(self, turns: Mapping[int, Turns]) -> int:
        """Return the number of edges among which one round shares the node's weight; `turns` has the turns of each
        neighbor.
        """

    @abstractmethod
    def whole(self, begun: int, members: int) -> int:
        """Return the number of members half of which must be through, if `begun` members are known to have begun."""

    @abstractmethod
    def told_pace_s(self, own_s: float, gained_s: float, mixed_s: float) -> float:
        """Return the pace to send to neighbors, in seconds per local step.

        The node's own pace is `own_s` now, and was `gained_s` less before.
        """

    @abstractmethod
    def usual_pace_s(self, own_s: float, mixed_s: float, neighbors_s: Iterable[float]) -> float:
        """Return the pace with which to compare the node's own, in seconds per local step.

        A value of 0 among `neighbors_s` means that this neighbor's pace is not known yet.
        """


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Conservative(Profile):
    """The default: `sum n_i x_i` is conserved by every exchange."""

    mixes_by_rule = False
    keeps_flows = True
    words_needed = 1
    neighbors_needed = 0
    condition = ""

    gamma: float = 1.0
    gammas: Mapping[int, float] = field(default_factory=dict)
    """The gamma of each neighbor for which it differs from `gamma`."""

    def gamma_of(self, peer: int) -> float:
        return self.gammas.get(peer, self.gamma)

    def degree(self, turns: Mapping[int, Turns]) -> int:
        return most_at_once(turns)

    def whole(self, begun: int, members: int) -> int:
        return begun

    def told_pace_s(self, own_s: float, gained_s: float, mixed_s: float) -> float:
        """Return the mixed estimate, by dynamic average consensus: the gain of the node's own figure enters it."""
        return max(0.0, mixed_s + gained_s)

    def usual_pace_s(self, own_s: float, mixed_s: float, neighbors_s: Iterable[float]) -> float:
        return mixed_s


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Robust(Profile):
    """Up to b = `liars` neighbors of a node may lie. With no more than 2 b neighbors the liars could be half."""

    mixes_by_rule = True
    keeps_flows = False

    liars: int
    least: int = 0
    """The number of neighbors that the rule itself needs, if more than 2 b + 1."""

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
        """Return the number of all neighbors: in each round the rule mixes with all of them, and their weights add up
        to at most 1.
        """
        return len(turns)

    def whole(self, begun: int, members: int) -> int:
        return members

    def told_pace_s(self, own_s: float, gained_s: float, mixed_s: float) -> float:
        return own_s

    def usual_pace_s(self, own_s: float, mixed_s: float, neighbors_s: Iterable[float]) -> float:
        """Return the median of the own and the neighbors' pace, which b of 2 b + 1 cannot move far.

        It is the node's own pace if the pace of too few neighbors is known.
        """
        known_s = [pace_s for pace_s in neighbors_s if pace_s > 0]
        return median([own_s, *known_s]) if len(known_s) >= self.neighbors_needed else own_s
