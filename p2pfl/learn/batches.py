"""Which rows each local step of a round sees."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from p2pfl.config.model import TrainingConfig


def draw_batches(training: TrainingConfig, samples: int, rng: np.random.Generator) -> list[Tensor]:
    """Row numbers (b,) of each step, in the order of a fresh permutation per pass.

    With `local_steps` every batch is full, so one may span two passes. With `local_epochs` a pass ends with what is
    left, and a single row left over joins the batch before it, because BatchNorm cannot learn from one sample. A batch
    size above the number of samples takes them all.
    """
    sizes = batch_sizes(training, samples)
    return list(torch.split(torch.from_numpy(draw_rows(samples, sum(sizes), rng)), sizes))


def batch_sizes(training: TrainingConfig, samples: int) -> list[int]:
    """How many rows each step of a round sees, at a node with so many samples."""
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
    """The rows (total,) of all steps, one after the other: permutation after permutation.

    Only what is needed of the last one is drawn.
    """
    if total == samples:
        return rng.permutation(samples)
    passes = [rng.permutation(samples) for _ in range(total // samples)]
    if total % samples:
        passes.append(rng.choice(samples, total % samples, replace=False))
    return np.concatenate(passes)
