"""The ledger of a node's privacy budget: spending is durable before the steps it pays for are computed.

A ledger may record more than was used, because a crash wastes the payment for the current round. It never records less
without saying so: a ledger known to lack entries is marked. It is kept twice, in the state and in a file beside the
key; `reconcile` combines the two. `learn.privacy` computes the epsilon of its steps.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from p2pfl.config.sections import MEMBER, PrivacyConfig
from p2pfl.learn.privacy.accounting import Spend

NAME_BITS = 53
ROUNDING = 1e-6
"""The allowed relative difference between two computations of one epsilon."""


class Promise(NamedTuple):
    """The figures that a person permits.

    `epsilon` is None if it follows from the noise and is not known yet; `noise` is None if it follows from epsilon.
    """

    unit: str
    epsilon: float | None
    delta: float
    noise: float | None = None

    @classmethod
    def in_file(cls, privacy: PrivacyConfig) -> Promise:
        return cls(privacy.unit, privacy.epsilon, privacy.delta, privacy.multiplier)

    def weaker_than(self, permitted: Promise) -> str:
        """Return, in words, the figures in which this promise is weaker; empty if there are none."""
        found = []
        if permitted.unit == MEMBER != self.unit:
            found.append(f"a {self.unit} is protected, where it is a {MEMBER}")
        if _above(self.epsilon, permitted.epsilon):
            found.append(f"epsilon {self.epsilon:g} in place of {permitted.epsilon:g}")
        if _above(self.delta, permitted.delta):
            found.append(f"delta {self.delta:g} in place of {permitted.delta:g}")
        if permitted.noise is not None and self.noise is None:
            found.append(f"no noise in place of {permitted.noise:g}")
        if _above(permitted.noise, self.noise):
            found.append(f"noise {self.noise:g} in place of {permitted.noise:g}")
        return ", ".join(found)


def _above(figure: float | None, bound: float | None) -> bool:
    return figure is not None and bound is not None and figure > bound * (1 + ROUNDING)


class Signed(NamedTuple):
    """A ledger's account, signed by its node for others.

    `order` and `name` identify one of the node's budgets; `steps` is the number of steps paid for.
    """

    order: int
    name: int
    steps: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Ledger:
    """The ledger of one budget.

    `unit` is what is protected, a row or the whole node; steps for one unit say nothing about the other. `word` is the
    permission that began the budget, unique to this ledger.
    """

    unit: str
    word: str
    spent: tuple[Spend, ...] = ()
    """Payments in order; consecutive ones of the same kind are merged."""
    is_whole: bool = True
    """True if the ledger is complete; False if data on disk were lost, so that more may have been spent."""
    order: int = 1
    """The number of this node's budgets known to have begun, including this one."""
    promise: Promise | None = None
    """The figures that the person permits.

    None if an earlier version began the budget, without a file beside the key.
    """
    raised_by: str = ""
    """The latest permission that extended the budget; empty if there is none."""
    signed: Signed | None = None
    """An account signed by this node that this ledger does not cover."""

    @property
    def latest_word(self) -> str:
        """The latest permission used; only a different one can extend this budget or begin the next."""
        return self.raised_by or self.word

    @property
    def steps(self) -> int:
        return sum(spend.steps for spend in self.spent)

    @property
    def has_paid(self) -> bool:
        """True if rounds are known to have been paid for, by this budget or an earlier one."""
        return bool(self.spent) or self.order > 1

    @property
    def account(self) -> Signed:
        """The account given to others, so that they can return it to the node if it has forgotten."""
        digest = hashlib.blake2b(self.word.encode(), digest_size=8, person=b"p2pfl-budget").digest()
        name = int.from_bytes(digest, "little") >> (64 - NAME_BITS)
        own = Signed(self.order, name, self.steps)
        return own if self.signed is None else max(own, self.signed)

    def as_recovered(self, *, private: bool, complete: bool) -> Ledger | None:
        """Return the ledger as it counts after being read from disk.

        `complete` is False if part of the disk's data was missing. Returns None for a node that is not private, because
        the ledger lacks its rounds.
        """
        if not private:
            return None
        return self if complete else replace(self, is_whole=False)

    def plus(self, spend: Spend) -> Ledger:
        *before, last = self.spent or (spend._replace(steps=0),)
        if (last.noise, last.rate) == (spend.noise, spend.rate):
            return replace(self, spent=(*before, spend._replace(steps=last.steps + spend.steps)))
        return replace(self, spent=(*self.spent, spend))

    def covers(self, other: Ledger) -> bool:
        """Return True if this ledger begins with everything that `other` has spent, in the same order."""
        if len(other.spent) > len(self.spent):
            return False
        *before, last = other.spent or (Spend(0.0, 0.0, 0),)
        here = self.spent[len(before)] if other.spent else last
        same = tuple(before) == self.spent[: len(before)] and last[:2] == here[:2]
        return same and last.steps <= here.steps

    def as_incomplete(self, signed: Signed | None = None) -> Ledger:
        """Return the ledger marked as incomplete; an account signed by the node may prove that more was spent."""
        return replace(self, is_whole=False, signed=signed or self.signed)

    def plain(self) -> dict[str, Any]:
        """Return the ledger as JSON values."""
        spent = [list(spend) for spend in self.spent]
        found = {"unit": self.unit, "word": self.word, "spent": spent, "is_whole": self.is_whole, "order": self.order}
        later = {"promise": self.promise, "signed": self.signed}
        found |= {"raised_by": self.raised_by} if self.raised_by else {}
        return found | {name: list(value) for name, value in later.items() if value is not None}

    @classmethod
    def of(cls, plain: Mapping[str, Any] | None) -> Ledger | None:
        """Return the ledger that `plain` converted to values; None for None."""
        if plain is None:
            return None
        found = {**plain, "spent": tuple(Spend(*spend) for spend in plain["spent"])}
        for name, kind in (("promise", Promise), ("signed", Signed)):
            found |= {name: kind(*plain[name])} if name in plain else {}
        return cls(**found)


def reconcile(state: Ledger | None, beside: Ledger | None) -> Ledger | None:
    """Choose between the ledger in the state and the one beside the key: return the one with more entries.

    Every payment is first written beside the key. A crash therefore leaves that ledger equal or ahead; if it is missing
    although there was one, or the two contradict each other, data on disk were lost.
    """
    if state is None:
        return beside
    if beside is None:
        return state if state.promise is None else state.as_incomplete()
    if state.word != beside.word:
        if state.order == beside.order:
            return state.as_incomplete()
        return max(state, beside, key=lambda ledger: ledger.order)
    more, less = (beside, state) if beside.covers(state) else (state, beside)
    return more if more.covers(less) and less.is_whole else more.as_incomplete(less.signed)
