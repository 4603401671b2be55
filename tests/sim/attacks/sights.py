"""A small world to lie in: node 0 is the victim, 1, 2 and 3 its honest neighbors, 4 and 5 lie, 6 is far away."""

from __future__ import annotations

import numpy as np

from sim import Sight

MODELS = {
    0: np.array([1.0, 0.0, 2.0, -1.0]),
    1: np.array([3.0, 0.0, 2.0, -3.0]),
    2: np.array([1.0, 4.0, 2.0, -1.0]),
    3: np.array([3.0, 4.0, 2.0, 1.0]),
    4: np.array([9.0, 9.0, 9.0, 9.0]),
    5: np.array([8.0, 8.0, 8.0, 8.0]),
    6: np.array([-5.0, 0.0, 0.0, 7.0]),
}
EDGES = ((0, 1), (0, 2), (0, 3), (0, 4), (0, 5), (3, 6))
MEAN = np.array([2.0, 2.0, 2.0, -1.0])
"""of the models of 0 to 3."""
DEVIATION = np.array([np.sqrt(4 / 3), np.sqrt(16 / 3), 0.0, np.sqrt(8 / 3)])


def bowl(model):
    """A loss that grows from the origin on, and its gradient."""
    return float(model @ model) / 2, np.asarray(model, np.float64)


def sight(**changes) -> Sight:
    fields = {
        "node": 4,
        "peer": 0,
        "own": MODELS[4],
        "initial": np.zeros(4),
        "models": MODELS,
        "liars": frozenset({4, 5}),
        "edges": EDGES,
        "seed": 1,
        "slope": bowl,
    }
    return Sight(**(fields | changes))
