"""The learning methods that a file may name beside `plain` and `variate`, each with its paper."""

from __future__ import annotations

import math

from p2pfl.methods.method import (
    CONSERVATIVE,
    CORRECTION,
    FLOW,
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
from p2pfl.specs import Parameter, number

MOMENTUM, LAST, TRACKER = "momentum", "last", "tracker"
"""Names of the vectors that methods keep, exchange or give to a round."""
EPOCH = 10.0
"""The length of an epoch of `fair` in ticks of its clock. The clock runs as fast as the fastest nodes, or slightly
faster; all nodes agree on the largest weight within a few ticks.
"""
LEAST_LOSS = 1e-9
"""The value used for losses that are smaller or NaN."""
BOUND = 600.0
"""The largest absolute value of log F_k^q."""


@METHODS.add(
    name="fair",
    aliases=("qffl", "qfedavg"),
    means="nodes with a higher loss get more weight: for a model that serves its worst node better",
    parameters=(Parameter("q", number(0, 100), "how much more weight a higher loss gets; 0: all are equal"),),
    source="q-FFL: Li et al., arXiv 1905.10497",
)
class Fair(Method):
    """`fair:q=1`: nodes with a higher loss get more weight. q-FFL, Li, Sanjabi, Beirami and Smith, arXiv 1905.10497.

    The goal is sum (n_k/N) F_k^(q+1)/(q+1). Each node adds F_k^q/h times its change, with one h for all: the largest
    F_k^q. So no node moves further than with `plain`, and the node with the highest loss as far. A common factor does
    not move the optimum; a factor that differs between nodes would.

    q-FedAvg (Algorithm 2) divides by the sum of h_k = F_k^q + q F_k^(q-1) |w_k - w|^2/eta instead, which keeps the step
    as short as the new goal's curvature may require. The largest of these is many times their mean where labels differ,
    and all nodes hardly learn.

    The largest F_k^q falls as all nodes learn, so it is determined again in each epoch. The terms are a clock that
    every round advances, the largest F_k^q so far in the current epoch of the clock, the largest in the previous epoch,
    which is in use, and the node's own.

    F_k is the mean loss of the round's steps.
    """

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
        loss = float(round.loss) if round.loss > LEAST_LOSS else LEAST_LOSS
        own = math.exp(min(max(self.q * math.log(loss), -BOUND), BOUND))
        if (clock + 1.0) // EPOCH > clock // EPOCH:
            return clock + 1.0, own, max(collected, own), own
        return clock + 1.0, max(collected, own), used, own

    def agree(self, ours: tuple[float, ...], theirs: tuple[float, ...]) -> tuple[float, ...]:
        """Agree on the maximum of each term within the same epoch; otherwise the later epoch counts."""
        if ours[0] // EPOCH != theirs[0] // EPOCH:
            return max(ours, theirs)
        return tuple(map(max, ours, theirs))

    def heard(self, ours: tuple[float, ...], agreed: tuple[float, ...]) -> tuple[float, ...]:
        clock, collected, used, _ = self.agree(ours, agreed)
        return clock, max(collected, ours[3]), used, ours[3]


@METHODS.add(
    name="momentum",
    aliases=("qgm", "qgdsgdm"),
    means="steps also continue in the direction in which the mixed model has been moving",
    parameters=(Parameter("mu", number(0, 1, below=True), "the fraction of momentum left after a round"),),
    source="quasi-global momentum: Lin et al., arXiv 2102.04761",
)
class Momentum(Method):
    """`momentum:mu=0.9`: quasi-global momentum. QG-DSGDm, Lin, Karimireddy, Stich and Jaggi, arXiv 2102.04761.

    Momentum of a node's own gradients pulls the node further toward its own data. This one averages the movement of the
    *mixed* model between the node's rounds, which is the movement of the whole federation: m <- mu m + (1 - mu) d, with
    d = (x before - x now)/(eta H). Each step takes gradient + mu m (Algorithm 1 with beta = mu, and a local round in
    place of its step). If all agree on the direction, steps grow to 1/(1 - mu) times those of `plain`, within 1/(1 -
    mu)^2 rounds.

    `last` is the model just before the latest round was added to it.
    """

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


@METHODS.add(
    name="normalized",
    aliases=("fednova",),
    means="a local round counts as if it had taken this many steps; not with local_epochs",
    parameters=(Parameter("steps", number(0, 1e30, above=True), "the steps that every round counts as"),),
    source="FedNova: Wang et al., arXiv 2007.07481",
)
class Normalized(Method):
    """`normalized:steps=20`: a local round counts as if it had 20 steps. FedNova, Wang et al., arXiv 2007.07481.

    If rounds are passes over data of different sizes, nodes with more data take more steps and pull the mean toward
    their own optimum. FedNova divides the change in a round by its number of steps (eq. 6, plain SGD) and multiplies it
    by a common number of steps for all nodes. Here that number is a parameter, because there is no server to average
    the nodes' numbers.

    That is right where all nodes train equally many rounds. Here no node waits for others, and one with half the steps
    trains twice as many rounds: each would count as much as a long one, and its data twice. So `local_epochs` is
    refused. What is right whatever a round takes is the seconds per step, `speed_correction`.

    It corrects for speed, so it excludes rho: only one correction may be applied.
    """

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


@METHODS.add(
    name="outer",
    aliases=("diloco", "noloco"),
    means="local rounds are the gradients of an outer step with momentum: for long rounds, or AdamW inside them",
    parameters=(
        Parameter("momentum", number(0, 1, below=True), "the fraction of the latest move that continues"),
        Parameter("rate", number(0, 1e30, above=True), "how much of a local round counts"),
    ),
    source="NoLoCo: Kolehmainen et al., arXiv 2506.10911; DiLoCo: Douillard et al., arXiv 2311.08105",
)
class Outer(Method):
    """`outer:momentum=0.5,rate=0.7`: an outer optimizer over local rounds. NoLoCo, Kolehmainen et al., arXiv
    2506.10911.

    DiLoCo uses the change of a local round as the gradient of an outer step with Nesterov momentum, with a mean over
    all nodes. NoLoCo has no such mean; instead its velocity also includes the difference from a neighbor, so that the
    models of different nodes do not drift apart: delta <- momentum delta + rate change - gamma (x_i - the mean of
    both).

    Here the last term is mixing itself, which has already moved the model when a round ends. So delta is the whole
    movement of the model since the previous round, and a round adds momentum (x now - x before) + rate change.

    `last` is the model just before the latest round was added to it.
    """

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


@METHODS.add(
    name="prox",
    aliases=("fedprox",),
    means="each step is also pulled back toward the model that its round began with",
    parameters=(Parameter("mu", number(0, 1e30), "how strongly a step is pulled back"),),
    source="FedProx: Li et al., arXiv 1812.06127",
)
class Prox(Method):
    """`prox:mu=0.01`: each step is also pulled back toward the start of its round. FedProx: arXiv 1812.06127.

    Its steps follow the gradient of F(w) + mu/2 |w - anchor|^2.
    """

    def __init__(self, mu: float = 0.01) -> None:
        self.mu = mu

    def gradient(self, g: Array, w: Array, start: Vectors) -> Array:
        return g + self.mu * (w - start["anchor"])


@METHODS.add(
    name="tracking",
    aliases=("kgt", "gradienttracking"),
    means="each step follows an estimate of everybody's mean gradient, which nodes mix along with the model",
    parameters=(
        Parameter("gain", number(0, 1, above=True), "the fraction of a move by mixing that an estimate includes"),
    ),
    source="K-GT: Liu et al., arXiv 2301.01313",
)
class Tracking(Method):
    """`tracking:gain=0.5`: gradient tracking with local steps. K-GT, Liu, Lin, Koloskova and Stich, arXiv 2301.01313.

    A second channel is the tracker y_i = g_i + C_i. The node's own part g_i is the mean gradient in its latest round;
    C_i is the contribution of mixing (the flows: C_i = (1/n_i) sum_j S_ij, where S_ij is the sum of all D by which
    exchanges on that edge moved the tracker). Each step takes gradient + C_i, so that a round moves along y_i. A flow
    has opposite signs at its two ends, so sum n_i C_i is zero even if a node has lost data. At equilibrium, where all
    y_i are equal, the sum of n_i g_i is zero.

    In the paper (Algorithm 1) all nodes mix once per round: C_i <- C_i - y_i + sum_j w_ij y_j. Here a slow node's g_i
    is old when fast ones mix with it, and delayed gradients overshoot. So a flow includes only the fraction `gain` of a
    move; the paper's value is 1, which is better if speeds differ little. The rest of y_i is corrected when the next
    round is committed.

    This is decentralized SCAFFOLD, with twice the traffic.
    """

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
