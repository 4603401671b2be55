"""What a node has spent of its privacy budget: durable before what was paid for is computed.

A ledger may say more than was used, for a crash wastes what was paid for the round under way. It never says less: one
that is known to lack something says so itself. What its steps amount to is for `learn.privacy`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from p2pfl.learn.privacy.accounting import Spend


@dataclass(frozen=True, slots=True, kw_only=True)
class Ledger:
    """`unit` is who is protected, a row or the whole node: steps of one unit say nothing of another.

    `word` names the person's word by which it began: no other ledger has the same.
    """

    unit: str
    word: str
    spent: tuple[Spend, ...] = ()
    """In the order in which it was spent; neighbors of one kind are one entry."""
    is_whole: bool = True
    """False: something that was on disk is gone, and more may have been spent than this."""

    def recovered(self, *, private: bool, complete: bool) -> Ledger | None:
        """What it is worth when it comes from a disk, on which not all was found unless that was `complete`. Rounds of
        a node that is not private are missing in it.
        """
        if not private:
            return None
        return self if complete else replace(self, is_whole=False)

    def plus(self, spend: Spend) -> Ledger:
        *before, last = self.spent or (spend._replace(steps=0),)
        if (last.noise, last.rate) == (spend.noise, spend.rate):
            return replace(self, spent=(*before, spend._replace(steps=last.steps + spend.steps)))
        return replace(self, spent=(*self.spent, spend))

    def plain(self) -> dict[str, Any]:
        """As JSON takes it."""
        spent = [list(spend) for spend in self.spent]
        return {"unit": self.unit, "word": self.word, "spent": spent, "is_whole": self.is_whole}

    @classmethod
    def of(cls, plain: Mapping[str, Any] | None) -> Ledger | None:
        """The inverse of `plain`; None of nothing."""
        if plain is None:
            return None
        return cls(**{**plain, "spent": tuple(Spend(*spend) for spend in plain["spent"])})
