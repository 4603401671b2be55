"""A learner that never moves its model: what remains is gossip alone."""

from __future__ import annotations

import numpy as np

from p2pfl.core.facts import Settings
from p2pfl.core.staleness import parse_staleness
from p2pfl.learn.interface import LocalRound


class StillLearner:
    shape_digest = b"still-still-stil"

    def __init__(self, model, samples):
        self.model = np.asarray(model)
        self.size = self.model.size
        self.samples = samples

    def initial(self):
        return self.model

    def train(self, start, correction, round_index):
        return LocalRound(vector=start.copy(), steps=1, learning_rate=0.0, samples=self.samples, loss=0.0)

    def evaluate(self, vector, part):
        return None

    def local_state(self):
        return {}

    def load_local_state(self, state):
        pass

    def state_dict(self, vector):
        return {}


def settings(**changes):
    defaults = {
        "rounds": 30,
        "time_s": None,
        "closing_rounds": 10,
        "gamma": 1.0,
        "staleness": parse_staleness("hinge-polynomial:4,0.5"),
        "speed_limit": 1.0,
        "start_wait_s": 2.0,
        "linger_s": 5.0,
        "max_wait_s": 1.0,
        "exchanges_per_s": 200.0,
        "audit_every": 4,
    }
    return Settings(**(defaults | changes))
