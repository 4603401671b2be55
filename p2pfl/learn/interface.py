"""The interface between learning and everything else: flat float32 vectors in, flat vectors out.

The engine, the node and the simulator see only this; torch appears behind it and nowhere else.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from p2pfl.learn.intervals import Interval
from p2pfl.learn.privacy.plan import Plan
from p2pfl.methods import Method

Vector = NDArray[np.floating[Any]]
"""A one-dimensional array of float32, or of float64 in some tests."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalRound:
    """The outcome of one local round. `vector` (d,) is the model after `steps` steps at `learning_rate`.

    `samples` is n, the current size of the node's training set and its weight in the mean. It may change between
    rounds. `local` is the learner's `local_state` after the round. The caller records it, and keeps or drops it
    together with the round.
    """

    vector: Vector
    steps: int
    learning_rate: float
    samples: int
    loss: float
    local: dict[str, NDArray[np.generic]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """The result of a test. `accuracy` is in [0, 1], or None if the task has none; `loss` is the mean over
    `samples`.
    """

    accuracy: float | None
    loss: float
    samples: int
    metrics: dict[str, float] = field(default_factory=dict)
    intervals: dict[str, Interval] = field(default_factory=dict)
    """95% intervals of accuracy and metrics, by name, for those that have one. They cover the chance in which rows are
    tested.
    """


@dataclass(frozen=True, slots=True)
class RoundStart:
    """The input of a local round: the `model` (d,), which is not modified, and the vectors (d,) `given` by the
    `method`. Each step uses the method's `gradient`.

    Without a method the round uses the gradients of the loss unchanged. `elapsed_s` is how long the node has been
    training.
    """

    model: Vector
    given: Mapping[str, Vector] = field(default_factory=dict)
    method: Method | None = None
    elapsed_s: float = 0.0

    def __post_init__(self) -> None:
        if self.given and self.method is None:
            raise ValueError("vectors for a method, but no method")


class Learner(Protocol):
    """One node's model and data.

    It is called from one thread at a time. `size` is d; `personal` is the number of other floating-point values, which
    stay on the node. `shape_digest` (16 bytes) covers the names, shapes and order of all shared tensors: two nodes may
    mix only if their digests are equal. A learner may list the task's measures, the main one first, in `measures`; see
    `p2pfl.learn.metrics`. One whose rounds have no steps says in `round_is` what they are; one that
    keeps in its process what `local_state` does not have says so by `stays_in_process`.
    """

    size: int
    personal: int
    shape_digest: bytes
    samples: int

    def initial(self) -> Vector:
        """The model (d,) that every node starts from, a function of the federation's seed alone."""
        ...

    def train(self, start: RoundStart, round_index: int) -> LocalRound:
        """Run one local round from `start`, with its method's gradients.

        Randomness depends only on (federation seed, node, round_index). State that is not shared carries over from the
        last successful round.

        Raises LearningError: the user's code failed, or the state that is not shared is not finite.
        """
        ...

    def evaluate(self, vector: Vector, part: str) -> Score | None:
        """Score the model on `part`: "test" (common test set) or "local" (own training data). Return None if there are
        no such data.
        """
        ...

    def local_state(self) -> dict[str, NDArray[np.generic]]:
        """Return the state that is not shared but must survive a restart, by name: personal tensors, integer buffers,
        and the optimizer's state if it is kept. Nobody writes to these arrays.
        """
        ...

    def load_local_state(self, state: dict[str, NDArray[np.generic]]) -> None:
        """Restore what `local_state` returned, in this or another process."""
        ...

    def state_dict(self, vector: Vector) -> dict[str, NDArray[np.generic]]:
        """Return the plain model: all tensors, local ones included, under the names in torch's `state_dict`."""
        ...


def plan_by(learner: Learner) -> Plan | None:
    """Return the plan for a learner's noise, or None if its rounds are not private."""
    plan: Plan | None = getattr(learner, "plan", None)
    return plan


def device_of(learner: Learner) -> str:
    """Return a description of the device on which a learner computes; "cpu" if the learner does not name it."""
    return str(getattr(learner, "device", "cpu"))
