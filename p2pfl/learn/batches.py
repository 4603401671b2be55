"""The rows of each step of a local round. No torch."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from p2pfl.config.model import TrainingConfig


def batch_sizes(training: TrainingConfig, samples: int) -> list[int]:
    """Return the number of rows in each step of a round, at a node with `samples` rows."""
    size = min(training.batch_size, samples)
    if training.local_steps is not None:
        return [size] * training.local_steps
    full, left = divmod(samples, size)
    if left == 0:
        one_pass = [size] * full
    elif left == 1 and size > 1:
        one_pass = [size] * (full - 1) + [size + 1]
    else:
        one_pass = [size] * full + [left]
    return one_pass * (training.local_epochs or 0)


def draw_rows(samples: int, total: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """Draw the rows (total,) for all steps in sequence, from one permutation after another.

    The last permutation is drawn only as far as needed.
    """
    if total == samples:
        return rng.permutation(samples)
    passes = [rng.permutation(samples) for _ in range(total // samples)]
    if total % samples:
        passes.append(rng.choice(samples, total % samples, replace=False))
    return np.concatenate(passes)
