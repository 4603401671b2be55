"""A server in place of peers: synchronous federated averaging (McMahan et al. 2017, arXiv 1602.05629, algorithm 1).

In each round every node trains from the same model and a hub takes the mean, weighted by the nodes' samples. With a
compressor both ways carry differences to what the other side knows already: of each node's change (EF21, Richtarik et
al. 2021, arXiv 2106.05203), and of the hub's model (EF21-P, Gruntkowska et al. 2022, arXiv 2209.15218). The other
references are those of real runs: `p2pfl.reporting.references`.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from p2pfl.chance import generator
from p2pfl.compress.interface import Compressor
from p2pfl.config.model import FederationConfig
from p2pfl.learn.interface import RoundStart, Vector
from p2pfl.reporting.measures import Reference, ReferencePoint
from p2pfl.reporting.references import moments, reference_point, with_history
from sim.learning.nodes import Learners


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
    wanted, history = set(moments(taken)), list[ReferencePoint]()
    for index in range(taken):
        model, loss = _round(learners, links, model, index, index * round_s)
        if index + 1 in wanted:
            point = reference_point(learners.score_everywhere(model, nodes), loss)
            point.rounds, point.bytes_sent = index + 1, (index + 1) * 2 * len(nodes) * message_bytes
            history.append(point)
    return with_history(history)


def _round(
    learners: Learners, links: _Squeezed | None, model: NDArray[np.float32], index: int, elapsed_s: float
) -> tuple[NDArray[np.float32], float]:
    """Train all nodes from `model` (d,); return the mean of what arrives (d,), and of the training losses, by samples.

    Raises LearningError if the user's code failed.
    """
    total, loss, samples = np.zeros(learners.size), 0.0, sum(learners.samples)
    for node, learner in enumerate(learners.learners):
        local = learner.train(RoundStart(model.copy(), elapsed_s=elapsed_s), index)
        arrived = local.vector if links is None else links.hear(node, local.vector - model)
        weight = learners.samples[node] / samples
        total += weight * arrived.astype(np.float64)
        loss += weight * local.loss
    return total.astype(np.float32) if links is None else links.tell(model, total), loss


class _Squeezed:
    """Links that compress. `heard` (n, d) is each node's change in a round as known to the hub, `model` (d,) the hub's
    model.

    Nodes know as much of the hub's model as has arrived.
    """

    def __init__(self, compressor: Compressor, model: Vector, nodes: int, seed: int) -> None:
        self.compressor, self.chance = compressor, generator(seed, "server")
        self.heard, self.model = np.zeros((nodes, len(model)), np.float32), model.astype(np.float64)

    def hear(self, node: int, change: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return the change (d,) of this node, as far as it arrives."""
        self.heard[node] += self._sent(change - self.heard[node])
        arrived: NDArray[np.float32] = self.heard[node]
        return arrived

    def tell(self, known: NDArray[np.float32], change: NDArray[np.float64]) -> NDArray[np.float32]:
        """Move the hub's model by `change` (d,) and return the nodes' updated copy of it (d,), previously `known`."""
        self.model += change
        told: NDArray[np.float32] = known + self._sent((self.model - known).astype(np.float32))
        return told

    def _sent(self, row: NDArray[np.float32]) -> NDArray[np.float32]:
        chances = self.chance.integers(2**63, size=1).tolist() if self.compressor.random else None
        arrived: NDArray[np.float32] = self.compressor.quantize_rows(row[None], chances=chances)[0]
        return arrived
