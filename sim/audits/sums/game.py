"""Statistics: does what a coalition sees of the victim's vector look like chance, and does it tell two values apart?"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import combinations
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from sim.audits.sums.combinations import Coalition, KnownCombinations
from sim.audits.sums.probes import VALUES, Probes, Ring

MOST_ROWS = 16
MOST_FREE = 12
SURE = 4.0
"""In standard deviations: beyond this a figure is no chance."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Guesses:
    """How often the victim's value was guessed: `right` of `tosses`, none of which helped to choose how to guess.

    `trained` is how often that guess was right on the other half.
    """

    right: int
    tosses: int
    trained: float

    @property
    def advantage(self) -> float:
        """1 for who is always right, 0 for who tosses a coin."""
        return 2 * self.right / self.tosses - 1

    def interval(self, deviations: float = 1.96) -> tuple[float, float]:
        """Wilson's interval of the advantage."""
        n, z, share = self.tosses, deviations, self.right / self.tosses
        center = (share + z * z / (2 * n)) / (1 + z * z / n)
        half = z / (1 + z * z / n) * math.sqrt(share * (1 - share) / n + z * z / (4 * n * n))
        return 2 * (center - half) - 1, 2 * (center + half) - 1

    @property
    def is_sure(self) -> bool:
        return self.interval(SURE)[0] > 0


def unmasked(coalition: Coalition, probes: Probes) -> list[tuple[frozenset[int], Ring]]:
    """Each vector with the victim's in it, as is said, and its members: less all masks that the coalition knows, and as
    it was seen, in case the masks are others than those.
    """
    found, seen, masks = [], [], coalition.known.streams(coalition.board, probes.size)
    for ((setup, number), sent), members in coalition.board.parts.items():
        raw = np.frombuffer(sent, "<u8")
        vector = raw.copy()
        if vector.size != probes.size or probes.victim not in members:
            continue
        for member in members:
            own = masks.get((setup, number, member, member))
            if own is not None:
                vector -= own
            for partner in coalition.board.partners(setup, member) - members:
                between = masks.get((setup, number, min(member, partner), max(member, partner)))
                if between is not None:
                    vector = vector - between if member < partner else vector + between
        found.append((members, vector))
        if not np.array_equal(raw, vector):
            seen.append((members, raw))
    return found + seen


def surprise(words: Ring) -> float:
    """How many standard deviations the bytes of these words are from being equally frequent (chi-square)."""
    counts = np.bincount(words.view(np.uint8), minlength=256).astype(float)
    expected = float(counts.sum()) / 256
    chi_square, freedom = float(((counts - expected) ** 2 / expected).sum()), 255
    cubic = float((chi_square / freedom) ** (1 / 3))  # Wilson and Hilferty 1931
    return (cubic - (1 - 2 / (9 * freedom))) / math.sqrt(2 / (9 * freedom))


def probability(deviations: float) -> float:
    return 1 - NormalDist().cdf(deviations)


def play_game(coalition: Coalition, found: KnownCombinations, probes: Probes) -> Guesses:
    """Guess the victim's value in each entry of the game, by the best of many simple ways.

    Ways are each bit, and a threshold, of each vector with the victim in it, unmasked as far as possible, of their
    differences and sums, and of each combination without masks. Half of the entries choose the way.
    """
    half = probes.coins.size // 2
    seen = [row[probes.game] for _, row in unmasked(coalition, probes)][:MOST_ROWS]
    pairs = [each for a, b in combinations(seen, 2) for each in (a - b, a + b)]
    rows = [*seen, *pairs, *found.free[:MOST_FREE]]
    coins, bits = probes.coins, np.arange(64, dtype="<u8")[:, None]
    best: tuple[float, NDArray[np.bool_]] = 0.5, np.zeros(coins.size, bool)
    for row in rows:
        above = row.view(np.int64) > sum(VALUES) // 2
        ways = np.concatenate([(row[None, :] >> bits & np.uint64(1)).astype(bool), above[None, :]])
        shares = (ways[:, :half] == coins[:half]).mean(axis=1)
        place = int(np.abs(shares - 0.5).argmax())
        share = float(shares[place])
        if max(share, 1 - share) > best[0]:
            best = max(share, 1 - share), ways[place] ^ (share < 0.5)
    right = int((best[1][half:] == coins[half:]).sum())
    return Guesses(right=right, tosses=coins.size - half, trained=best[0])
