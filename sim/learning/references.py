"""A server in place of peers: synchronous federated averaging (McMahan et al. 2017, arXiv 1602.05629, algorithm 1).

In each round every node trains from the same model and a hub takes the mean, weighted by the nodes' samples. With a
compressor both ways carry differences to what the other side knows already: of each node's change (EF21, Richtarik et
al. 2021, arXiv 2106.05203), and of the hub's model (EF21-P, Gruntkowska et al. 2022, arXiv 2209.15218). The other
references are those of real runs: `p2pfl.reporting.measures`.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from p2pfl.chance import generator
from p2pfl.compress import Compressor
from p2pfl.config.model import FederationConfig
from p2pfl.learn.interface import RoundStart, Vector
from p2pfl.reporting import measures
from p2pfl.reporting.measures import (
    ModelScore,
    Reference,
    ReferencePoint,
    model_score,
    moments,
    reference_point,
    with_history,
)
from sim.learning.nodes import Learners

_BLOCK_FLOATS = 16_000_000


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
    there is none. `rounds` must be given where time bounds the federation.
    """
    if learners.personal:
        return None
    taken = federation.training.rounds if rounds is None else rounds
    if taken is None:
        raise ValueError("this federation is bounded by time: say how many rounds")
    model = np.asarray(learners.initial(), dtype=np.float32)
    nodes = range(len(learners.learners))
    links = None if compressor is None else _Squeezed(compressor, model, len(nodes), federation.seed)
    message_bytes = model.nbytes if compressor is None else compressor.size_bytes(learners.size)
    when, history = set(moments(taken)), list[ReferencePoint]()
    for index in range(taken):
        model, loss = _round(learners, links, model, index, index * round_s)
        if index + 1 in when:
            point = reference_point(learners.score_everywhere(model, nodes), loss)
            point.rounds, point.bytes_sent = index + 1, (index + 1) * 2 * len(nodes) * message_bytes
            history.append(point)
    return with_history(history)


def alone(learners: Learners, rounds: int, round_s: float = 0.0) -> list[ModelScore | None]:
    """Score each node's model on its test set after so many rounds on its own data, `round_s` each."""
    if learners.personal:
        return [measures.alone(learner, rounds, round_s) for learner in learners.learners]
    scores, initial = list[ModelScore | None](), np.asarray(learners.initial(), dtype=np.float32)
    for nodes in _blocks(learners):
        rows = np.repeat(initial[None], len(nodes), axis=0)
        for index in range(rounds):
            rows, _ = _trained(learners, nodes, rows, index, index * round_s)
        scores += [model_score(score) for score in learners.evaluate(rows, "test", nodes)]
    return scores


def _round(
    learners: Learners, links: _Squeezed | None, model: NDArray[np.float32], index: int, elapsed_s: float
) -> tuple[NDArray[np.float32], float]:
    """Train all nodes from `model` (d,); return the mean of what arrives (d,), and of the training losses, by samples.

    Raises LearningError if the user's code failed.
    """
    total, loss, weights = np.zeros(learners.size), 0.0, np.array(learners.samples) / sum(learners.samples)
    for nodes in _blocks(learners):
        rows, losses = _trained(learners, nodes, np.repeat(model[None], len(nodes), axis=0), index, elapsed_s)
        heard = rows if links is None else links.hear(nodes, rows - model)
        total += weights[nodes] @ heard.astype(np.float64)
        loss += float(weights[nodes] @ losses)
    return total.astype(np.float32) if links is None else links.tell(model, total), loss


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
    trained = np.stack([local.vector for local in rounds]).astype(np.float32, copy=False)
    return trained, np.array([local.loss for local in rounds])


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
        shown: NDArray[np.float32] = known + arrived
        return shown

    def _sent(self, rows: NDArray[np.float32]) -> NDArray[np.float32]:
        chances = self.chance.integers(2**63, size=len(rows)).tolist() if self.compressor.random else None
        arrived: NDArray[np.float32] = self.compressor.quantize_rows(rows, chances=chances)
        return arrived
