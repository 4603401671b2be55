"""`fair:q=1`: nodes with a higher loss get more weight. q-FFL, Li, Sanjabi, Beirami and Smith, arXiv 1905.10497.

The goal is sum (n_k/N) F_k^(q+1)/(q+1). Each node adds F_k^q/h times its change, with one h for all: the largest
F_k^q. So no node moves further than with `plain`, and the node with the highest loss as far. A common factor does not
move the optimum; a factor that differs between nodes would.

q-FedAvg (Algorithm 2) divides by the sum of h_k = F_k^q + q F_k^(q-1) |w_k - w|^2/eta instead, which keeps the step as
short as the new goal's curvature may require. The largest of these is many times their mean where labels differ, and
all nodes hardly learn.

The largest F_k^q falls as all nodes learn, so it is determined again in each epoch. The terms are a clock that every
round advances, the largest F_k^q so far in the current epoch of the clock, the largest in the previous epoch, which is
in use, and the node's own.
"""

from __future__ import annotations

import math

from p2pfl.methods.method import CONSERVATIVE, METHODS, MODEL, Array, Method, New, NodeVectors, Round, like
from p2pfl.specs import Entry, Parameter, number

EPOCH = 10.0
"""The length of an epoch in ticks of the clock. The clock runs as fast as the fastest nodes, or slightly faster; all
nodes agree on the largest weight within a few ticks.
"""
LEAST_LOSS = 1e-9
"""The value used for losses that are smaller or NaN."""
BOUND = 600.0
"""The largest absolute value of log F_k^q."""


@METHODS.add(
    Entry(
        name="fair",
        aliases=("qffl", "qfedavg"),
        means="nodes with a higher loss get more weight: for a model that serves its worst node better",
        parameters=(Parameter("q", number(0, 100), "how much more weight a higher loss gets; 0: all are equal"),),
        source="q-FFL: Li et al., arXiv 1905.10497",
    )
)
class Fair(Method):
    """The method, in which F_k is the mean loss of the round's steps."""

    profiles = frozenset({CONSERVATIVE})
    unfit = "a liar could claim any loss, and with it slow all others down"
    no_terms = (0.0, 0.0, 0.0, 0.0)
    needs_loss = True

    def __init__(self, q: float = 1.0) -> None:
        self.q = q

    def trained(self, change: Array, node: NodeVectors, round: Round) -> New:
        _, collected, used, own = self.terms(round)
        factor = own / max(used or collected, own)
        return New({MODEL: change * like(change, factor * round.rho)})

    def terms(self, round: Round) -> tuple[float, ...]:
        clock, collected, used, _ = round.terms
        own = math.exp(min(max(self.q * math.log(_loss(round)), -BOUND), BOUND))
        if _epoch(clock + 1.0) > _epoch(clock):
            return clock + 1.0, own, max(collected, own), own
        return clock + 1.0, max(collected, own), used, own

    def agree(self, ours: tuple[float, ...], theirs: tuple[float, ...]) -> tuple[float, ...]:
        """Agree on the maximum of each term within the same epoch; otherwise the later epoch counts."""
        if _epoch(ours[0]) != _epoch(theirs[0]):
            return max(ours, theirs)
        return tuple(map(max, ours, theirs))

    def heard(self, ours: tuple[float, ...], agreed: tuple[float, ...]) -> tuple[float, ...]:
        clock, collected, used, _ = self.agree(ours, agreed)
        return clock, max(collected, ours[3]), used, ours[3]


def _loss(round: Round) -> float:
    return float(round.loss) if round.loss > LEAST_LOSS else LEAST_LOSS


def _epoch(clock: float) -> float:
    return clock // EPOCH
