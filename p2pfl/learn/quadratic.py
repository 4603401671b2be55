"""Built-in task `quadratic`: node k minimizes F_k(w) = 1/2 (w - t_k)^T A_k (w - t_k), A_k diagonal. No torch.

The federation's optimum, the minimum of sum_k n_k F_k / sum_k n_k, is known exactly, so that tests, checks of the
network and simulations can compare with it.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from p2pfl.chance import generator
from p2pfl.config.model import TrainingConfig
from p2pfl.errors import UserError
from p2pfl.learn.interface import Learner, LocalRound, RoundStart, Score, Vector
from p2pfl.learn.metrics import LOSS
from p2pfl.learn.sharing import shape_digest
from p2pfl.learn.task import NodeContext, at_least

EQUAL_SAMPLES = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class QuadraticTask:
    """Options of `[task]`. `condition` is the ratio of the largest to the smallest curvature of each node.

    Each node has the curvatures in an order of its own. `noise` is the standard deviation of each gradient entry;
    `samples` are the n_k; `step_s` is slept in each round, in place of slow training (a node's own `[data]` may
    override it).
    """

    size: int = 16
    condition: float = 1.0
    noise: float = 0.0
    samples: list[int] | Literal["equal"] = "equal"
    step_s: float = 0.0

    def __post_init__(self) -> None:
        at_least("size", self.size, 1)
        at_least("condition", self.condition, 1)
        at_least("noise", self.noise, 0)
        at_least("step_s", self.step_s, 0)
        if self.samples != "equal":
            at_least("samples", min(self.samples, default=0), 1)

    def learner(self, context: NodeContext, training: TrainingConfig) -> Learner:
        return QuadraticLearner(self, context, training)


class QuadraticLearner:
    """One node's F_k. It computes in float64 and returns the type of its input vector."""

    def __init__(self, task: QuadraticTask, context: NodeContext, training: TrainingConfig) -> None:
        _check(task, context, training)
        self._context = context
        self._noise = task.noise
        self._training = training
        self._counts = _counts(task, context.nodes)
        self._targets, self._curvatures = _problem(task.size, task.condition, context.nodes, context.seed)
        self._step_s = float(context.local.get("step_s", task.step_s))
        self.samples = int(self._counts[context.node])
        self._batch = min(training.batch_size, self.samples)
        passes = (training.local_epochs or 0) * -(-self.samples // training.batch_size)
        self._steps = passes if training.local_steps is None else training.local_steps
        self.size = task.size
        self.personal = 0
        self.measures = (LOSS,)
        self.shape_digest = shape_digest([("w", (task.size,), "float32")])

    def initial(self) -> Vector:
        return np.zeros(self.size, dtype=np.float32)

    def optimum(self) -> NDArray[np.float64]:
        """The minimum (d,) of the federation's objective: sum n_k A_k t_k / sum n_k A_k."""
        weights = self._counts[:, None] * self._curvatures
        return np.asarray((weights * self._targets).sum(axis=0) / weights.sum(axis=0), dtype=np.float64)

    def train(self, start: RoundStart, round_index: int) -> LocalRound:
        node = self._context.node
        rng = generator(self._context.seed, "gradient noise", node, round_index)
        rate = self._training.rate(round_index, start.elapsed_s)
        method, w, losses = start.method, start.model.astype(np.float64), []
        given = {"anchor": w} | {name: vector.astype(np.float64) for name, vector in start.given.items()}
        for _ in range(self._steps):
            away = w - self._targets[node]
            losses.append(0.5 * float(away @ (self._curvatures[node] * away)))
            noise = self._noise * rng.standard_normal(self.size) if self._noise else 0.0
            gradient = self._curvatures[node] * away + noise
            w = w - rate * (gradient if method is None else method.gradient(gradient, w, given))
        if self._step_s:
            time.sleep(self._step_s)
        return LocalRound(
            vector=w.astype(start.model.dtype),
            steps=self._steps,
            learning_rate=rate,
            samples=self.samples,
            loss=float(np.mean(losses)),
        )

    def evaluate(self, vector: Vector, part: str) -> Score | None:
        """Score on F_k for "local", on the federation's objective for "test"."""
        nodes = {"local": [self._context.node], "test": list(range(self._context.nodes))}[part]
        away = vector.astype(np.float64) - self._targets[nodes]
        values = 0.5 * (self._curvatures[nodes] * away**2).sum(axis=1)
        counts = self._counts[nodes]
        return Score(accuracy=None, loss=float(counts @ values / counts.sum()), samples=int(counts.sum()))

    def local_state(self) -> dict[str, NDArray[np.generic]]:
        return {}

    def load_local_state(self, state: dict[str, NDArray[np.generic]]) -> None:
        del state

    def state_dict(self, vector: Vector) -> dict[str, NDArray[np.generic]]:
        return {"w": vector.astype(np.float32)}


def _check(task: QuadraticTask, context: NodeContext, training: TrainingConfig) -> None:
    context.check_local("step_s")
    own = context.local.get("step_s", 0.0)
    if isinstance(own, bool) or not isinstance(own, int | float) or not own >= 0:
        raise UserError("not a duration", key="data.step_s", value=own, allowed="seconds, at least 0")
    if training.optimizer != "sgd" or training.momentum or training.weight_decay:
        raise UserError(
            "the quadratic task supports only plain gradient descent",
            key="training.optimizer",
            value=training.optimizer,
            allowed="sgd without momentum and weight_decay",
        )
    if task.samples != "equal" and len(task.samples) != context.nodes:
        raise UserError(
            "there must be one count per node",
            key="task.samples",
            value=task.samples,
            allowed=f"{context.nodes} counts",
        )


def _counts(task: QuadraticTask, nodes: int) -> NDArray[np.int64]:
    return np.asarray([EQUAL_SAMPLES] * nodes if task.samples == "equal" else task.samples, dtype=np.int64)


@lru_cache(maxsize=2)
def _problem(size: int, condition: float, nodes: int, seed: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Targets and curvatures of all nodes, (nodes, d) each; the largest curvature is 1. Cached, because a simulation
    needs the same at each of its nodes.
    """
    targets, curvatures = [], []
    spread = np.geomspace(1 / condition, 1.0, size)
    for node in range(nodes):
        rng = generator(seed, "quadratic", node)
        targets.append(rng.standard_normal(size))
        curvatures.append(rng.permutation(spread))
    return np.stack(targets), np.stack(curvatures)
