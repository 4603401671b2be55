"""Plans and random draws for tests that need no node."""

from __future__ import annotations

import numpy as np

from p2pfl.config import TrainingConfig
from p2pfl.learn.privacy import Plan, Secret


def plan(training=None, *, unit="record", noise=1.0, clip=1.0, rate=0.5, share=0.5):
    return Plan(
        unit=unit,
        epsilon=8.0,
        delta=1e-5,
        clip=clip,
        noise=noise,
        accountant="rdp",
        rounds=40,
        training=training or TrainingConfig(),
        shared_rate=rate if unit == "record" else 1.0,
        share=share,
    )


class Noted:
    """Draws as nodes do, and notes the rows and the noise. It is its own source of chance."""

    is_secret = False

    def __init__(self, *, silent=False):
        self._secret, self._silent = Secret(), silent
        self.taken, self.added = [], []

    def of_round(self, node, round_index):
        return self

    def rows(self, samples, rate):
        self.taken.append((self._secret.rows(samples, rate), rate))
        return self.taken[-1][0]

    def noise(self, size):
        self.added.append(np.zeros(size, np.int64) if self._silent else self._secret.noise(size))
        return self.added[-1]

    def order(self, count):
        return self._secret.order(count)

    def seed(self):
        return 1
