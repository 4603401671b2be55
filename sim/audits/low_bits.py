"""Audit the last bits of what leaves a node: do they reveal the value to which the noise was added?

If float noise is added to a float, a result much smaller than either keeps the last bits of the larger one. Those bits
may reveal a row that the noise otherwise hides (Mironov 2012, doi 10.1145/2382196.2382264).
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch

from p2pfl.config.sections import RECORD
from p2pfl.learn.interface import RoundStart
from p2pfl.learn.privacy.draws import Chance
from p2pfl.learn.trainer import TorchLearner
from sim.audits.bounds import epsilon_of_gaussians, proof
from sim.audits.canary import NOISE, Canary, Values, bare_learner

SIZE = 1024
"""The size of the model."""
SMALL = 1 / 4
"""The audit looks at results below this fraction of what the row adds."""


def low_bits(
    *,
    unit: str = RECORD,
    clip: float = 1.0,
    delta: float = 1e-5,
    tries: int = 100,
    chance: Chance | None = None,
    chain: bool = True,
) -> Canary:
    """Compare `tries` one-step rounds on a row that moves every value equally with as many rounds without it, from zero
    weights.
    """
    row = torch.full((1, SIZE), 1e3 * clip)
    how: dict[str, Any] = {"unit": unit, "clip": clip, "delta": delta, "chance": chance, "chain": chain}
    with_it, without = (
        _scores(bare_learner(rows, **how), clip, tries, place * tries)
        for place, rows in enumerate((row, torch.zeros_like(row)))
    )
    proven = proof(with_it, without, delta)
    return Canary(
        claimed=epsilon_of_gaussians(1 / NOISE, delta),
        proven=epsilon_of_gaussians(proven.mu, delta),
        noise_at_most=1 / proven.mu if proven.mu else float("inf"),
        proof=proven,
    )


def _scores(learner: TorchLearner, clip: float, tries: int, first: int) -> Values:
    """Score each round: -1 if one of its small results has a bit that no sum of floats as large as the row's has,
    otherwise 0.
    """
    start, moved = RoundStart(learner.initial()), clip / math.sqrt(SIZE)
    finest = 2.0 ** (math.floor(math.log2(moved)) - 25)
    scores = []
    for number in range(tries):
        ended = learner.train(start, first + number).vector.astype(np.float64)
        small = ended[np.abs(ended) < SMALL * moved]
        scores.append(-float((np.fmod(small, finest) != 0).any()))
    return np.array(scores)
