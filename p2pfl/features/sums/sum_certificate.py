"""Votes on lists of members: of one slot at most one list can be signed by a quorum.

A slot is one question of one set-up: its roster, or who is in the sum of a number. A member signs at most one list for
a slot, ever, or gives the slot up and then signs none. A quorum is more than (n + t) / 2 of all n members of the
federation: two quorums share more than t members, one of whom is honest, and signed only one list. (Bracha and Toueg
1985, doi 10.1145/4221.214134.)
"""

from __future__ import annotations

from collections import Counter

from p2pfl.features.sums.sum_messages import MemberList


class Ballot:
    """All votes on one slot, as they come in: in any order, any number of times."""

    def __init__(self, needed: int) -> None:
        self.needed = needed
        self.lists: dict[bytes, MemberList] = {}
        """The lists proposed, by digest."""
        self.signed: dict[int, bytes] = {}
        """The digest of the list that each signer has signed first."""
        self.quit: dict[int, str] = {}
        """The reason of each who has given the slot up."""

    def propose(self, digest: bytes, proposal: MemberList) -> None:
        self.lists.setdefault(digest, proposal)

    def sign(self, author: int, digest: bytes) -> None:
        self.signed.setdefault(author, digest)

    def give_up(self, author: int, reason: str) -> None:
        self.quit.setdefault(author, reason)

    @property
    def certified(self) -> tuple[bytes, MemberList] | None:
        """The list with a quorum and its digest, once both are known. Two authors' lists that say the same are one:
        members may differ about whose turn it was.
        """
        if len(self.signed) < self.needed:
            return None
        counts = Counter(self.lists[digest] for digest in self.signed.values() if digest in self.lists)
        found, count = counts.most_common(1)[0] if counts else (None, 0)
        if found is None or count < self.needed:
            return None
        return next((digest, found) for digest, each in self.lists.items() if each == found)

    @property
    def is_dead(self) -> bool:
        """True if no list of this slot can be certified any more."""
        return len(self.quit) >= self.needed

    def commonest_reason(self) -> str:
        return min(Counter(self.quit.values()).most_common(), key=lambda each: (-each[1], each[0]))[0]
