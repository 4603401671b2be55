"""The models of the built-in tasks."""

from __future__ import annotations

from itertools import pairwise

from torch import nn


def mlp(*sizes: int) -> nn.Sequential:
    """Fully connected layers with ReLU between them: inputs (b, sizes[0]), flattened, to outputs (b, sizes[-1])."""
    layers: list[nn.Module] = [nn.Flatten()]
    for width, following in pairwise(sizes):
        layers += [nn.Linear(width, following), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def small_cnn() -> nn.Sequential:
    """Two convolutions for images (b, 1, 28, 28), ten outputs; 28,938 parameters."""
    return nn.Sequential(
        nn.Conv2d(1, 16, 5, padding=2),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 5, padding=2),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(32 * 7 * 7, 10),
    )
