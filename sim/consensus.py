"""Models of several nodes taken as one: their mean, how far they are from it, and what it knows."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from p2pfl.learn.interface import Score
from sim.learning.batched import BatchedLearners

ROWS = 512
"""Models copied to float64 at a time."""


def mean_of(models: NDArray[Any], nodes: list[int]) -> NDArray[np.float64]:
    """The plain mean (d,) of the models (rows) of `nodes`, of which there are some; all count alike."""
    total: NDArray[np.float64] = sum(models[part].sum(axis=0, dtype=np.float64) for part in _parts(nodes))
    return total / len(nodes)


def distance(models: NDArray[Any], nodes: list[int]) -> float | None:
    """Root mean square distance of these models (rows) to their mean, over that mean's norm."""
    if not nodes:
        return None
    mean = mean_of(models, nodes)
    square = sum(float(np.sum((models[part] - mean) ** 2)) for part in _parts(nodes)) / len(nodes)
    norm = float(np.linalg.norm(mean))
    return float(np.sqrt(square)) / norm if norm > 0 else 0.0


def score_of_mean(models: NDArray[Any], nodes: list[int], learners: BatchedLearners) -> Score | None:
    """What the mean of these models (rows) knows of the common test set.

    None where nobody is left, where there is nothing to test on, or where nodes keep a part of the model to themselves:
    there is then no one model.
    """
    if not nodes or learners.personal:
        return None
    mean = mean_of(models, nodes).astype(models.dtype)
    (score,) = learners.evaluate(mean[None], "test", np.array(nodes[:1], dtype=np.int64))
    return score


def _parts(nodes: list[int]) -> list[list[int]]:
    return [nodes[first : first + ROWS] for first in range(0, len(nodes), ROWS)]
