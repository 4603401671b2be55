"""Who holds sums up, as far as this member sees it: by what a member signed, or failed to sign in its time.

Who was struck once has its turn last, to open a set-up and to lead a sum. With `MOST_STRIKES` it is left out of the
next set-ups, where enough others are there. A strike is forgiven with time, or to who has been in so many sums since; a
proof never. Each member judges for itself, and nobody signs another list for it: how few may be in a sum, and the
history of sums, stay as they are. But the opener's judgment decides who is in its set-up: a slow member that it has
struck is out for all until a strike is forgiven, or somebody else opens one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable

from p2pfl.features.sums.sum_effects import Effects, HeldUp

MOST_STRIKES = 3
FORGIVEN, FORGIVEN_S = 32, 300.0
"""After so many sums that it was in, without another strike, one is forgiven to a member; and one to all after so many
seconds.
"""
PROVEN = 10**9


class Blame:
    def __init__(self, own: int) -> None:
        self._own, self._at = own, 0.0
        """The latest time at which strikes were forgiven."""
        self._well: Counter[int] = Counter()
        self._strikes: Counter[int] = Counter()
        self._news: dict[int, str] = {}

    def strike(self, member: int, why: str, *, is_proof: bool = False) -> None:
        if member == self._own or self.is_banned(member):
            return
        self._strikes[member] += PROVEN if is_proof else 1
        self._news[member] = why
        del self._well[member]

    def is_struck(self, member: int) -> bool:
        return self._strikes[member] > 0

    def is_banned(self, member: int) -> bool:
        return self._strikes[member] >= MOST_STRIKES

    def turn(self, member: int) -> tuple[bool, int]:
        """Orders members by whose turn it is: the lowest first, of those who have held nothing up."""
        return self.is_struck(member), member

    def sum_done(self, members: Collection[int]) -> None:
        self._well.update(members)
        self._forgive([member for member in members if self._well[member] % FORGIVEN == 0], 1)

    def pass_time(self, now: float) -> None:
        times = int((now - self._at) // FORGIVEN_S)
        if times:
            self._at = now
            self._forgive(list(self._strikes), times)

    def _forgive(self, members: Iterable[int], times: int) -> None:
        for member in members:
            if self._strikes[member] < PROVEN:
                self._strikes[member] = max(0, self._strikes[member] - times)

    def tell(self, effects: Effects) -> None:
        """Say who was struck since the last time, and for what."""
        for member, why in self._news.items():
            effects.add(HeldUp(member=member, why=why))
        self._news.clear()
