"""Was this row among those that a node trained on? Membership inference, and a canary in the noise that hides rows.

*Membership* is inferred by likelihood ratio: Carlini et al. 2022, "Membership inference attacks from first principles"
(arXiv 2112.03570, algorithm 1 and sections V-VI): for each row, two Gaussians are fitted to the confidence of models
with it and without it. The attacker trains these shadow models itself, copies of the federation on different halves of
the rows, so it knows everything except which rows there are. As in the paper, success is measured by the true positive
rate at a low false positive rate, not only by the area under the curve.

*Which labels* a node has: the last layer's bias rises for those (Wainakh et al. 2022, arXiv 2105.09369), in the change
that a neighbor sees, or in the difference of two sums with and without a member or a group (So et al. 2021, arXiv
2106.03328).

The *canary* is a row with an arbitrarily large gradient that points against all others, so that whatever passes the
clipping is seen (Nasr et al. 2021, arXiv 2101.04535; 2023, arXiv 2302.07956), in many rounds with it and without it.
The model is a bare vector; the mechanism is the learner's own: its randomness, its clipping, its noise.

A *proof* turns errors into a bound. If a mechanism is (epsilon, delta)-private, nobody can tell two neighboring data
sets apart with fewer errors than that allows (Kairouz, Oh, Viswanath 2015, arXiv 1311.0776). If its noise is Gaussian,
every attack is bounded by a whole error curve, the one for two Gaussians at a distance mu (Dong, Roth, Su 2019, arXiv
1905.02383), so fewer tries prove more. Written without scipy, which is an extra.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import NormalDist
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from p2pfl.chance import generator
from p2pfl.config.model import FederationConfig, TrainingConfig
from p2pfl.config.sections import PRV, RECORD
from p2pfl.learn.interface import RoundStart
from p2pfl.learn.privacy import Plan
from p2pfl.learn.privacy.noise import Chance, Secret, Seeded
from p2pfl.learn.privacy.plan import Protection
from p2pfl.learn.task import NodeContext, Task
from p2pfl.learn.tensors import FlatModule, TensorSamples
from p2pfl.learn.trainer import TorchLearner
from sim.audits.reconstruction import last_bias
from sim.audits.scene import Observation, Scene, hidden_rounds, observe_simulated

Values = NDArray[np.floating[Any]]
CONFIDENCE = 0.95
NORMAL = NormalDist()


@dataclass(frozen=True, slots=True, kw_only=True)
class Proof:
    """Bounds that hold with 95% confidence; zero if nothing is proven.

    `mu` is the smallest distance between two unit Gaussians that allows as few errors as were observed; `epsilon` is
    the smallest for any mechanism that does, at the given delta.
    """

    mu: float
    epsilon: float
    tries: int
    """The number of runs with the row, and also of runs without it."""


def clopper_pearson(hits: int, tries: int, confidence: float = CONFIDENCE) -> tuple[float, float]:
    """Bound a probability after `hits` in `tries`; each bound is wrong with probability (1 - confidence) / 2."""
    error = (1 - confidence) / 2
    low = 0.0 if hits == 0 else _root(lambda p: _at_least(hits, tries, p) - error)
    high = 1.0 if hits == tries else _root(lambda p: error - (1.0 - _at_least(hits + 1, tries, p)))
    return low, high


def proof(with_row: Values, without: Values, delta: float) -> Proof:
    """Prove bounds from the scores (n,) of runs with a row, which should be larger, and of runs without it (n,).

    The threshold is chosen on the first quarter of each and tested on the rest.
    """
    first = min(len(with_row), len(without)) // 4
    tries = min(len(with_row), len(without)) - first
    threshold = _threshold(with_row[:first], without[:first])
    positives = int((without[first : first + tries] > threshold).sum())
    negatives = int((with_row[first : first + tries] <= threshold).sum())
    fpr, fnr = (clopper_pearson(errors, tries)[1] for errors in (positives, negatives))
    mu = max(0.0, NORMAL.inv_cdf(1 - fpr) - NORMAL.inv_cdf(fnr)) if max(fpr, fnr) < 1 else 0.0
    return Proof(
        mu=mu,
        epsilon=max(0.0, _log_ratio(1 - delta - fnr, fpr), _log_ratio(1 - delta - fpr, fnr)),
        tries=tries,
    )


def epsilon_of_gaussians(mu: float, delta: float) -> float:
    """Return the epsilon for two unit Gaussians at a distance mu: corollary 2.13 of Dong, Roth and Su."""

    def delta_at(epsilon: float) -> float:
        at = -epsilon / mu + mu / 2
        beyond = NORMAL.cdf(at - mu)
        return NORMAL.cdf(at) - (math.exp(epsilon + math.log(beyond)) if beyond > 0 else 0.0)

    if mu <= 0 or delta_at(0.0) <= delta:
        return 0.0
    high = 1.0
    while delta_at(high) > delta:
        high *= 2
    return high * _root(lambda part: delta - delta_at(part * high))


def _threshold(with_row: Values, without: Values) -> float:
    """Return the threshold with the fewest errors of both kinds for Gaussians with these means: the midpoint."""
    return float(with_row.mean() + without.mean()) / 2 if len(with_row) and len(without) else 0.0


def _log_ratio(above: float, below: float) -> float:
    return math.log(above / below) if above > 0 and below > 0 else 0.0


def _at_least(hits: int, tries: int, p: float) -> float:
    """Return the probability of at least `hits` successes in `tries` with success probability p."""
    if p <= 0.0:
        return 0.0 if hits > 0 else 1.0
    if p >= 1.0:
        return 1.0
    counts = np.arange(tries + 1)
    logs = _log_binomials(tries) + counts * math.log(p) + (tries - counts) * math.log1p(-p)
    return float(np.exp(logs[hits:]).sum())


def _log_binomials(tries: int) -> Values:
    logs = np.concatenate([[0.0], np.cumsum(np.log(np.arange(1, tries + 1)))])
    binomials: Values = logs[-1] - logs - logs[::-1]
    return binomials


def _root(rising: Callable[[float], float]) -> float:
    """Find the zero of an increasing function, between 0 and 1."""
    low, high = 0.0, 1.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (low, middle) if rising(middle) >= 0 else (middle, high)
    return (low + high) / 2


Flags = NDArray[np.bool_]
LEAST = 1e-3
"""The smallest standard deviation assumed for confidences."""
FALSE_POSITIVES = 0.01


@dataclass(frozen=True, slots=True, kw_only=True)
class MembershipFigures:
    """The success: `auc` of guessing is 0.5; `tpr` of members are recognized when 1% of non-members are mistaken."""

    auc: float
    tpr: float


def confidences(module: nn.Module, inputs: Tensor, targets: Tensor) -> Values:
    """Return the logit-scaled confidence (n,) in each row's own class: log p_y - log(1 - p_y); outputs (n, classes)."""
    was_training = module.training
    module.eval()
    with torch.no_grad():
        logs = functional.log_softmax(module(inputs).double(), dim=1)
    module.train(was_training)
    own = logs.gather(1, targets[:, None])[:, 0]
    others = logs.scatter(1, targets[:, None], -torch.inf).logsumexp(1)
    margins: Values = (own - others).numpy()
    return margins


def likelihood_ratios(confidence: Values, shadows: Values, members: Flags) -> Values:
    """Compute for each row the log ratio (q,) of having been trained on to not.

    `confidence` (q,) is the target model's and `shadows` (k, q) the shadow models'; `members` (k, q) flags which
    shadows were trained on which row. A row that all or none of the shadows were trained on has ratio 0.
    """
    ratios: Values = _log_density(confidence, shadows, members) - _log_density(confidence, shadows, ~members)
    return np.where(members.any(axis=0) & (~members).any(axis=0), ratios, 0.0)


def attack_each(confidence: Values, members: Flags) -> MembershipFigures:
    """Treat each of k models (k, q) in turn as the target, and the others as its shadows."""
    ratios = np.empty(confidence.shape)
    for target in range(len(confidence)):
        others = np.arange(len(confidence)) != target
        ratios[target] = likelihood_ratios(confidence[target], confidence[others], members[others])
    return judge(ratios.ravel(), members.ravel())


def judge(scores: Values, members: Flags) -> MembershipFigures:
    """Judge `scores` (n,), which should be larger for `members` (n,). Raises ValueError if all are members, or none."""
    inside, outside = np.sort(scores[members]), np.sort(scores[~members])
    if not len(inside) or not len(outside):
        raise ValueError("members and others are needed")
    below = np.searchsorted(outside, inside, "left") + np.searchsorted(outside, inside, "right")
    auc = float(below.sum()) / (2.0 * len(inside) * len(outside))
    allowed = int(FALSE_POSITIVES * len(outside))
    hits = int((inside > outside[len(outside) - 1 - allowed]).sum())
    return MembershipFigures(auc=auc, tpr=hits / len(inside))


def _log_density(values: Values, shadows: Values, flags: Flags) -> Values:
    """Return the logarithm of the density of `values` (q,) under a Gaussian with the mean of each row's flagged entries
    and one standard deviation for all rows, as in section VI-C of the paper for few shadow models.
    """
    counts = np.maximum(flags.sum(axis=0), 1)
    mean = np.where(flags, shadows, 0.0).sum(axis=0) / counts
    square = float(np.where(flags, (shadows - mean) ** 2, 0.0).sum())
    spread = max(LEAST, float(np.sqrt(square / max(1, int((counts - 1).sum())))))
    density: Values = -(((values - mean) / spread) ** 2) / 2 - np.log(spread)
    return density


FEWEST = 4
"""The minimum number of shadow models that gives a result."""


def attack_members(
    scene: Scene,
    federation: FederationConfig,
    *,
    shadows: int,
    seed: int = 0,
    limit_s: float = float("inf"),
    on_shadow: Callable[[int], None] = lambda _: None,
) -> MembershipFigures | str:
    """Attack the members of `federation`, with `shadows` simulated copies that each train on half of the victim's rows.

    Each copy in turn is the target, with the others as shadows; it is scored by the model that the victim shows after
    its last round. After `limit_s` no more copies are made; if a text is returned, it says why there is no answer.
    """
    inputs, targets = scene.rows()
    rows = len(targets)
    if rows < FEWEST:
        return "the node has too few rows"
    members, confidence = halves(shadows, rows, seed), []
    ends_at = time.monotonic() + limit_s
    learner = scene.learner(replace(federation, privacy=None), scene.victim)
    flat = FlatModule(learner.model.module, learner.task.name, learner.model.share)
    for number in range(shadows):
        part = torch.from_numpy(np.flatnonzero(members[number]))
        copied = scene.with_rows(TensorSamples(inputs[part], targets[part]))
        chance = Seeded(seed * 1_000_003 + number)
        observed = observe_simulated(federation, copied.learners(federation, chance), scene.victim)
        flat.load(last_shown(observed, federation))
        confidence.append(confidences(learner.model.module, inputs, targets))
        on_shadow(number + 1)
        if time.monotonic() > ends_at:
            break
    if len(confidence) < FEWEST:
        return f"there was time for {len(confidence)} copies only, and {FEWEST} are the fewest"
    return attack_each(np.stack(confidence), members[: len(confidence)])


def halves(shadows: int, rows: int, seed: int) -> Flags:
    """Draw which rows each shadow has (shadows, rows): about half of them, so that all have the same plan.

    Rows are drawn independently. If every row were in exactly half of the shadows, the remaining shadows would reveal
    whether the target has it.
    """
    members = np.zeros((shadows, rows), dtype=np.bool_)
    for number in range(shadows):
        members[number, generator(seed, "audit-shadows", number).permutation(rows)[: rows // 2]] = True
    return members


def last_shown(observed: Observation, federation: FederationConfig) -> np.ndarray:
    """Return the victim's model (d,) as neighbors saw it after its last local round."""
    seen = observed.rounds()[: federation.training.rounds]
    return seen[-1].start + seen[-1].change if seen else observed.initial


ONE_ROUND, TWO_ROUNDS = "one round", "two rounds"


def label_changes(
    scene: Scene, federation: FederationConfig, *, limit_s: float = math.inf
) -> tuple[Values, Flags] | str:
    """Return the changes (rounds, members, classes) of the last layer's biases, and whose rows have which labels
    (members, classes): of the victim in gossip, of all members of hidden models. Or say why there is nothing to name.
    """
    ends_at, learners = time.monotonic() + limit_s, scene.learners(federation, Seeded(federation.seed))
    bias = last_bias(learners[0].model.module, learners[0].model.flat.places)
    if not learners[0].labels or bias is None:
        return "the last layer has no bias that is shared" if learners[0].labels else "the task is not to tell classes"
    targets = [data.train.rows(torch.arange(len(data.train)))[1] for data in scene.data]
    has, changes = np.array([np.isin(np.arange(bias.stop - bias.start), each) for each in targets]), list[Values]()
    if federation.hides is None:
        has, observed = has[[scene.victim]], observe_simulated(federation, learners, scene.victim)
        changes = [each.change[None, bias] for each in observed.rounds()[: federation.training.rounds]]
    else:
        for each, *_ in hidden_rounds(federation, learners, federation.hides):
            changes.append(each[:, bias])
            if time.monotonic() > ends_at:
                break
    if not changes:
        return "no round was seen"
    return "each node has rows of all labels" if has.all() else (np.stack(changes), has)


def name_labels(
    changes: Values, has: Flags, groups: Sequence[Collection[int]], *, colluders: int = 0
) -> dict[str, float]:
    """Return the AUC with which the difference of two sums, the second without one of `groups`, names its members'
    labels: of sums of one round, and of a round and the next. As many of the group as `colluders` take out their parts.

    `changes` and `has` are those of `label_changes`. Without other groups there is no second sum: the first one tells.
    """
    told: dict[str, list[tuple[Values, Flags]]] = {ONE_ROUND: [], TWO_ROUNDS: []}
    for order in map(sorted, groups):
        without = np.delete(changes, order, axis=1).sum(axis=1)
        for first in range(len(order) if colluders else 1):  # of all coalitions, those side by side
            turned = order[first:] + order[:first]
            known = np.delete(changes, turned[:colluders], axis=1).sum(axis=1)
            for member in turned[colluders:]:
                told[ONE_ROUND] += zip(known - without, [has[member]] * len(known), strict=True)
                if len(order) < len(has):
                    told[TWO_ROUNDS] += zip(known[:-1] - without[1:], [has[member]] * (len(known) - 1), strict=True)
    pairs = {name: [np.concatenate(part) for part in zip(*each, strict=True)] for name, each in told.items() if each}
    return {name: judge(scores, flags).auc for name, (scores, flags) in pairs.items()}


NOISE = 1.0
"""The audit's noise multiplier: at 1 the errors prove most."""
SIZE = 32
"""The size of the bare model."""
ROWS = 8
LOUD = 1e3
"""The norm of the canary's gradient, in multiples of the clipping bound: far more than clipping lets through."""
MISTAKEN = 6.0
"""The number of standard deviations that the correlation of independent noises never reaches."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Canary:
    """The result of one step that includes every row, at noise 1.

    `claimed` is the epsilon for two Gaussians at distance 1, `proven` what the errors prove with 95% confidence.
    `noise_at_most` is an upper bound on the actual noise multiplier.
    """

    claimed: float
    proven: float
    noise_at_most: float
    proof: Proof

    @property
    def holds(self) -> bool:
        return self.proven <= self.claimed


@dataclass(frozen=True, slots=True, kw_only=True)
class Reuse:
    """The two rounds whose noises are most alike, and their `correlation`, in [-1, 1], over `size` numbers."""

    pair: tuple[str, str]
    correlation: float
    size: int

    @property
    def is_reused(self) -> bool:
        return abs(self.correlation) * float(np.sqrt(self.size)) > MISTAKEN


class Bare(nn.Module):
    """A model with a single vector w, whose gradient for a row x is x.

    It is not a chain of layers, so rows go through `torch.func`.
    """

    def __init__(self, size: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(size))

    def forward(self, inputs: Tensor) -> Tensor:
        return inputs @ self.weight[:, None]


def bare_chain(size: int) -> nn.Module:
    """Build the bare model as a chain of one layer."""
    layer = nn.Linear(size, 1, bias=False)
    nn.init.zeros_(layer.weight)
    return nn.Sequential(layer)


def bare_learner(
    rows: Tensor,
    *,
    unit: str = RECORD,
    clip: float = 1.0,
    delta: float = 1e-5,
    chance: Chance | None = None,
    node: int = 0,
    chain: bool = True,
) -> TorchLearner:
    """Build a learner whose rounds are one step over all `rows` (n, SIZE), each its own gradient, at noise NOISE."""
    training = TrainingConfig(rounds=1, local_steps=1, batch_size=len(rows), learning_rate=1.0, method="plain")
    plan = Plan(
        unit=unit, epsilon=1e3, delta=delta, clip=clip, noise=NOISE, accountant=PRV, rounds=1, training=training
    )
    task = Task(
        name="canary",
        model=(lambda: bare_chain(rows.shape[1])) if chain else (lambda: Bare(rows.shape[1])),
        data=lambda _: ((rows, torch.zeros(len(rows))), None),
        loss=lambda outputs, _: outputs.mean(),
    )
    context = NodeContext(node=node, nodes=2, name=f"node{node}", seed=0, base_dir=Path())
    return TorchLearner(
        task, context, training, protection=Protection(plan_for=lambda _: plan, chance=chance or Secret())
    )


def canary(
    *,
    unit: str = RECORD,
    clip: float = 1.0,
    delta: float = 1e-5,
    tries: int = 1000,
    chance: Chance | None = None,
    chain: bool = True,
) -> Canary:
    """Train `tries` rounds with the canary and as many without. `chance` is real nodes', unless a test has another."""
    rows = _rows(unit, clip)
    learners = [bare_learner(data, unit=unit, clip=clip, delta=delta, chance=chance, chain=chain) for data in rows]
    with_it, without = (_scores(learner, tries, place * tries) for place, learner in enumerate(learners))
    proven = proof(with_it, without, delta)
    return Canary(
        claimed=epsilon_of_gaussians(1 / NOISE, delta),
        proven=epsilon_of_gaussians(proven.mu, delta),
        noise_at_most=1 / proven.mu if proven.mu else float("inf"),
        proof=proven,
    )


def _rows(unit: str, clip: float) -> tuple[Tensor, Tensor]:
    """Return the rows with the canary, and with nothing in its place; without a member there are no rows at all."""
    loud = LOUD * clip * torch.eye(1, SIZE)
    others = loud.repeat(ROWS - 1, 1)
    with_it = torch.cat([others, -LOUD * loud])
    without = torch.cat([others, torch.zeros(1, SIZE)])
    return with_it, without if unit == RECORD else torch.zeros_like(with_it)


def _scores(learner: TorchLearner, tries: int, first: int) -> Values:
    """Measure each round's move in the canary's direction: against its own gradient, forward along the first axis."""
    start = RoundStart(learner.initial())
    return np.array([learner.train(start, first + number).vector[0] for number in range(tries)], dtype=np.float64)


def reuse(unit: str = RECORD, clip: float = 1.0, chance: Callable[[], Chance] = Secret, size: int = 1024) -> Reuse:
    """Compare the noise of two rounds, of two nodes, and of a restarted node: none may predict another."""
    noises: dict[str, Values] = {}
    for name, node, rounds in (("node 0", 0, 3), ("node 1", 1, 2), ("node 0 started again", 0, 2)):
        learner = bare_learner(torch.zeros(ROWS, size), unit=unit, clip=clip, node=node, chance=chance())
        if name.endswith("again") and not chance().is_secret:
            continue  # a simulation repeats its noise
        start = RoundStart(learner.initial())
        for number in range(rounds):
            noises[f"{name}, round {number}"] = learner.train(start, number).vector.astype(np.float64)
    return most_alike(list(noises), list(noises.values()))


def most_alike(names: Sequence[str], noises: Sequence[Values]) -> Reuse:
    """Return the pair among at least two `noises` (d,) with the largest correlation."""
    stacked = np.stack([noise / max(1e-300, float(np.linalg.norm(noise))) for noise in noises])
    products = stacked @ stacked.T
    np.fill_diagonal(products, 0.0)
    row, other = divmod(int(np.abs(products).argmax()), len(names))
    return Reuse(pair=(names[row], names[other]), correlation=float(products[row, other]), size=len(noises[0]))
