"""`normalized:steps=20`: a local round counts as if it had 20 steps. FedNova, Wang et al., arXiv 2007.07481.

If rounds are passes over data of different sizes, nodes with more data take more steps and pull the mean toward their
own optimum. FedNova divides the change in a round by its number of steps (eq. 6, plain SGD) and multiplies it by a
common number of steps for all nodes. Here that number is a parameter, because there is no server to average the nodes'
numbers.

That is right where all nodes train equally many rounds. Here no node waits for others, and one with half the steps
trains twice as many rounds: each would count as much as a long one, and its data twice. So `local_epochs` is refused.
What is right whatever a round takes is the seconds per step, `speed_correction`.
"""

from __future__ import annotations

from p2pfl.methods.method import METHODS, MODEL, Array, Method, New, NodeVectors, Round, TrainingKeys, like
from p2pfl.specs import Entry, Parameter, number


@METHODS.add(
    Entry(
        name="normalized",
        aliases=("fednova",),
        means="a local round counts as if it had taken this many steps; not with local_epochs",
        parameters=(Parameter("steps", number(0, 1e30, above=True), "the steps that every round counts as"),),
        source="FedNova: Wang et al., arXiv 2007.07481",
    )
)
class Normalized(Method):
    """The method. It corrects for speed, so it excludes rho: only one correction may be applied."""

    def __init__(self, steps: float = 20.0) -> None:
        self.steps = steps

    def prepare(self, training: TrainingKeys) -> None:
        if training.speed_correction != 1.0:
            raise ValueError("normalized corrects for speed itself: training.speed_correction must be 1")
        if training.optimizer != "sgd" or training.momentum:
            raise ValueError("normalized counts plain SGD steps: training.momentum must be 0, training.optimizer sgd")
        if training.local_epochs is not None:
            raise ValueError(
                "normalized counts rounds alike, and with training.local_epochs a node with few rows trains more of "
                "them: its data would count for more. Write variate, or plain with speed_correction = 20"
            )

    def trained(self, change: Array, node: NodeVectors, round: Round) -> New:
        return New({MODEL: change * like(change, self.steps / round.steps)})
