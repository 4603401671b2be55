"""Attacks made of another: lies told only at times, or told in too many exchanges; and one that is no model at all."""

from __future__ import annotations

import numpy as np

from sim.attacks.attack import Attack, Lie, Vector
from sim.attacks.sight import Sight

MISSING = 3
"""a vector of the wrong shape lacks one part in so many."""


def sleeper(lie: Attack | None, period: int) -> Attack:
    """Honest for `period` own rounds, then lies for as many, by turns: standing won is standing to spend.

    Raises:
        ValueError: no lie is named.
    """
    if lie is None:
        raise ValueError("a sleeper has to have a lie")
    awake = lie

    def told(sight: Sight) -> Vector:
        return awake.tell(sight) if sight.rounds // period % 2 else sight.own

    return Attack(spec=f"sleeper:{lie.spec}@{period}", lie=told, refused=lie.refused)


def flood(lie: Attack | None) -> Attack:
    """Begins exchanges as fast as it can, so that its model counts more often than others; it shows `lie`, or truth."""
    if lie is None:
        return Attack(spec="flood", flood=True)
    return Attack(
        spec=f"flood:{lie.spec}", blind=lie.blind, lie=lie.lie, poison=lie.poison, refused=lie.refused, flood=True
    )


def wrong_shape() -> Lie:
    """The model cut short by a third: to be refused whatever stands in it."""

    def lie(sight: Sight) -> Vector:
        size = sight.own.size
        return np.resize(sight.own, size - max(1, size // MISSING) if size > 1 else size + 1)

    return lie
