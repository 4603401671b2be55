"""`fair:q=1`: nodes with a higher loss count for more. q-FFL, Li, Sanjabi, Beirami and Smith, arXiv 1905.10497.

The goal is sum (n_k/N) F_k^(q+1)/(q+1). q-FedAvg (Algorithm 2) moves by sum F_k^q (w_k - w) / sum h_k, where h_k =
F_k^q + q F_k^(q-1) |w_k - w|^2/eta keeps the step as short as the new goal's curvature requires. (A round counts as one
step here, so eta is the learning rate times the steps.) Here each node adds F_k^q/h times its change, with one h for
all: the largest h_k. So no node moves further than by `plain`. A common factor does not move the optimum; one that
differed from node to node would.

The largest h_k falls as all learn, so it is collected anew again and again. The terms are a clock that every round
advances, the largest h so far in this epoch of the clock, that of the epoch before, which is in use, and the own h.
"""

from __future__ import annotations

import math

from p2pfl.methods.method import CONSERVATIVE, METHODS, MODEL, Array, Method, New, NodeVectors, Round, like
from p2pfl.specs import Entry, Parameter, number

EPOCH = 10.0
"""The length of an epoch in ticks of the clock. The clock is as fast as the fastest nodes, or a little faster; within a
few ticks all nodes agree on the largest h.
"""
LEAST_LOSS = 1e-9
"""Smaller losses, and those that are NaN, count as this."""
BOUND = 600.0
"""The largest absolute value of the logarithm of an h."""


@METHODS.add(
    Entry(
        name="fair",
        aliases=("qffl", "qfedavg"),
        means="nodes with a higher loss count for more: for a model that serves its worst node better",
        parameters=(Parameter("q", number(0, 100), "how much more a higher loss counts; with 0 all count alike"),),
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
        common = math.log(max(used or collected, own))
        factor = math.exp(min(self._weight(round), BOUND) - common)
        return New({MODEL: change * like(change, factor * round.rho)})

    def terms(self, round: Round) -> tuple[float, ...]:
        clock, collected, used, _ = round.terms
        rate = round.learning_rate * round.steps
        own = self._weight(round) + math.log1p(self.q * round.moved**2 / (rate * _loss(round)))
        own = math.exp(min(max(own, -BOUND), BOUND))
        if _epoch(clock + 1.0) > _epoch(clock):
            return clock + 1.0, own, max(collected, own), own
        return clock + 1.0, max(collected, own), used, own

    def agree(self, ours: tuple[float, ...], theirs: tuple[float, ...]) -> tuple[float, ...]:
        """Agree on the largest of each term within one epoch; of two epochs the later one counts."""
        if _epoch(ours[0]) != _epoch(theirs[0]):
            return max(ours, theirs)
        return tuple(map(max, ours, theirs))

    def heard(self, ours: tuple[float, ...], agreed: tuple[float, ...]) -> tuple[float, ...]:
        clock, collected, used, _ = self.agree(ours, agreed)
        return clock, max(collected, ours[3]), used, ours[3]

    def _weight(self, round: Round) -> float:
        """Compute the logarithm of F_k^q."""
        return self.q * math.log(_loss(round))


def _loss(round: Round) -> float:
    return float(round.loss) if round.loss > LEAST_LOSS else LEAST_LOSS


def _epoch(clock: float) -> float:
    return clock // EPOCH
