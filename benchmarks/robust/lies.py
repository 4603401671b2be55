"""Lies by which no rule was chosen (`held-out-*.toml`): `attack = "lies.py:min_max"`; and a regression."""

from __future__ import annotations

import numpy as np
import torch
from torch import nn

from p2pfl import Task
from p2pfl.chance import generator
from p2pfl.learn.metrics import named
from p2pfl.learn.task import NodeContext, Pair
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


def friedman(*, partition: str = "dirichlet:0.5") -> Task:
    """A regression for the study's other attacks: sums of products, squares and lines of ten inputs, with noise
    (Friedman 1991). `partition` goes by tenths of the target, so that nodes know other stretches of it.
    """

    def data(node: NodeContext) -> tuple[Pair, Pair]:
        chance = generator(0, "friedman")
        x = chance.random((3000, 10))
        y = 10 * np.sin(np.pi * x[:, 0] * x[:, 1]) + 20 * (x[:, 2] - 0.5) ** 2 + 10 * x[:, 3] + 5 * x[:, 4]
        y = ((y + chance.standard_normal(len(y)) - 14.4) / 5).astype(np.float32)
        own = node.own_rows(np.searchsorted(np.quantile(y[:2000], np.arange(0.1, 1, 0.1)), y[:2000]), partition)
        inputs, targets = torch.from_numpy((2 * x - 1).astype(np.float32)), torch.from_numpy(y[:, None])
        return (inputs[:2000][own], targets[:2000][own]), (inputs[2000:], targets[2000:])

    def model() -> nn.Module:
        return nn.Sequential(nn.Linear(10, 32), nn.ReLU(), nn.Linear(32, 1))

    return Task(name="friedman", model=model, data=data, loss=nn.functional.mse_loss, metrics=named(["r2"]))
