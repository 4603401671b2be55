"""The argument of a program's callback after each local round: `on_round` of `Federation.run` and of `Node`."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from p2pfl.learn.interface import Learner, LocalRound, Score, Vector


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundState:
    """A node after a local round, before its model is mixed with its neighbors'.

    `accuracy`, `test_loss` and `metrics` are of the latest test, which was made after `tested_rounds` rounds; None and
    empty before the first test.
    """

    node: str
    rounds: int
    """The number of rounds that the node has trained, this one included."""
    seconds: float
    """The seconds since the node began."""
    steps: int
    """The number of steps of the optimizer in this round."""
    samples: int
    """The size of the node's training set."""
    loss: float
    """The mean loss over the steps of this round."""
    accuracy: float | None
    test_loss: float | None
    metrics: Mapping[str, float]
    tested_rounds: int | None
    vector: Vector
    """The model (d,), read-only and only while the function runs: copy what you keep."""
    learner: Learner = field(repr=False)

    def state_dict(self) -> dict[str, NDArray[np.generic]]:
        """Return copies of the model's tensors by name, personal ones included."""
        return self.learner.state_dict(self.vector)


OnRound = Callable[[RoundState], Any]


class EachRound:
    """Calls `on_round` in the thread that trains, which waits for it; an exception in it ends the node."""

    def __init__(self, node: str, learner: Learner, on_round: OnRound) -> None:
        self.node = node
        self.learner = learner
        self.on_round = on_round
        self.began_at = time.monotonic()

    def __call__(self, local: LocalRound, rounds: int, score: Score | None, tested_rounds: int | None) -> None:
        """Call `on_round`. `score` is that of the latest test, which was made after `tested_rounds`."""
        vector = local.vector.view()
        vector.flags.writeable = False
        self.on_round(
            RoundState(
                node=self.node,
                rounds=rounds,
                seconds=time.monotonic() - self.began_at,
                steps=local.steps,
                samples=local.samples,
                loss=local.loss,
                accuracy=None if score is None else score.accuracy,
                test_loss=None if score is None else score.loss,
                metrics={} if score is None else dict(score.metrics),
                tested_rounds=tested_rounds,
                vector=vector,
                learner=self.learner,
            )
        )
