"""Which rows each local step of a round sees."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from p2pfl.config.model import TrainingConfig


def draw_batches(training: TrainingConfig, samples: int, rng: np.random.Generator) -> list[Tensor]:
    """Row numbers (b,) of each step, in the order of a fresh permutation per pass.

    With `local_steps` every batch is full, so one may span two passes. With `local_epochs` a pass ends with what is
    left, and a single row left over joins the batch before it, because BatchNorm cannot learn from one sample. A batch
    size above the number of samples takes them all.
    """
    size = min(training.batch_size, samples)
    if training.local_steps is not None:
        return list(torch.split(_stream(samples, training.local_steps * size, rng), size))
    return [batch for _ in range(training.local_epochs or 0) for batch in _pass(samples, size, rng)]


def _stream(samples: int, count: int, rng: np.random.Generator) -> Tensor:
    """The first `count` rows of permutation after permutation; only what is needed of the last one is drawn."""
    passes = [rng.permutation(samples) for _ in range(count // samples)]
    passes.append(rng.choice(samples, count % samples, replace=False))
    return torch.from_numpy(np.concatenate(passes))


def _pass(samples: int, size: int, rng: np.random.Generator) -> list[Tensor]:
    order = torch.from_numpy(rng.permutation(samples))
    if samples % size == 1 and 1 < size < samples:
        sizes = [size] * (samples // size - 1) + [size + 1]
        return list(torch.split(order, sizes))
    return list(torch.split(order, size))
