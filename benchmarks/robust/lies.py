"""Lies by which no rule was chosen (`held-out-*.toml`): `attack = "lies.py:min_max"`."""

from __future__ import annotations

import numpy as np

from p2pfl.chance import generator
from sim.attacks import Sight


def zero(sight: Sight) -> np.ndarray:
    """Wu et al. 2020, arXiv 1912.12716."""
    return np.zeros_like(sight.own)


def replay(sight: Sight) -> np.ndarray:
    return sight.initial


def two_faced(sight: Sight) -> np.ndarray:
    """Another lie for each victim, the same from all liars."""
    own = np.asarray(sight.own, np.float64)
    direction = generator(sight.seed, "two-faced", sight.peer).standard_normal(own.size)
    return own + np.linalg.norm(own) / np.linalg.norm(direction) * direction


def min_max(sight: Sight) -> np.ndarray:
    """Push against the deviation, no further from any model than two are from each other (Shejwalkar and Houmansadr,
    NDSS 2021).
    """
    rows, mean = sight.around, sight.around.mean(axis=0)
    push = -rows.std(axis=0, ddof=1) if len(rows) > 1 else np.zeros_like(mean)
    limit = max(float(((rows - row) ** 2).sum(axis=1).max()) for row in rows)
    half, square = (mean - rows) @ push, float(push @ push)
    slack = np.maximum(limit - ((mean - rows) ** 2).sum(axis=1), 0.0)
    return mean + ((np.sqrt(half**2 + square * slack) - half).min() / square if square else 0.0) * push


def fang(sight: Sight) -> np.ndarray:
    """Just outside the honest range, against the way in which each coordinate has moved (Fang et al. 2020, arXiv
    1911.11815, b = 2).
    """
    rows = sight.around
    least, most = rows.min(axis=0), rows.max(axis=0)
    share = generator(sight.seed, "fang", sight.node, sight.count).random(rows.shape[1])
    below = least - share * (least - np.where(least > 0, least / 2, least * 2))
    above = most + share * (np.where(most > 0, most * 2, most / 2) - most)
    return np.where(rows.mean(axis=0) > sight.initial, below, above)


def collude_median(sight: Sight) -> np.ndarray:
    """Copy the model farthest from the mean, to draw medians (after Karimireddy et al. 2022, arXiv 2006.09365)."""
    return sight.around[int(np.linalg.norm(sight.around - sight.around.mean(axis=0), axis=1).argmax())]
