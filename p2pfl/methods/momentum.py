"""`momentum:mu=0.9`: quasi-global momentum. QG-DSGDm, Lin, Karimireddy, Stich and Jaggi, arXiv 2102.04761.

Momentum of a node's own gradients pulls the node further toward its own data. This one averages the movement of the
*mixed* model between the node's rounds, which is the movement of the whole federation: m <- mu m + (1 - mu) d, with d =
(x before - x now)/(eta H). Each step takes gradient + mu m (Algorithm 1 with beta = mu, and a local round in place of
its step). If all agree on the direction, steps grow to 1/(1 - mu) times those of `plain`, within 1/(1 - mu)^2 rounds.
"""

from __future__ import annotations

from p2pfl.methods.method import METHODS, MODEL, Array, Method, New, NodeVectors, Round, Vectors, like
from p2pfl.specs import Entry, Parameter, number

MOMENTUM, LAST = "momentum", "last"


@METHODS.add(
    Entry(
        name="momentum",
        aliases=("qgm", "qgdsgdm"),
        means="steps also continue in the direction in which the mixed model has been moving",
        parameters=(Parameter("mu", number(0, 1, below=True), "the fraction of momentum left after a round"),),
        source="quasi-global momentum: Lin et al., arXiv 2102.04761",
    )
)
class Momentum(Method):
    """The method. `last` is the model just before the latest round was added to it."""

    kept = (MOMENTUM, LAST)
    needs_anchor = False
    given = (MOMENTUM,)

    def __init__(self, mu: float = 0.9) -> None:
        self.mu = mu

    def first(self, name: str, model: Array) -> Array:
        return model if name == LAST else super().first(name, model)

    def begin(self, node: NodeVectors) -> Vectors:
        return {MOMENTUM: node.kept[MOMENTUM]}

    def gradient(self, g: Array, w: Array, start: Vectors) -> Array:
        return g + self.mu * start[MOMENTUM]

    def trained(self, change: Array, node: NodeVectors, round: Round) -> New:
        now = node.channels[MODEL]
        direction = (node.kept[LAST] - now) * like(change, (1.0 - self.mu) / (round.learning_rate * round.steps))
        momentum = node.kept[MOMENTUM] * like(change, self.mu) + direction
        return New({MODEL: change * like(change, round.rho)}, {MOMENTUM: momentum, LAST: now})
