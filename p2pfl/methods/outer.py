"""`outer:momentum=0.5,rate=0.7`: an outer optimizer over local rounds. NoLoCo, Kolehmainen et al., arXiv 2506.10911.

DiLoCo uses the change of a local round as the gradient of an outer step with Nesterov momentum, over a mean of all
nodes. NoLoCo has no such mean: its velocity also includes the difference to a neighbor, so that the models of different
nodes do not drift apart: delta <- momentum delta + rate change - gamma (x_i - the mean of both).

Here that last term is mixing itself, which has moved the model already when a round ends. So delta is the whole
movement of the model since the latest round, and a round adds momentum (x now - x before) + rate change.
"""

from __future__ import annotations

from p2pfl.methods.method import METHODS, MODEL, Array, Method, New, NodeVectors, Round, like
from p2pfl.specs import Entry, Parameter, number

LAST = "last"


@METHODS.add(
    Entry(
        name="outer",
        aliases=("diloco", "noloco"),
        means="local rounds are the gradients of an outer step with momentum: for long rounds, or AdamW inside them",
        parameters=(
            Parameter("momentum", number(0, 1, below=True), "the part of the latest move that goes on"),
            Parameter("rate", number(0, 1e30, above=True), "how much of a local round counts"),
        ),
        source="NoLoCo: Kolehmainen et al., arXiv 2506.10911; DiLoCo: Douillard et al., arXiv 2311.08105",
    )
)
class Outer(Method):
    """The method; `last` is the model just before the latest round was added to it."""

    kept = (LAST,)

    def __init__(self, momentum: float = 0.5, rate: float = 0.7) -> None:
        self.momentum = momentum
        self.rate = rate

    def first(self, name: str, model: Array) -> Array:
        return model

    def trained(self, change: Array, node: NodeVectors, round: Round) -> New:
        now = node.channels[MODEL]
        onward = (now - node.kept[LAST]) * like(change, self.momentum)
        return New({MODEL: onward + change * like(change, self.rate * round.rho)}, {LAST: now})
