"""Profiles: how far a node may trust its neighbors, and what follows from that.

The conservative profile assumes that nobody lies, and each exchange moves both models. In the robust profile up to b
neighbors of a node may lie. There exchanges move no model, for clipping a liar's model and conserving the sum exclude
each other; a rule mixes once in a round. No other part of the core asks which of the two profiles it is.
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
    """True if edges keep flows, so that everybody must hear who has lost its memory and begun a new life."""

    @property
    @abstractmethod
    def words_needed(self) -> int:
        """The number of neighbors that must say something before it is believed."""

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
        """The factor that damps an exchange with this neighbor; 0: it moves no model."""

    @abstractmethod
    def degree(self, turns: Mapping[int, Turns]) -> int:
        """The number of edges among which one round shares the own weight; `turns` has those of each neighbor."""

    @abstractmethod
    def whole(self, begun: int, members: int) -> int:
        """The number of members half of which must be through, if `begun` are known to have begun."""

    @abstractmethod
    def told_pace_s(self, own_s: float, gained_s: float, mixed_s: float) -> float:
        """The own pace to tell, in seconds per local step; it is `own_s` now and was `gained_s` less."""

    @abstractmethod
    def usual_pace_s(self, own_s: float, mixed_s: float, neighbors_s: Iterable[float]) -> float:
        """The pace to compare the own one with. 0 among `neighbors_s`: that neighbor's is not known yet."""


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
    """The values of those neighbors whose gamma differs from `gamma`."""

    def gamma_of(self, peer: int) -> float:
        return self.gammas.get(peer, self.gamma)

    def degree(self, turns: Mapping[int, Turns]) -> int:
        return most_at_once(turns)

    def whole(self, begun: int, members: int) -> int:
        return begun

    def told_pace_s(self, own_s: float, gained_s: float, mixed_s: float) -> float:
        """The mixed estimate, by dynamic average consensus: the gain of the own figure enters it."""
        return max(0.0, mixed_s + gained_s)

    def usual_pace_s(self, own_s: float, mixed_s: float, neighbors_s: Iterable[float]) -> float:
        return mixed_s


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Robust(Profile):
    """Up to `liars` neighbors of a node may lie: b. With no more than 2 b neighbors the liars could be half."""

    mixes_by_rule = True
    keeps_flows = False

    liars: int
    least: int = 0
    """The neighbors that the rule itself needs, where they are more than 2 b + 1."""

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
        """All neighbors: the rule mixes with them in each round, whatever edges it uses, and their weights share 1."""
        return len(turns)

    def whole(self, begun: int, members: int) -> int:
        return members

    def told_pace_s(self, own_s: float, gained_s: float, mixed_s: float) -> float:
        return own_s

    def usual_pace_s(self, own_s: float, mixed_s: float, neighbors_s: Iterable[float]) -> float:
        """The median of the own and the neighbors' pace, which b of 2 b + 1 cannot move far; the own if few are
        known.
        """
        known_s = [pace_s for pace_s in neighbors_s if pace_s > 0]
        return median([own_s, *known_s]) if len(known_s) >= self.neighbors_needed else own_s
