"""Learners of models with known layers, without torch: a linear model that trains, and any that is only counted.

The linear one starts from torch's bits, draws the same batches and has the same names and shapes, so that nodes with
and without torch learn together and each resumes from the other's folder. Its steps differ from torch's by rounding
alone, less than a millionth.
"""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import pairwise
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from p2pfl.chance import generator, torch_seed
from p2pfl.config.model import TrainingConfig
from p2pfl.errors import LearningError
from p2pfl.learn.interface import LocalRound, RoundStart, Score, Vector, batch_sizes, draw_rows, shape_digest
from p2pfl.learn.task import Gradient, NodeContext, Task, measures_of, scored
from p2pfl.methods import METHODS

Floats = NDArray[np.float32]

MOST_COUNTED = 10_000_000
"""The most values of a model that `p2pfl check` counts and does not build: more may not fit in memory."""


class CountedLearner:
    """What `p2pfl check` asks of the learner of a task with `layers`, without torch: its data, and its model's size. A
    model is not built: its vectors are zero, and nothing trains.
    """

    personal = 0

    def __init__(self, task: Task, context: NodeContext, training: TrainingConfig) -> None:
        """Raises an error if there is a mistake, or anything that only building the model shows."""
        shapes = [
            (f"{2 * place + 1}.{kind}", shape, "float32")
            for place, (width, following) in enumerate(pairwise(task.layers))
            for kind, shape in (("weight", (following, width)), ("bias", (following,)))
        ]
        sizes = [math.prod(shape) for _, shape, _ in shapes]
        self.task, self.size, self.shape_digest = task, sum(sizes), shape_digest(shapes)
        is_odd = training.logit_adjust or (training.momentum and training.optimizer != "sgd")
        if is_odd or not 0 < self.size <= MOST_COUNTED:
            raise ValueError("only torch's learner can do that")
        train, test = task.data(context)
        self.train_set, self.test_set = _rows(*train), None if test is None else _rows(*test)
        self.data_sets, self.samples = SimpleNamespace(train=self.train_set, test=self.test_set), len(train[1])
        labels = train[1].dtype.kind != "f" and train[1].ndim == 1 < task.layers[-1]
        self.measures = measures_of(task, labels=labels)
        slots = 2 if training.optimizer != "sgd" else int(training.momentum > 0)
        self.bytes_in_training = 4 * (self.size * (2 + slots) + max(sizes))
        """As in `TorchModel`: weights, gradients, the optimizer's values, and as much as the largest tensor."""

    def initial(self) -> Vector:
        return np.zeros(self.size, np.float32)

    def local_state(self) -> dict[str, NDArray[np.generic]]:
        return {}


def is_linear(task: Task, training: TrainingConfig) -> bool:
    """Return True if `LinearLearner` can train that: plain SGD, by a method of ours (a user's takes tensors)."""
    is_plain = training.optimizer == "sgd" and not training.keep_optimizer
    return task.gradient is not None and is_plain and not METHODS.own(training.method or "")


class LinearLearner(CountedLearner):
    """The `Learner` of a task with one layer and a `gradient`. Vectors (d,) have weights (outputs, width), then biases
    (outputs,).
    """

    def __init__(self, task: Task, context: NodeContext, training: TrainingConfig) -> None:
        super().__init__(task, context, training)
        self.context, self.training = context, training
        self.digest, self.preprocessing = task.digest, task.preprocessing
        self._gradient = cast("Gradient", task.gradient)

    def initial(self) -> Vector:
        """Draw as torch's `Linear` does: from 24 bits of each word of the Mersenne Twister."""
        chance = np.random.RandomState(torch_seed(self.context.seed, "model") & 0xFFFFFFFF)
        bits = np.frombuffer(chance.bytes(4 * self.size), "<u4") & 0xFFFFFF
        bound = float(np.float32(1 / math.sqrt(self.task.layers[0])))
        return (bits * 2.0**-24 * (2 * bound) - bound).astype(np.float32)

    def train(self, start: RoundStart, round_index: int) -> LocalRound:
        place, rate = ("batches", self.context.node), self.training.rate(round_index, start.elapsed_s, start.closing)
        vector, losses = self._descend(start, self.training, rate, *place, round_index)
        loss = float(np.mean(losses, dtype=np.float32))
        return LocalRound(vector=vector, steps=len(losses), learning_rate=rate, samples=self.samples, loss=loss)

    def finetune(self, vector: Vector, epochs: int) -> Vector:
        """Return the model (d,) after so many passes over the node's own data. Raises LearningError: it diverged."""
        training = replace(self.training, local_steps=None, local_epochs=epochs)
        rate, place = training.learning_rate, ("finetune", self.context.node)
        tuned, _ = self._descend(RoundStart(vector), training, rate, *place)
        if not np.isfinite(tuned).all():
            text = "the model is not finite after fine-tuning (learning_rate too high?)"
            raise LearningError(f"{self.task.name}: {text}")
        return tuned

    def _descend(
        self, start: RoundStart, training: TrainingConfig, rate: float, purpose: str, *place: int
    ) -> tuple[Floats, list[float]]:
        """Return the model after a round, and the loss of each step. Its rows are drawn for `purpose` and `place`."""
        sizes = batch_sizes(training, self.samples)
        rows = draw_rows(self.samples, sum(sizes), generator(self.context.seed, purpose, *place))
        inputs, targets, method = self.train_set.inputs, self.train_set.targets, start.method
        w: Floats = start.model.astype(np.float32)
        g, losses, kept, given = np.empty_like(w), [], None, {"anchor": start.model, **start.given}
        (weight, bias), (of_weight, of_bias) = self._split(w), self._split(g)
        with np.errstate(all="ignore"):  # the node drops a round that is not finite
            for batch in np.split(rows, np.cumsum(sizes)[:-1]):
                x = inputs[batch]
                loss, slope = self._gradient(x @ weight.T + bias, targets[batch])
                np.matmul(slope.T, x, out=of_weight)
                slope.sum(axis=0, out=of_bias)
                move = g if method is None else method.gradient(g, w, given)
                if training.weight_decay:
                    move = move + training.weight_decay * w
                if training.momentum:
                    move = kept = move.copy() if kept is None else training.momentum * kept + move
                w -= rate * move
                losses.append(loss)
        return w, losses

    def evaluate(self, vector: Vector, part: str) -> Score | None:
        samples = {"test": self.test_set, "local": self.train_set}[part]
        if samples is None:
            return None
        weight, bias = self._split(vector.astype(np.float32))
        with np.errstate(all="ignore"):
            outputs = samples.inputs @ weight.T + bias
            loss, _ = self._gradient(outputs, samples.targets)
        labels = samples.targets.ndim == 1
        hits = int((outputs.argmax(axis=1) == samples.targets).sum()) if labels else 0
        count = len(outputs)
        return scored(self.task, (outputs, samples.targets), loss, count, hits=hits, judged=count * labels)

    def load_local_state(self, state: dict[str, NDArray[np.generic]]) -> None:
        del state

    def state_dict(self, vector: Vector) -> dict[str, NDArray[np.generic]]:
        return dict(zip(("1.weight", "1.bias"), self._split(vector.astype(np.float32)), strict=True))

    def _split(self, vector: Floats) -> tuple[Floats, Floats]:
        """Return weights and biases, as views."""
        width, outputs = self.task.layers
        return vector[: width * outputs].reshape(outputs, width), vector[width * outputs :]


def _rows(*pair: NDArray[Any]) -> SimpleNamespace:
    """Return inputs and targets in the types that they have as tensors. Raises ValueError: that is no data set."""
    inputs, targets = (each.astype(np.float32 if each.dtype.kind == "f" else np.int64, copy=False) for each in pair)
    if not (len(inputs) == len(targets) > 0 and np.isfinite(inputs).all() and np.isfinite(targets).all()):
        raise ValueError("no data set")
    return SimpleNamespace(inputs=inputs, targets=targets, nbytes=inputs.nbytes + targets.nbytes)
