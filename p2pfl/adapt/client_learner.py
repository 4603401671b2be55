"""A client as a node's learner: what its server would do is done by gossip."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from p2pfl.adapt.array_layout import ArrayLayout
from p2pfl.adapt.client import Client, ClientFit
from p2pfl.adapt.steps import common_chance, corrected, refuse_optimizer
from p2pfl.chance import torch_seed
from p2pfl.config.model import TrainingConfig
from p2pfl.errors import LearningError, UserError
from p2pfl.learn.interface import LocalRound, RoundStart, Score, Vector
from p2pfl.learn.metrics import ACCURACY
from p2pfl.learn.task import NodeContext
from p2pfl.plugins import FAILURES, describe_failure, own_failures

LOSSES = ("train_loss", "train-loss", "loss")
"""The names under which a client's `fit` may return the loss of its training."""


class ClientLearner:
    """The learner of one node, which `make` gives its client.

    Arrays that are not of floating-point numbers stay on the node. A local round is one `fit`.
    """

    personal = 0
    round_is = "one fit"
    """What a round is, whatever `local_steps` says."""
    stays_in_process = True
    """The client may keep something in its process from round to round."""
    tests_own = True
    """The test set is the client's own, so that no `[privacy]` counts it as public."""

    def __init__(self, make: Callable[[], Client], context: NodeContext, training: TrainingConfig, what: str) -> None:
        """Make the client and its first arrays, from the federation's seed. `what` it is says an error.

        Raises UserError: the client fails, or `[training]` has an optimizer.
        """
        refuse_optimizer(training, what)
        self.context, self.training = context, training
        try:
            with common_chance(torch_seed(context.seed, "model")):
                self.client = make()
                first = self.client.first()
        except UserError:
            raise
        except FAILURES as error:
            raise UserError(f"failed: {describe_failure(error)}", file="client", key="first arrays") from error
        self.layout = ArrayLayout([f"array {k}" for k in range(len(first))], first, self.client.name)
        self.size, self.shape_digest = self.layout.size, self.layout.digest
        self._first, self._local = self.layout.joined(first), self.layout.local(first)
        self.digest = hashlib.blake2b(self._first.tobytes(), digest_size=32, person=b"p2pfl-client").digest()
        """Nodes that would start from different models refuse to connect."""
        self._ahead: tuple[Vector, ClientFit] | None = None
        """The first round, done ahead to learn the number of samples."""
        try:
            self.samples = self._count()
        except LearningError as error:
            raise UserError(str(error), file=self.client.name, key="fit") from error.__cause__

    def _count(self) -> int:
        if (known := self.client.count()) is not None:
            return known
        fitted = self._fit(self._first, 0)
        self._ahead = (self.layout.joined(fitted.arrays), fitted)
        return fitted.examples

    def initial(self) -> Vector:
        return self._first.copy()

    def train(self, start: RoundStart, round_index: int) -> LocalRound:
        ahead, self._ahead = self._ahead, None
        if ahead is not None and round_index == 0 and np.array_equal(start.model, self._first):
            after, fitted = ahead
        else:
            fitted = self._fit(start.model, round_index)
            after = self.layout.joined(fitted.arrays)
        rate = self.training.learning_rate
        vector = corrected(start, start.model, after, rate)
        self._local, self.samples = self.layout.local(fitted.arrays), fitted.examples
        loss = next((fitted.figures[name] for name in LOSSES if name in fitted.figures), math.nan)
        return LocalRound(vector=vector, steps=1, learning_rate=rate, samples=fitted.examples, loss=loss)

    def _fit(self, model: Vector, round_index: int) -> ClientFit:
        """Let the client fit once. Raises LearningError: it fails, or returns something else than it should."""
        seed = torch_seed(self.context.seed, "fit", self.context.node, round_index)
        arrays = self.layout.split(model, self._local)
        with own_failures(f"{self.client.name}.fit"), common_chance(seed):
            return self.client.fit(arrays, round_index)

    def evaluate(self, vector: Vector, part: str) -> Score | None:
        """Score the model on the client's own test data. There is no score on its training data."""
        if part != "test":
            return None
        with own_failures(f"{self.client.name}.evaluate"), common_chance(torch_seed(self.context.seed, "evaluate")):
            results = self.client.evaluate(self.layout.split(vector, self._local))
        if results is None:
            return None
        figures = results.figures
        own = {name: value for name, value in figures.items() if name != ACCURACY.name}
        accuracy = figures.get(ACCURACY.name)
        return Score(accuracy=accuracy, loss=results.loss, samples=results.examples, metrics=own)

    def local_state(self) -> dict[str, NDArray[np.generic]]:
        return dict(self._local)

    def load_local_state(self, state: dict[str, NDArray[np.generic]]) -> None:
        self._local = dict(state)

    def state_dict(self, vector: Vector) -> dict[str, NDArray[np.generic]]:
        return dict(zip(self.client.names(len(self.layout.names)), self.layout.split(vector, self._local), strict=True))
