"""`variate:beta=0.1`: a control variate computed from the flows of mixing, for heterogeneous data.

The variate of node i is C_i = -(beta/n_i) sum_j S_ij, added to each gradient. S_ij, the *flow* of an edge, is the sum
over its exchanges of D/a, where n times the model moved by D, and a = rho eta H (learning rate times steps) is the
larger of both ends' values. Its two ends differ only in sign, so sum_i n_i C_i is zero whatever else a node has lost;
flows from absent neighbors do not count. The idea comes from SCAFFOLD (Karimireddy et al., arXiv 1910.06378) and K-GT
(Liu et al., arXiv 2301.01313), without a second vector on the wire.
"""

from __future__ import annotations

from p2pfl.methods.method import (
    CONSERVATIVE,
    METHODS,
    Array,
    Method,
    NodeVectors,
    Number,
    Round,
    TrainingKeys,
    Vectors,
    like,
)
from p2pfl.specs import Entry, Parameter, number

FLOW, CORRECTION = "flow", "correction"
LEAST_DRIFT = 1e-9


@METHODS.add(
    Entry(
        name="variate",
        aliases=("scaffold", "controlvariate"),
        means="each gradient is corrected by the movement due to mixing so far: for data that differ between nodes",
        parameters=(Parameter("beta", number(0, 1e30, above=True), "how strongly flows correct a gradient"),),
        source="after SCAFFOLD (arXiv 1910.06378) and K-GT (arXiv 2301.01313)",
    )
)
class Variate(Method):
    """The method. The drift a is its only term; it is 0 before a node has trained."""

    profiles = frozenset({CONSERVATIVE})
    kept_edges = (FLOW,)
    needs_anchor = False
    given = (CORRECTION,)
    no_terms = (0.0,)
    needs_company = True
    every_parameter = True
    least_drift = LEAST_DRIFT
    """The smallest drift accepted from a neighbor: a smaller one would make the variate explode."""

    def __init__(self, beta: float = 0.1) -> None:
        self.beta = beta

    def prepare(self, training: TrainingKeys) -> None:
        self.least_drift = max(LEAST_DRIFT, 0.5 * training.least_rate / training.speed_correction)

    def begin(self, node: NodeVectors) -> Vectors:
        total = node.sum_of_edges(FLOW)
        total *= like(total, -self.beta / node.samples)
        return {CORRECTION: total}

    def gradient(self, g: Array, w: Array, start: Vectors) -> Array:
        return g + start[CORRECTION]

    def terms(self, round: Round) -> tuple[float, ...]:
        return (round.learning_rate * round.steps * round.rho,)

    def valid(self, terms: tuple[float, ...]) -> bool:
        return not 0.0 < terms[0] < self.least_drift

    def agree(self, ours: tuple[float, ...], theirs: tuple[float, ...]) -> tuple[float, ...]:
        return (max(ours[0], theirs[0]),)

    def moves(self, terms: tuple[float, ...]) -> bool:
        """Return True if either end has trained: otherwise none of the disagreement that flows comes from training."""
        return terms[0] > 0.0

    def moved(self, edge: Vectors, move: Array, terms: tuple[Number, ...]) -> Vectors:
        return {FLOW: edge[FLOW] + move * like(move, 1.0 / terms[0])}
