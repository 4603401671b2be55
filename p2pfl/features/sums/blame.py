"""Who holds sums up, as far as this member sees it: by what a member signed, or failed to sign in its time.

Who was struck once has its turn last, to open a set-up and to lead a sum. With `MOST_STRIKES` it is left out of the
next set-ups, where enough others are there. A strike is forgiven after so many sums; a proof never. Each member judges
for itself, and nobody signs another list for it: how few may be in a sum, and the history of sums, stay as they are.
"""

from __future__ import annotations

from collections import Counter

from p2pfl.features.sums.sum_effects import Effects, HeldUp

MOST_STRIKES = 3
FORGIVEN = 64
"""In sums that were done here."""
PROVEN = 10**9


class Blame:
    def __init__(self, own: int) -> None:
        self._own, self._done = own, 0
        self._strikes: Counter[int] = Counter()
        self._news: dict[int, str] = {}

    def strike(self, member: int, why: str, *, is_proof: bool = False) -> None:
        if member == self._own or self.is_banned(member):
            return
        self._strikes[member] += PROVEN if is_proof else 1
        self._news[member] = why

    def is_struck(self, member: int) -> bool:
        return self._strikes[member] > 0

    def is_banned(self, member: int) -> bool:
        return self._strikes[member] >= MOST_STRIKES

    def turn(self, member: int) -> tuple[bool, int]:
        """Orders members by whose turn it is: the lowest first, of those who have held nothing up."""
        return self.is_struck(member), member

    def sum_done(self) -> None:
        self._done += 1
        if self._done % FORGIVEN == 0:
            self._strikes = Counter({member: n - (n < PROVEN) for member, n in self._strikes.items() if n > 1})

    def tell(self, effects: Effects) -> None:
        """Say who was struck since the last time, and for what."""
        for member, why in self._news.items():
            effects.add(HeldUp(member=member, why=why))
        self._news.clear()
