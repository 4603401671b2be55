"""`normalized:steps=20`: a local round counts as if it had 20 steps. FedNova, Wang et al., arXiv 2007.07481.

Where rounds are passes over data of different sizes, nodes with more data take more steps and pull the mean toward
their own optimum. FedNova divides what a round has changed by its number of steps (eq. 6, plain SGD) and lets all nodes
move by one common number of them, which here is a parameter: there is no server to average the nodes' numbers.
"""

from __future__ import annotations

from p2pfl.methods.method import METHODS, MODEL, Array, Method, New, NodeVectors, Round, TrainingKeys, like
from p2pfl.specs import Entry, Parameter, number


@METHODS.add(
    Entry(
        name="normalized",
        aliases=("fednova",),
        means="a local round counts as if it had taken this many steps: for nodes whose rounds differ in length",
        parameters=(Parameter("steps", number(0, 1e30, above=True), "the steps that every round counts as"),),
        source="FedNova: Wang et al., arXiv 2007.07481",
    )
)
class Normalized(Method):
    """The correction for speed; it excludes rho, because only one may be made."""

    def __init__(self, steps: float = 20.0) -> None:
        self.steps = steps

    def prepare(self, training: TrainingKeys) -> None:
        if training.speed_correction != 1.0:
            raise ValueError("normalized corrects for speed itself: training.speed_correction must be 1")
        if training.optimizer != "sgd" or training.momentum:
            raise ValueError("normalized counts plain SGD steps: training.momentum must be 0, training.optimizer sgd")

    def trained(self, change: Array, node: NodeVectors, round: Round) -> New:
        return New({MODEL: change * like(change, self.steps / round.steps)})
