"""Learners of models with known layers, without torch: a linear model that trains, and any that is only counted.

The linear one has torch's first bits, batches, names and shapes, and its steps but for rounding, so that nodes with
and without torch learn together and resume from each other's folders.
"""

from __future__ import annotations

import math
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from p2pfl.chance import generator, torch_seed
from p2pfl.config.model import TrainingConfig
from p2pfl.learn.interface import LocalRound, RoundStart, Score, Vector, batch_sizes, draw_rows, shape_digest
from p2pfl.learn.task import NodeContext, Task, measures_for, scored

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
        self.labels = train[1].dtype.kind != "f" and train[1].ndim == 1 < task.layers[-1]
        self.measures = measures_for(task, labels=self.labels)
        slots = 2 if training.optimizer != "sgd" else int(training.momentum > 0)
        self.bytes_in_training = 4 * (self.size * (2 + slots) + max(sizes))
        """As in `TorchModel`: weights, gradients, the optimizer's values, and as much as the largest tensor."""

    def initial(self) -> Vector:
        return np.zeros(self.size, np.float32)

    def local_state(self) -> dict[str, NDArray[np.generic]]:
        return {}


class LinearLearner(CountedLearner):
    """The `Learner` of a task with one layer and a `gradient`: weights (outputs, width), then biases (outputs,)."""

    def __init__(self, task: Task, context: NodeContext, training: TrainingConfig) -> None:
        super().__init__(task, context, training)
        self.context, self.training = context, training
        self.digest, self.preprocessing = task.digest, task.preprocessing

    def initial(self) -> Vector:
        """Draw as torch's `Linear` does: from 24 bits of each word of the Mersenne Twister."""
        chance = np.random.RandomState(torch_seed(self.context.seed, "model") & 0xFFFFFFFF)
        bits = np.frombuffer(chance.bytes(4 * self.size), "<u4") & 0xFFFFFF
        bound = float(np.float32(1 / math.sqrt(self.task.layers[0])))
        return (bits * 2.0**-24 * (2 * bound) - bound).astype(np.float32)

    def train(self, start: RoundStart, round_index: int) -> LocalRound:
        training, method, node = self.training, start.method, self.context.node
        rate, sizes = training.rate(round_index, start.elapsed_s, start.closing), batch_sizes(training, self.samples)
        rng = generator(self.context.seed, "batches", node, round_index)
        inputs, targets = self.train_set.inputs, self.train_set.targets
        w: Floats = start.model.astype(np.float32)
        g, losses, kept, given = np.empty_like(w), [], None, {"anchor": start.model, **start.given}
        (weight, bias), (of_weight, of_bias) = self._split(w), self._split(g)
        with np.errstate(all="ignore"):  # the node drops a round that is not finite
            for rows in np.split(draw_rows(self.samples, sum(sizes), rng), np.cumsum(sizes)[:-1]):
                x = inputs[rows]
                loss, slope = self.task.gradient(x @ weight.T + bias, targets[rows])
                np.matmul(slope.T, x, out=of_weight)
                slope.sum(axis=0, out=of_bias)
                move = g if method is None else method.gradient(g, w, given)
                if training.weight_decay:
                    move = move + training.weight_decay * w
                if training.momentum:
                    move = kept = move.copy() if kept is None else training.momentum * kept + move
                w -= rate * move
                losses.append(loss)
        loss = float(np.mean(losses, dtype=np.float32))
        return LocalRound(vector=w, steps=len(sizes), learning_rate=rate, samples=self.samples, loss=loss)

    def evaluate(self, vector: Vector, part: str) -> Score | None:
        samples = {"test": self.test_set, "local": self.train_set}[part]
        if samples is None:
            return None
        weight, bias = self._split(vector.astype(np.float32))
        with np.errstate(all="ignore"):
            outputs = samples.inputs @ weight.T + bias
            loss, _ = self.task.gradient(outputs, samples.targets)
        hits = int((outputs.argmax(axis=1) == samples.targets).sum()) if self.labels else 0
        judged = len(outputs) * self.labels
        return scored(self.task, (outputs, samples.targets), loss, len(outputs), hits=hits, judged=judged)

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
