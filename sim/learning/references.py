"""What the same learning gives without a network of peers, so that a report can say what decentralization costs.

- `centralized`: all data in one place, the same optimizer, batch size and length of a round.
- `fedavg`: synchronous federated averaging (McMahan et al. 2017, arXiv 1602.05629, algorithm 1, C = 1): in each round
  every node trains from the same model and a hub takes the mean, weighted by the nodes' samples.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

import msgspec
import numpy as np
from numpy.typing import NDArray

from p2pfl.config.model import FederationConfig, TrainingConfig
from p2pfl.learn.interface import RoundStart, Score, Vector
from p2pfl.learn.samples import batch_sizes
from p2pfl.learn.trainer import TorchLearner
from p2pfl.reporting.history import Centralized, Reference, ReferencePoint
from sim.learning.batched import BatchedLearners
from sim.learning.grouped import RoundStarts
from sim.learning.nodes import Pool, TorchNodes

EVALUATIONS = 20
"""Most evaluations in one history."""
MOST_STEPS = 20_000
"""Most steps of a centralized run: more would cost as much as the simulation, long after it converged."""
_BLOCK_FLOATS = 16_000_000
_FLOAT_BYTES = 4


def centralized(
    federation: FederationConfig, learners: BatchedLearners, *, rounds: int | None = None, most_steps: int = MOST_STEPS
) -> Centralized | None:
    """One model that learns from all data; None where data cannot be pooled.

    The first takes as many steps as one node in `rounds` rounds, on average; the second goes on until it has taken as
    many as all nodes together, or `most_steps`. Each has accuracy, loss (of the test set, or the training loss where
    there is none), steps and history.
    """
    nodes = learners.nodes
    if nodes is None or isinstance(nodes.pool, str):
        return None
    steps = [len(batch_sizes(federation.training, count)) for count in learners.samples]
    training = replace(federation.training, local_steps=round(sum(steps) / len(steps)), local_epochs=None)
    one = _rounds(federation, rounds)
    every = min(one * len(steps), most_steps // (training.local_steps or 1))
    first, last = _pooled_run(nodes, nodes.pool, training, (one, every))
    return Centralized(one_node=first, all_nodes=last)


def fedavg(federation: FederationConfig, learners: BatchedLearners, *, rounds: int | None = None) -> Reference | None:
    """Accuracy, loss, rounds, history and `bytes_sent`: a float32 model to and from each node in each round.

    None where nodes keep a part of the model to themselves: there is no one model whose accuracy it would be. The
    history's `loss` is that of the test set, or the mean of the nodes' training losses where there is none.
    """
    if learners.personal:
        return None
    taken = _rounds(federation, rounds)
    model = np.asarray(learners.initial(), dtype=np.float32)
    weights = np.array(learners.samples, dtype=np.float64) / sum(learners.samples)
    round_bytes = 2 * len(learners) * learners.size * _FLOAT_BYTES
    moments, history = set(_moments(taken)), list[ReferencePoint]()
    for index in range(taken):
        model, loss = _average(learners, model, index, weights)
        if index + 1 in moments:
            (score,) = learners.evaluate(model[None], "test", np.array([0]))
            point = _point(score, loss)
            point.rounds, point.bytes_sent = index + 1, (index + 1) * round_bytes
            history.append(point)
    return _reference(history)


def _rounds(federation: FederationConfig, rounds: int | None) -> int:
    """The federation's own number of rounds; where time bounds it, that must be said."""
    found = federation.training.rounds if rounds is None else rounds
    if found is None:
        raise ValueError("this federation is bounded by time: say how many rounds")
    return max(1, found)


def _average(
    learners: BatchedLearners, model: Vector, index: int, weights: NDArray[np.float64]
) -> tuple[NDArray[np.float32], float]:
    """One round from `model` (d,): the new model (d,) and the mean training loss."""
    total, loss = np.zeros(learners.size), 0.0
    block = max(1, _BLOCK_FLOATS // learners.size)
    for start in range(0, len(learners), block):
        nodes = np.arange(start, min(start + block, len(learners)))
        rows = np.repeat(model[None], len(nodes), axis=0)
        losses = learners.train(
            nodes, np.full(len(nodes), index), RoundStarts(rows, np.zeros(len(nodes), np.bool_)), rows
        )
        total += weights[nodes] @ rows.astype(np.float64)
        loss += float(weights[nodes] @ losses)
    return total.astype(np.float32), loss


def _point(score: Score | None, training_loss: float) -> ReferencePoint:
    if score is None:
        return ReferencePoint(loss=training_loss)
    return ReferencePoint(accuracy=score.accuracy, loss=score.loss, metrics=dict(score.metrics))


def _reference(history: list[ReferencePoint]) -> Reference:
    return Reference(**msgspec.structs.asdict(history[-1]), history=history)


def _pooled_run(nodes: TorchNodes, pool: Pool, training: TrainingConfig, goals: tuple[int, int]) -> Iterator[Reference]:
    """A reference after each of the two numbers of rounds; one that has passed already changes nothing."""
    steps = training.local_steps or 1
    learner = _pooled_learner(nodes, pool, training)
    model, done, history = learner.initial(), 0, list[ReferencePoint]()
    for goal in goals:
        for moment in _moments(goal):
            loss = math.nan
            for index in range(done, moment):
                local = learner.train(RoundStart(model), index)
                model, loss = local.vector, local.loss
            if moment > done:
                done = moment
                point = _point(learner.evaluate(model, "test"), loss)
                point.steps = done * steps
                history.append(point)
        yield _reference(list(history))


def _pooled_learner(nodes: TorchNodes, pool: Pool, training: TrainingConfig) -> TorchLearner:
    first = nodes.prototype
    learner = TorchLearner(first.task, replace(first.context, node=0), training)
    return learner.at_node(learner.context, pool.rows, nodes.tests[0] if nodes.tests else None)


def _moments(rounds: int) -> list[int]:
    """After which rounds a model is evaluated: evenly spaced, the last among them."""
    count = min(rounds, EVALUATIONS)
    return [rounds * (place + 1) // count for place in range(count)]
