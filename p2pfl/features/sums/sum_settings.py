"""What all members of a federation's sums have in common, and which of them this node is."""

from __future__ import annotations

from dataclasses import dataclass

from p2pfl.features.sums.partners import degree
from p2pfl.features.sums.sum_messages import MOST_MEMBERS, MOST_SUMS


def quorum(members: int, colluders: int) -> int:
    """The least number of signers that is more than (n + t) / 2."""
    return (members + colluders) // 2 + 1


@dataclass(frozen=True, slots=True, kw_only=True)
class SumSettings:
    """`members` are the Ed25519 keys by index, `index` is this node's own.

    `life` orders the starts of this member; one without memory takes 0, and learns a later one from the others.
    Raises ValueError: no sum is private with these numbers.
    """

    federation: bytes
    members: tuple[bytes, ...]
    index: int
    life: int
    colluders: int = 1
    least: int = 3
    sums: int = 64
    """The sums that one set-up serves."""

    def __post_init__(self) -> None:
        count, t = len(self.members), self.colluders
        if not 3 <= count <= MOST_MEMBERS:
            raise ValueError(
                f"{count} members: a secure sum has 3 to {MOST_MEMBERS}; of two, each knows the other's part"
            )
        if t < 1:
            raise ValueError(f"colluders = {t}: at least 1, for a member that is curious by itself is one")
        if self.least < t + 2:
            raise ValueError(f"least = {self.least} bears {self.least - 2} colluders, not {t}: two must be honest")
        if self.least > count:
            raise ValueError(f"least = {self.least} of {count} members")
        if not 1 <= self.sums <= MOST_SUMS:
            raise ValueError(f"{self.sums} sums of a set-up: allowed are 1 to {MOST_SUMS}")
        if not 0 <= self.index < count:
            raise ValueError(f"member {self.index} of {count}")

    @property
    def count(self) -> int:
        return len(self.members)

    @property
    def quorum(self) -> int:
        return quorum(self.count, self.colluders)

    @property
    def threshold(self) -> int:
        """Shares that give a secret: t + 1, as one honest holder must have agreed, and it follows one certificate.

        More would hold without certificates too (above (holders + t) / 2 no two kinds can be told of one member), at
        the price of as many more holders that must live.
        """
        return self.colluders + 1

    def reach(self, members: int) -> int:
        """The number of partners of each of so many members of a set-up."""
        return degree(members, self.colluders)

    def acks_needed(self, members: int) -> int:
        """Partners who hold a member's shares, so that t of them may refuse: all, where there are no 2 t + 1."""
        return min(self.reach(members), 2 * self.colluders + 1)

    def are_members(self, bits: bytes) -> bool:
        """Return True if a set has members of this federation alone."""
        return int.from_bytes(bits, "little") >> self.count == 0 and len(bits) <= (self.count + 7) // 8

    def domain(self) -> bytes:
        """The text that each signature covers: nothing signed here counts elsewhere, or under other settings."""
        numbers = f"{self.count} {self.colluders} {self.least} {self.sums}"
        return (
            b"p2pfl secure sums 1\0" + len(self.federation).to_bytes(4, "little") + self.federation + numbers.encode()
        )
