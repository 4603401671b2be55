"""Noise in shares: does each member add its own, as much as it claims, and never the same twice?

Members sum zeros and their noise. All of them but one, together, know the noise of that one: the sum less their own.
The sum itself shows one missing share too, where it has more than about 100 m^2 entries for m members.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from sim.audits.sums.play import SumCast, SumPlay
from sim.audits.sums.probes import Ring

Noise: TypeAlias = NDArray[np.int64]
Contribute: TypeAlias = Callable[[int, str, int], Noise]
"""The noise that a member adds to the sum of a label, in so many entries: (entries,) whole numbers, mean 0."""
SUMS = ("noise 1", "noise 2")
FAR = 5.0
"""In standard deviations: what is farther is no chance."""


@dataclass(slots=True, kw_only=True)
class NoiseFound:
    """`total` and `shares`, by member: the variance that was measured over the one that is claimed."""

    total: float = 0.0
    shares: dict[int, float] = field(default_factory=dict)
    mistakes: list[str] = field(default_factory=list)


class NoiseAlone:
    """The data of a play: zeros, and each member's noise."""

    labels = SUMS

    def __init__(self, contribute: Contribute, members: int, entries: int) -> None:
        self._noise = {(m, label): contribute(m, label, entries) for label in SUMS for m in range(members)}

    def vector(self, member: int, label: str) -> Ring:
        return self._noise[member, label].astype("<i8").view("<u8")

    def terms(self, label: str) -> bytes:
        return hashlib.blake2b(label.encode(), digest_size=32, person=b"audit terms").digest()


def check_noise(
    cast: SumCast, contribute: Contribute, variances: Mapping[int, float], *, entries: int = 4096, seed: int = 0
) -> NoiseFound:
    """Sum the noise of all members twice, and compare it with the variance that each one's is claimed to have."""
    data, found = NoiseAlone(contribute, cast.count, entries), NoiseFound()
    record = SumPlay(cast, data, seed=seed).run()
    totals = {done.label: (done.members, done.total) for _, done in record.done}
    if set(totals) != set(SUMS):
        found.mistakes.append("the sums of the noise did not come about")
        return found
    members, total = totals[SUMS[0]]
    found.total = _ratio(total, sum(variances[member] for member in members))
    if _is_far_below(found.total, entries):
        found.mistakes.append(f"the sum has {found.total:.2f} times the noise that its members claim")
    for member in members:
        alone = total - sum((data.vector(other, SUMS[0]) for other in members if other != member), np.zeros_like(total))
        found.shares[member] = _ratio(alone, variances[member])
        if _is_far_below(found.shares[member], entries):
            text = f"{cast.names[member]} adds {found.shares[member]:.2f} times the noise that it claims"
            found.mistakes.append(f"{text}, as all others can tell together")
    alike = _correlation(total, totals[SUMS[1]][1])
    if abs(alike) > FAR / math.sqrt(entries):
        found.mistakes.append(f"the noise of two sums is alike (correlation {alike:.2f})")
    return found


def _ratio(words: Ring, variance: float) -> float:
    values = words.view(np.int64).astype(float)
    return float((values**2).mean() / variance)


def _is_far_below(ratio: float, entries: int) -> bool:
    """Of a Gaussian, discrete or not, the mean of so many squares is within 1 +- sqrt(2 / entries)."""
    return ratio < 1 - FAR * math.sqrt(2 / entries)


def _correlation(one: Ring, other: Ring) -> float:
    a, b = one.view(np.int64).astype(float), other.view(np.int64).astype(float)
    scale = float(np.sqrt((a**2).sum() * (b**2).sum()))
    return float((a * b).sum()) / scale if scale else 1.0
