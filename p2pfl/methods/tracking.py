"""`tracking:gain=0.5`: gradient tracking with local steps. K-GT, Liu, Lin, Koloskova and Stich, arXiv 2301.01313.

A second channel is the tracker y_i = g_i + C_i. The node's own part g_i is the mean gradient in its latest round; C_i
is the contribution of mixing (the flows: C_i = (1/n_i) sum_j S_ij, where S_ij is the sum of all D by which exchanges on
that edge moved the tracker). Each step takes gradient + C_i, so that a round moves along y_i. A flow has opposite signs
at its two ends, so sum n_i C_i is zero even if a node has lost data. At equilibrium, where all y_i are equal, the sum
of n_i g_i is zero.

In the paper (Algorithm 1) all nodes mix once per round: C_i <- C_i - y_i + sum_j w_ij y_j. Here a slow node's g_i is
old when fast ones mix with it, and delayed gradients overshoot. So a flow includes only the fraction `gain` of a move;
the paper's value is 1, which is better if speeds differ little. The rest of y_i is corrected when the next round is
committed.
"""

from __future__ import annotations

from p2pfl.methods.method import (
    CONSERVATIVE,
    METHODS,
    MODEL,
    Array,
    Method,
    New,
    NodeVectors,
    Number,
    Round,
    TrainingKeys,
    Vectors,
    like,
)
from p2pfl.specs import Entry, Parameter, number

TRACKER, FLOW, CORRECTION = "tracker", "flow", "correction"


@METHODS.add(
    Entry(
        name="tracking",
        aliases=("kgt", "gradienttracking"),
        means="each step follows an estimate of everybody's mean gradient, which nodes mix along with the model",
        parameters=(
            Parameter("gain", number(0, 1, above=True), "the fraction of a move by mixing that an estimate includes"),
        ),
        source="K-GT: Liu et al., arXiv 2301.01313",
    )
)
class Tracking(Method):
    """The method: decentralized SCAFFOLD, with twice the traffic."""

    profiles = frozenset({CONSERVATIVE})
    channels = (MODEL, TRACKER)
    kept_edges = (FLOW,)
    needs_anchor = False
    given = (CORRECTION,)
    needs_company = True
    every_parameter = True

    def __init__(self, gain: float = 0.5) -> None:
        self.gain = gain

    def prepare(self, training: TrainingKeys) -> None:
        if training.optimizer != "sgd" or training.momentum:
            raise ValueError("tracking assumes plain SGD: training.momentum must be 0, training.optimizer sgd")

    def begin(self, node: NodeVectors) -> Vectors:
        return {CORRECTION: self._correction(node)}

    def gradient(self, g: Array, w: Array, start: Vectors) -> Array:
        return g + start[CORRECTION]

    def trained(self, change: Array, node: NodeVectors, round: Round) -> New:
        followed = change * like(change, -1.0 / (round.learning_rate * round.steps))
        own = followed - node.given[CORRECTION]
        tracker = own + self._correction(node)
        return New({MODEL: change * like(change, round.rho), TRACKER: tracker - node.channels[TRACKER]})

    def moved(self, edge: Vectors, move: Array, terms: tuple[Number, ...]) -> Vectors:
        return {FLOW: edge[FLOW] + move * like(move, self.gain)}

    @staticmethod
    def _correction(node: NodeVectors) -> Array:
        total = node.sum_of_edges(FLOW, TRACKER)
        total *= like(total, 1.0 / node.samples)
        return total
