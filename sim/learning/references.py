"""References: the same learning without a network of peers, so that a report can say what decentralization costs.

- `centralized`: all data in one place, the same optimizer, batch size and length of a round.
- `fedavg`: synchronous federated averaging (McMahan et al. 2017, arXiv 1602.05629, algorithm 1, C = 1): in each round
  every node trains from the same model and a hub takes the mean, weighted by the nodes' samples. With a compressor
  both ways carry differences to what the other side knows already: of each node's change (EF21, Richtarik et al. 2021,
  arXiv 2106.05203), and of the hub's model (EF21-P, Gruntkowska et al. 2022, arXiv 2209.15218).
- `alone`: each node without any neighbor.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from p2pfl.chance import generator
from p2pfl.compress.interface import Compressor
from p2pfl.config.model import FederationConfig
from p2pfl.learn.interface import RoundStart, Score, Vector
from p2pfl.reporting.history import Centralized, ModelScore, Reference, ReferencePoint
from p2pfl.reporting.measures import model_score
from p2pfl.reporting.references import (
    EVALUATIONS,
    MOST_STEPS,
    mean_score,
    moments,
    reference_point,
    with_history,
)
from p2pfl.reporting.references import alone as one_alone
from p2pfl.reporting.references import centralized as pooled
from sim.learning.batching import Learners

__all__ = ["EVALUATIONS", "alone", "centralized", "fedavg", "score_everywhere"]

_BLOCK_FLOATS = 16_000_000
_FLOAT_BYTES = 4


def centralized(
    federation: FederationConfig,
    learners: Learners,
    *,
    rounds: int | None = None,
    most_steps: int = MOST_STEPS,
    round_s: float = 0.0,
) -> Centralized | None:
    """Train one model on all data, as `p2pfl.reporting.references` describes; None if data cannot be pooled."""
    nodes = learners.nodes
    if nodes is None or isinstance(nodes.pool, str):
        return None
    every = [nodes[node] for node in range(len(nodes))]
    return pooled(every, _rounds(federation, rounds), rows=nodes.pool.rows, most_steps=most_steps, round_s=round_s)


def alone(
    federation: FederationConfig, learners: Learners, *, rounds: int | None = None, round_s: float = 0.0
) -> list[ModelScore | None]:
    """Score each node's model on its test set after the same number of rounds on its own data, `round_s` each."""
    taken = _rounds(federation, rounds)
    if learners.personal:
        return [one_alone(learner, taken, round_s) for learner in learners.learners]
    found, initial = list[ModelScore | None](), np.asarray(learners.initial(), dtype=np.float32)
    for nodes in _blocks(learners):
        rows = np.repeat(initial[None], len(nodes), axis=0)
        for index in range(taken):
            rows, _ = _trained(learners, nodes, rows, index, index * round_s)
        found += [model_score(score) for score in learners.evaluate(rows, "test", nodes)]
    return found


def fedavg(
    federation: FederationConfig,
    learners: Learners,
    *,
    rounds: int | None = None,
    round_s: float = 0.0,
    compressor: Compressor | None = None,
) -> Reference | None:
    """Simulate federated averaging: accuracy, loss, rounds, history and `bytes_sent`. The nodes' copy of the model is
    scored.

    `bytes_sent` counts what goes to and from each node in each round: a float32 model, or the largest payload that
    `compressor` makes from a difference. The result is None if nodes keep part of the model personal, because there is
    no single model to score. The history's `loss` is on the test set, or the mean of the nodes' training losses if
    there is none.
    """
    if learners.personal:
        return None
    taken = _rounds(federation, rounds)
    model = np.asarray(learners.initial(), dtype=np.float32)
    nodes = range(len(learners.learners))
    links = None if compressor is None else _Squeezed(compressor, model, len(nodes), federation.seed)
    hub = _Hub(learners, links)
    message_bytes = learners.size * _FLOAT_BYTES if compressor is None else compressor.size_bytes(learners.size)
    round_bytes = 2 * len(nodes) * message_bytes
    wanted, history = set(moments(taken)), list[ReferencePoint]()
    for index in range(taken):
        model, loss = hub.round(model, index, index * round_s)
        if index + 1 in wanted:
            point = reference_point(score_everywhere(learners, model, nodes), loss)
            point.rounds, point.bytes_sent = index + 1, (index + 1) * round_bytes
            history.append(point)
    return with_history(history)


def score_everywhere(learners: Learners, model: Vector, nodes: Sequence[int]) -> Score | None:
    """Score one model (d,) on the test sets of these nodes; for a user's own learners, on the first node's."""
    first, counts = np.array(nodes[:1], dtype=np.int64), np.array([1])
    if learners.nodes is not None:
        _, places, counts = np.unique(learners.nodes.test_of[list(nodes)], return_index=True, return_counts=True)
        first = np.array(nodes, dtype=np.int64)[places]
    rows = np.repeat(np.asarray(model)[None], len(first), axis=0)
    return mean_score(zip(learners.evaluate(rows, "test", first), counts.tolist(), strict=True))


def _rounds(federation: FederationConfig, rounds: int | None) -> int:
    """Return the federation's own number of rounds; if time bounds it, `rounds` must be given."""
    found = federation.training.rounds if rounds is None else rounds
    if found is None:
        raise ValueError("this federation is bounded by time: say how many rounds")
    return max(1, found)


def _blocks(learners: Learners) -> list[NDArray[np.int64]]:
    """Split all nodes into blocks whose models fit well into memory."""
    nodes, block = np.arange(len(learners.learners)), max(1, _BLOCK_FLOATS // learners.size)
    return np.split(nodes, range(block, len(nodes), block))


def _trained(
    learners: Learners, nodes: NDArray[np.int64], models: NDArray[np.float32], index: int, elapsed_s: float
) -> tuple[NDArray[np.float32], NDArray[np.float64]]:
    """Train a round of each node from its row of `models` (b, d); return the models and the losses (b,).

    Raises LearningError if the user's code failed.
    """
    starts = [RoundStart(model, elapsed_s=elapsed_s) for model in models]
    rounds = learners.train([(node, start, index) for node, start in zip(nodes.tolist(), starts, strict=True)])
    trained = np.stack([one.vector for one in rounds]).astype(np.float32, copy=False)
    return trained, np.array([one.loss for one in rounds])


class _Squeezed:
    """Links that compress. `heard` (n, d) is each node's change in a round as known to the hub, `model` (d,) the hub's
    model.

    Nodes know as much of the hub's model as has arrived.
    """

    def __init__(self, compressor: Compressor, model: Vector, nodes: int, seed: int) -> None:
        self.compressor, self.chance = compressor, generator(seed, "server")
        self.heard, self.model = np.zeros((nodes, len(model)), np.float32), model.astype(np.float64)

    def hear(self, nodes: NDArray[np.int64], changes: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return the changes (b, d) of these nodes, as far as they arrive."""
        self.heard[nodes] += self._sent(changes - self.heard[nodes])
        return self.heard[nodes]

    def tell(self, known: NDArray[np.float32], change: NDArray[np.float64]) -> NDArray[np.float32]:
        """Move the hub's model by `change` (d,) and return the nodes' updated copy of it (d,), previously `known`."""
        self.model += change
        arrived = self._sent((self.model - known).astype(np.float32)[None])[0]
        told: NDArray[np.float32] = known + arrived
        return told

    def _sent(self, rows: NDArray[np.float32]) -> NDArray[np.float32]:
        chances = self.chance.integers(2**63, size=len(rows)).tolist() if self.compressor.random else None
        arrived: NDArray[np.float32] = self.compressor.quantize_rows(rows, chances=chances)
        return arrived


class _Hub:
    """Trains all nodes from one model and averages the results, weighted by their samples."""

    def __init__(self, learners: Learners, links: _Squeezed | None) -> None:
        self.learners, self.links = learners, links
        self.weights = np.array(learners.samples, dtype=np.float64) / sum(learners.samples)

    def round(self, model: NDArray[np.float32], index: int, elapsed_s: float) -> tuple[NDArray[np.float32], float]:
        """Do one round from `model` (d,); return the new model (d,) and the mean training loss."""
        total, loss = np.zeros(self.learners.size), 0.0
        for nodes in _blocks(self.learners):
            rows, losses = _trained(self.learners, nodes, np.repeat(model[None], len(nodes), axis=0), index, elapsed_s)
            heard = rows if self.links is None else self.links.hear(nodes, rows - model)
            total += self.weights[nodes] @ heard.astype(np.float64)
            loss += float(self.weights[nodes] @ losses)
        return total.astype(np.float32) if self.links is None else self.links.tell(model, total), loss
