"""Recover the gradient behind an observed round. Everyone knows what is in the federation file."""

from __future__ import annotations

from types import MappingProxyType

import numpy as np

from p2pfl.config.model import TrainingConfig
from p2pfl.learn.interface import Vector
from p2pfl.methods import FLOW, Method, Variate, Vectors
from sim.audits.observation import RoundSeen


class _Known:
    """The victim as its method sees it, as far as its neighbors know."""

    def __init__(self, seen: RoundSeen, samples: int) -> None:
        self._seen, self.samples = seen, samples
        self.channels: Vectors = MappingProxyType({})
        self.kept = self.given = self.channels

    def sum_of_edges(self, name: str, channel: str = "model") -> Vector:
        del channel
        known = self._seen.flows
        return np.zeros_like(self._seen.start) if name != FLOW or known is None else known.copy()


def gradient_of(seen: RoundSeen, training: TrainingConfig, method: Method, *, samples: int, steps: int = 1) -> Vector:
    """Recover the mean gradient (d,) of a round of `steps` SGD steps, without what the method and the weight decay
    added.

    It is exact for one step if compression is lossless. `samples` is the victim's n, which its messages reveal.
    """
    rate = training.rate(seen.number, 0.0)
    gradient = -seen.change / np.float32(rate * steps * seen.versions)
    gradient -= np.float32(training.weight_decay) * seen.start
    if isinstance(method, Variate):
        start = {"anchor": seen.start, **method.begin(_Known(seen, samples))}
        gradient -= method.gradient(np.zeros_like(gradient), seen.start, start)
    return gradient
