"""The attack that climbs the task's loss through its victim's rule.

It follows projected gradient ascent (PGA), whose attackers climb the loss from the server's model and then go as far in
that direction as the server's rule lets through. Here the climb begins at the mean of all honest models that the liar
knows, so that all victims are pushed the same way, round after round, and no honest neighbor pulls them back. The
length is searched for each victim among five, by the loss after its rule (`response`). A lie costs STEPS + len(FARTHER)
gradients and len(FARTHER) calls of the rule.
"""

from __future__ import annotations

import numpy as np

from p2pfl.errors import UserError
from sim.attacks.entry import LOSS, lie
from sim.attacks.false_models import response, spread_around
from sim.attacks.sight import Climb, Sight, Vector, length

STEPS, STEP = 8, 0.25
"""Steps of the ascent, and the length of each in spreads of the models around the victim."""
FARTHER = (0.5, 1.0, 2.0, 4.0, 8.0)
"""Lengths of the lie, in spreads."""


@lie(
    "ascent",
    "climbs the task's loss, and goes as far that way as raises it most after the victim's rule",
    "after PGA of Shejwalkar et al. 2022, arXiv 2108.10241",
    LOSS,
    climbs=True,
)
def ascent(sight: Sight) -> Vector:
    slope = sight.slope
    if slope is None:
        raise UserError("there is no loss to climb", key="attack", value="ascent")
    victim = np.asarray(sight.victim, np.float64)
    spread = spread_around(sight)
    start = np.mean([victim, *(sight.models[node] for node in sight.honest if node != sight.peer)], axis=0)
    way = _uphill(slope, start, STEP * spread)
    size = length(way)
    if size == 0:
        return victim
    way *= spread / size
    lies = [victim + farther * way for farther in FARTHER]
    shown: Vector = max(lies, key=lambda lie: slope(response(sight, lie))[0])
    return shown


def _uphill(slope: Climb, start: Vector, step: float) -> Vector:
    """Follow the gradient for STEPS steps of that length from `start` (d,); return the end minus `start`."""
    here = start
    for _ in range(STEPS):
        gradient = slope(here)[1]
        size = length(gradient)
        if size == 0:
            break
        here = here + step / size * gradient
    return here - start
