"""The argument of a program's callback after each local round of a node: `on_round` of `Federation.run` and of
`Node`.
"""

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
    """A node after a local round, before what it has learned is mixed with its neighbors'.

    `accuracy`, `test_loss` and `metrics` are of the latest test, which was made after `tested_rounds` rounds; None and
    empty where nothing was tested yet.
    """

    node: str
    rounds: int
    """Rounds that the node has trained, this one included."""
    seconds: float
    """Since the node began."""
    steps: int
    """Steps of the optimizer in this round."""
    samples: int
    """The size of the node's training set."""
    loss: float
    """The mean over the steps of this round."""
    accuracy: float | None
    test_loss: float | None
    metrics: Mapping[str, float]
    tested_rounds: int | None
    vector: Vector
    """The model (d,), read-only and only while the function runs: copy what you keep."""
    learner: Learner = field(repr=False)

    def state_dict(self) -> dict[str, NDArray[np.generic]]:
        """Copies of the model's tensors by name, personal ones included."""
        return self.learner.state_dict(self.vector)


OnRound = Callable[[RoundState], Any]


class EachRound:
    """Calls `on_round` in the thread that trains, which waits for it: what it raises ends the node."""

    def __init__(self, node: str, learner: Learner, on_round: OnRound) -> None:
        self.node = node
        self.learner = learner
        self.on_round = on_round
        self.began_at = time.monotonic()

    def __call__(self, local: LocalRound, rounds: int, score: Score | None, tested_rounds: int | None) -> None:
        """`score` is that of the latest test, which was made after `tested_rounds`."""
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
