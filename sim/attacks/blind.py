"""Lies that look at the liar's own model alone: functions on rows, so that many liars are served at once.

Named as in Li et al. 2019 (RSA, arXiv 1811.03761) and Wu et al. 2020 (arXiv 1912.12716), whose liars send gradients;
here they show models. A row depends on nothing but its model and its draws, whatever the batch.
"""

from __future__ import annotations

import math

import numpy as np

from sim.attacks.attack import Blind, Draw, Rows


def sign_flip(scale: float) -> Blind:
    """The model times `-scale`."""
    return lambda models, _initial, _draw: models * models.dtype.type(-scale)


def noise(sigma: float) -> Blind:
    """Independent normal noise of deviation `sigma` on each entry, fresh each time."""

    def rows(models: Rows, _initial: Rows, draw: Draw) -> Rows:
        shown = models.copy()
        for row in range(len(models)):
            shown[row] += (sigma * draw(row, models.shape[1])).astype(models.dtype)
        return shown

    return rows


def constant(value: float) -> Blind:
    """`value` in every entry."""
    return lambda models, _initial, _draw: np.full_like(models, value)


def zero() -> Blind:
    """Drags everybody to the origin: zero-gradient where gradients are sent."""
    return constant(0.0)


def replay() -> Blind:
    """An old model: the one from before the first round, for ever."""
    return lambda models, initial, _draw: np.broadcast_to(initial.astype(models.dtype), models.shape).copy()


def nan() -> Blind:
    """No numbers, as from a broken machine: an honest node must refuse them before anything is applied."""
    return constant(math.nan)


def inf() -> Blind:
    """Infinities of both signs by turns: their mean is no number."""

    def rows(models: Rows, _initial: Rows, _draw: Draw) -> Rows:
        shown = np.full_like(models, math.inf)
        shown[:, 1::2] = -math.inf
        return shown

    return rows
