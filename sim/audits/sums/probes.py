"""The vectors that members sum in an audit, made so that what leaks can be read off.

    [ zeros | one entry for each member and data set | the game ]

Where all members have zeros, whatever a coalition sees is masks alone: a combination of what it sees that is zero there
is a combination that is free of masks. In the entries after them each member has a one in an entry of its own, so the
same combination tells there how often each member's vector is in it. In the game the victim has one of two values by
the toss of a coin, and all others have random ones.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Sequence
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

Ring: TypeAlias = NDArray[np.uint64]
"""Whole numbers modulo 2^64."""

VALUES = (0, 2**20)
"""The victim's two values in the game."""
WIDTH = 2**40
"""The others' values are below this: so far above the victim's that the sum tells nothing of it."""
SPARE = 96


def zeros_needed(members: int, edges: int, labels: int) -> int:
    """The zeros that tell apart all masks and vectors that a coalition may have of these sums."""
    of_a_sum = members + members * (members - 1) // 2 + 4 * edges + members
    return labels * of_a_sum + SPARE


class Probes:
    """`data` names the data set that is summed under each label: two labels may sum the same."""

    def __init__(self, members: int, data: Sequence[str], *, zeros: int, tosses: int, victim: int, seed: int) -> None:
        self.members, self.victim, self.zeros = members, victim, zeros
        self.labels = tuple(f"sum {number + 1}" for number in range(len(data)))
        self.data = dict(zip(self.labels, data, strict=True))
        self._sets = sorted(set(data))
        chance = np.random.default_rng([seed, 5])
        self.coins: NDArray[np.bool_] = chance.integers(0, 2, tosses).astype(bool)
        self._game = {name: chance.integers(0, WIDTH, (members, tosses)).astype("<u8") for name in self._sets}
        low, high = VALUES
        for name, values in self._game.items():
            values[victim] = np.where(self.coins, high, low) if name == data[0] else low
        self._labels = {self.terms(label): label for label in self.labels}

    @property
    def ones(self) -> slice:
        return slice(self.zeros, self.zeros + len(self._sets) * self.members)

    @property
    def game(self) -> slice:
        return slice(self.ones.stop, self.ones.stop + self.coins.size)

    @property
    def size(self) -> int:
        return self.zeros + len(self._sets) * self.members + self.coins.size

    def column(self, label: str, member: int) -> int:
        """The place of a member's data among the `ones`."""
        return self._sets.index(self.data[label]) * self.members + member

    def owner(self, column: int) -> int:
        return column % self.members

    def vector(self, member: int, label: str) -> Ring:
        vector = np.zeros(self.size, "<u8")
        vector[self.zeros + self.column(label, member)] = 1
        vector[self.game] = self._game[self.data[label]][member]
        return vector

    def own_game(self, members: Collection[int]) -> Ring:
        """The game's values of these members, by column of the ones; zeros for all others. (ones, tosses)."""
        rows = np.zeros((len(self._sets) * self.members, self.coins.size), "<u8")
        for at, name in enumerate(self._sets):
            for member in members:
                rows[at * self.members + member] = self._game[name][member]
        return rows

    def total(self, members: Sequence[int], label: str) -> Ring:
        total: Ring = np.sum([self.vector(member, label) for member in members], axis=0, dtype="<u8")
        return total

    def terms(self, label: str) -> bytes:
        return hashlib.blake2b(label.encode(), digest_size=32, person=b"audit terms").digest()

    def label_of(self, terms: bytes) -> str | None:
        return self._labels.get(terms)
