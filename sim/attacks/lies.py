"""Lies: what a liar shows in place of its own model.

Lies that look only at the liar's own model are *blind*. They are named as in the papers, whose liars send gradients;
here they show models.

Other lies are made from the models around the victim: its own and those of its honest neighbors, as far as the liar
knows them. The published attacks send gradients, or models, to a server; here, as in He et al. 2022 (ClippedGossip,
arXiv 2202.01545), mean and deviation are taken over the victim's honest neighborhood, including the victim. Attacks
that search for the worst lie compute how the victim's rule would mix it (`response`), or climb the task's loss
(`Slope`). Lies that use the graph keep the honest nodes apart where it is weakest. Last come attacks made from another
attack: lies told only at times, or told in too many exchanges.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from copy import deepcopy
from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from p2pfl.aggregate import Neighborhood, Rule, make_rule
from p2pfl.chance import generator
from p2pfl.errors import UserError
from p2pfl.learn.interface import Learner
from p2pfl.learn.load import with_torch
from p2pfl.specs import Parameter, whole
from sim.attacks.attack import (
    ATTACKS,
    GRAPH,
    LOSS,
    NEIGHBORS,
    NOTHING,
    PEER,
    RULE,
    VICTIMS,
    Attack,
    Climb,
    Edge,
    Rows,
    Sight,
    Vector,
    WrapEntry,
    blind,
    length,
    lie,
    positive,
    signed,
)

if TYPE_CHECKING:  # the names of attacks are read without torch
    from torch import Tensor

    from p2pfl.learn.tensors import Samples
    from p2pfl.learn.trainer import TorchLearner


BARUCH, XIE = "Baruch et al. 2019, arXiv 1902.06156", "Xie et al. 2019, arXiv 1903.03936"
RSA = "Li et al. 2019, arXiv 1811.03761"
MIMIC, GAUCHER = "Karimireddy et al. 2022, arXiv 2006.09365", "Gaucher et al. 2025, arXiv 2410.10418"
DOUBLINGS, REFINED, FIRST = 6, 6, 0.25
"""Line search: first the scales FIRST 2^k, then REFINED scales between half and twice the best of them."""
MISSING_PART = 3
"""A vector of the wrong shape lacks one in this many parts."""
ROUNDING = 1e-9


@blind("sign-flip", "its model times -{SCALE}", RSA, positive("SCALE", "multiple of its norm"))
def sign_flip(sight: Sight, scale: float = 1.0) -> Vector:
    shown: Vector = sight.own * sight.own.dtype.type(-scale)
    return shown


@blind(
    "noise",
    "its model plus normal noise of deviation {SIGMA}, fresh each time",
    RSA,
    positive("SIGMA", "the deviation of each entry"),
)
def noise(sight: Sight, sigma: float) -> Vector:
    drawn = generator(sight.seed, "attack", sight.node, sight.count).standard_normal(sight.own.size)
    shown: Vector = sight.own + (sigma * drawn).astype(sight.own.dtype)
    return shown


@blind("nan", "no numbers", "a broken machine", refused=True)
def nan(sight: Sight) -> Vector:
    """Show NaN, as a broken machine does; an honest node must refuse it before anything is applied."""
    return np.full_like(sight.own, math.nan)


@lie("wrong-shape", "its model cut short by a third", "a node of another federation", NOTHING, refused=True)
def wrong_shape(sight: Sight) -> Vector:
    """Show a vector of the wrong length, which must be refused whatever it contains."""
    size = sight.own.size
    return np.resize(sight.own, size - max(1, size // MISSING_PART) if size > 1 else size + 1)


@lie("alie", "mean - {Z} deviations, coordinate by coordinate", BARUCH, NEIGHBORS, signed("Z", "deviations"))
def alie(sight: Sight, z: float = 1.5) -> Vector:
    """A little is enough: hide within the spread of the honest models."""
    shown: Vector = sight.around.mean(axis=0) - z * _deviation(sight.around)
    return shown


@lie("ipm", "the mean times -{EPS}", XIE, NEIGHBORS, positive("EPS", "how many times the mean's length"))
def ipm(sight: Sight, eps: float = 0.1) -> Vector:
    """Inner product manipulation."""
    shown: Vector = -eps * sight.around.mean(axis=0)
    return shown


@lie(
    "foe",
    "fall of empires: the mean times 1 - EPS, EPS searched so that the victim's rule errs most",
    f"{XIE}; the search: Farhadkhani et al. 2022, arXiv 2205.12173",
    RULE,
)
def empires(sight: Sight) -> Vector:
    """Fall of empires: a line search finds where the victim's rule ends up furthest from the honest mean."""
    mean = sight.around.mean(axis=0)

    def damage(eps: float) -> float:
        return length(response(sight, (1.0 - eps) * mean) - mean)

    best = max((FIRST * 2.0**k for k in range(DOUBLINGS)), key=damage)
    nearer = np.linspace(best / 2, best * 2, REFINED + 2)[1:-1].tolist()
    shown: Vector = (1.0 - max([best, *nearer], key=damage)) * mean
    return shown


@lie("mimic", "a copy of one honest neighbor, the same from all liars", MIMIC, NEIGHBORS)
def mimic(sight: Sight) -> Vector:
    """Copy the honest neighbor that is furthest out along the direction in which the models differ most."""
    if not sight.known:
        return sight.victim
    apart = sight.around - sight.around.mean(axis=0)
    _, directions = np.linalg.eigh(apart @ apart.T)
    return sight.models[sight.known[int(np.abs(directions[1:, -1]).argmax())]]


@lie(
    "mirror",
    "each neighbor its own model, which leaves no radius to rules that take it from the nearest",
    f"against CS+ of {GAUCHER}",
    PEER,
)
def mirror(sight: Sight) -> Vector:
    """Show each neighbor its own model, so that a radius taken from the (m - 2b)-th smallest distance is 0."""
    return sight.victim


@lie(
    "dissensus",
    "undoes {EPS} times what the victim's honest neighbors pull it by",
    "He et al. 2022, arXiv 2202.01545",
    NEIGHBORS,
    positive("EPS", "how many times the pull"),
)
def dissensus(sight: Sight, eps: float = 1.5) -> Vector:
    victim = np.asarray(sight.victim, np.float64)
    pull = sum((sight.weight(n) * (sight.models[n] - victim) for n in sight.known), np.zeros_like(victim))
    shown: Vector = victim - eps * pull / sum(sight.weight(n) for n in sight.lying)
    return shown


@lie(
    "spectral",
    "pushes its victim along the slowest mode of the honest graph, by {SCALE} deviations",
    GAUCHER,
    GRAPH,
    positive("SCALE", "deviations"),
)
def spectral(sight: Sight, scale: float = 1.5) -> Vector:
    """Spectral heterogeneity: gossip is slowest to bring models together along that mode, the Fiedler vector.

    The norm of the push is `scale` times the deviation of the honest models in its neighborhood.
    """
    victim = np.asarray(sight.victim, np.float64)
    nodes = tuple(sorted({*sight.honest, sight.peer}))
    mode = fiedler(sight.edges, nodes)
    models = [victim if node == sight.peer else sight.models[node] for node in nodes]
    slowest = sum((part * model for part, model in zip(mode, models, strict=True)), np.zeros_like(victim))
    size, side = length(slowest), np.sign(mode[nodes.index(sight.peer)])
    shown: Vector = victim + (side * scale * spread_around(sight) / size) * slowest if size > 0 else victim
    return shown


def replacement(sight: Sight, scale: float) -> Vector:
    """Replace the model: `scale` times the liar's own deviation."""
    mean = sight.around.mean(axis=0)
    shown: Vector = mean + scale * (sight.own - mean)
    return shown


def response(sight: Sight, lie: Vector) -> Vector:
    """Return the victim's model (d,) after it mixed with its honest neighbors and with `lie` from each of its liars.

    Without a rule, or with `mean`, it takes the Laplacian step.
    """
    lies = dict.fromkeys(sight.lying, lie)
    others = {node: np.asarray(sight.models[node], np.float64) for node in sight.known} | lies
    peers = tuple(sorted(others))
    own = np.asarray(sight.victim, np.float64)
    weights = np.array([sight.weight(peer) for peer in peers])
    rule = None if sight.rule is None else _rule(sight.rule)
    if rule is None:
        mixed: Vector = own + sum(weight * (others[peer] - own) for weight, peer in zip(weights, peers, strict=True))
        return mixed
    around = Neighborhood(own=own, others=[others[peer] for peer in peers], weights=weights, peers=peers)
    return rule.mix(around).model


def _deviation(rows: Rows) -> NDArray[np.floating]:
    """Compute the standard deviation per coordinate, (d,); zero if only one model is known."""
    return rows.std(axis=0, ddof=1) if len(rows) > 1 else np.zeros(rows.shape[1])


@cache
def _rule(spec: str) -> Rule | None:
    return make_rule(spec)


@cache
def fiedler(edges: tuple[Edge, ...], nodes: tuple[int, ...]) -> NDArray[np.float64]:
    """Return the eigenvector of the second smallest Laplacian eigenvalue of the graph between `nodes`: (n,), of length
    1.

    Entries that are zero up to rounding are set to zero; for a single node all are. If the eigenvalue is multiple, as
    in a ring, the vector is the one nearest to ascending in the order of `nodes`, so that it does not depend on who
    computes it.
    """
    count = len(nodes)
    if count < 2:
        return np.zeros(count)
    place = {node: index for index, node in enumerate(nodes)}
    laplacian = np.full((count, count), 1.0 + 1.0 / count)  # shifts the constant mode behind all others
    for low, high in {(min(edge), max(edge)) for edge in edges}:
        if low in place and high in place:
            i, j = place[low], place[high]
            laplacian[[i, j], [j, i]] -= 1.0
            laplacian[[i, j], [i, j]] += 1.0
    values, vectors = np.linalg.eigh(laplacian)
    slowest = vectors[:, values <= values[0] + ROUNDING * count]
    for direction in (np.arange(count) - (count - 1) / 2, *np.eye(count)):
        vector: NDArray[np.float64] = slowest @ (slowest.T @ direction)
        if length(vector) > ROUNDING * count:
            vector /= length(vector)
            vector[np.abs(vector) < ROUNDING] = 0.0
            return vector
    raise AssertionError("no unit vector has a part in a space of eigenvectors")


def spread_around(sight: Sight) -> float:
    """Compute the root mean square distance of the models around the victim to their mean."""
    rows = sight.around
    return float(np.sqrt(((rows - rows.mean(axis=0)) ** 2).sum(axis=1).mean()))


MOST_SAMPLES = 2048
"""If there are more samples, this many evenly spaced ones are used: an attack computes a dozen losses per lie."""
DIFFERENTIABLE = "a task with a torch model: digits, mnist-idx, csv, or one of your own in a file"


class Slope:
    """The task's loss as a function: a model (d,) gives the mean loss there and its gradient (d,), in float64.

    It has its own module, because a node may be training in another thread. What a node does not share keeps its
    initial value, and nothing is trained: the module is in evaluation mode. If the vector has several channels, as some
    learning methods exchange, the first is the model; the gradient of the others is 0.
    """

    def __init__(self, learner: TorchLearner, samples: Samples | None = None) -> None:
        """Build the loss over `samples`; None means the learner's own training data."""
        import torch  # noqa: PLC0415 - the names of attacks are read without it

        from p2pfl.learn.evaluation import loss_of  # noqa: PLC0415 - as above
        from p2pfl.learn.tensors import FlatModule  # noqa: PLC0415 - as above

        self.module = deepcopy(learner.model.module).eval()
        self.flat = FlatModule(self.module, learner.task.name, learner.model.share)
        self.loss = loss_of(learner.task)
        known = learner.train_set if samples is None else samples
        every = -(-len(known) // MOST_SAMPLES)
        self.batch: tuple[Any, Any] = known.rows(torch.arange(0, len(known), every))
        named = dict(self.module.named_parameters(remove_duplicate=False))
        self.trained: list[tuple[slice, Tensor]] = [(p.part, named[p.name]) for p in self.flat.places if p.trained]

    def __call__(self, model: Vector) -> tuple[float, Vector]:
        import torch  # noqa: PLC0415 - as above

        self.flat.load(model[: self.flat.size])
        inputs, targets = self.batch
        loss = self.loss(self.module(inputs), targets)
        parts = torch.autograd.grad(loss, [tensor for _, tensor in self.trained], allow_unused=True)
        gradient = np.zeros(model.size)
        for (part, _), slope in zip(self.trained, parts, strict=True):
            if slope is not None:
                gradient[part] = slope.detach().numpy().ravel()
        return float(loss.detach()), gradient


def slope_for(attack: Attack, learner: Learner, samples: Samples | None = None) -> Slope | None:
    """Build the slope that `attack` climbs, None if it climbs none; `samples` as for `Slope`.

    Raises UserError if the attack must climb but the loss of this learner has no gradient.
    """
    if not attack.climbs and attack.own is None:
        return None
    from p2pfl.learn.trainer import TorchLearner  # noqa: PLC0415 - as above

    if isinstance(learner := with_torch(learner), TorchLearner):
        return Slope(learner, samples)
    if attack.climbs:
        text = "the loss of such a task cannot be climbed"
        raise UserError(text, key="attack", value=attack.spec, allowed=DIFFERENTIABLE)
    return None


STEPS, STEP = 8, 0.25
"""The number of ascent steps, and the size of each in spreads of the models around the victim."""
FARTHER = (0.5, 1.0, 2.0, 4.0, 8.0)
"""Norms of the lie, in spreads."""


@lie(
    "ascent",
    "climbs the task's loss, as far as raises it most after the victim's rule",
    "after PGA of Shejwalkar et al. 2022, arXiv 2108.10241",
    LOSS,
    climbs=True,
)
def ascent(sight: Sight) -> Vector:
    """Climb from the mean of all honest models that the liar knows, so that all victims are pushed the same way, round
    after round, and no honest neighbor pulls them back.

    It follows projected gradient ascent (PGA), whose attackers climb from the server's model and then go as far in that
    direction as the server's rule allows. For each victim, the norm of the lie is the best of five, judged by the loss
    after the victim's rule (`response`). A lie costs STEPS + len(FARTHER) gradients and len(FARTHER) calls of the rule.
    """
    slope = _slope(sight, "ascent")
    return _worst(sight, slope, [_uphill(sight, slope)])


@lie(
    "foreign",
    "as ascent, without what raises the victim's own loss, so that its training does not pull it back",
    "after PGA of Shejwalkar et al. 2022, arXiv 2108.10241",
    VICTIMS,
    climbs=True,
)
def foreign(sight: Sight) -> Vector:
    """Climb as `ascent` does, but only across the gradient of the victim's own loss where that would raise it, too."""
    slope = _slope(sight, "foreign")
    return _worst(sight, slope, [_uphill(sight, slope, sight.own_slope())])


@lie(
    "adapt",
    "for each victim the worst of six directions and five lengths, by the loss after its rule",
    "after the searches of Shejwalkar et al. 2022, arXiv 2108.10241",
    VICTIMS,
    climbs=True,
)
def adapt(sight: Sight) -> Vector:
    """Try the ways of `ascent`, `foreign`, `dissensus`, `spectral`, `alie` and `mimic`. It looks one mix ahead."""
    slope = _slope(sight, "adapt")
    others = [lie(sight) - sight.victim for lie in (dissensus, spectral, alie, mimic)]
    return _worst(sight, slope, [_uphill(sight, slope), _uphill(sight, slope, sight.own_slope()), *others])


def _slope(sight: Sight, name: str) -> Climb:
    if sight.slope is None:
        raise UserError("there is no loss to climb", key="attack", value=name)
    return sight.slope


def _worst(sight: Sight, slope: Climb, ways: Iterable[Vector]) -> Vector:
    """Return the lie along one of `ways` (d,), at one of the distances FARTHER, after which the loss is highest."""
    victim, spread = np.asarray(sight.victim, np.float64), spread_around(sight)
    ways = [way * (spread / size) for way in ways if (size := length(way)) > 0]
    lies = [victim + farther * way for way in ways for farther in FARTHER]
    shown: Vector = max(lies, key=lambda lie: slope(response(sight, lie))[0], default=victim)
    return shown


def _uphill(sight: Sight, slope: Climb, spared: Climb | None = None) -> Vector:
    """Follow the gradient for STEPS steps, from the mean of the honest models that are known; return the end minus it.

    Parts of the gradient that would raise the loss `spared` are left out.
    """
    step = STEP * spread_around(sight)
    victim = np.asarray(sight.victim, np.float64)
    start = np.mean([victim, *(sight.models[node] for node in sight.honest if node != sight.peer)], axis=0)
    here = start
    for _ in range(STEPS):
        gradient = slope(here)[1]
        if spared is not None:
            own = spared(here)[1]
            size = length(own)
            along = float(np.einsum("i,i->", gradient, own)) / size**2 if size else 0.0
            gradient = gradient - max(0.0, along) * own
        size = length(gradient)
        if size == 0:
            break
        here = here + step / size * gradient
    way: Vector = here - start
    return way


PERIOD, LONGEST_PERIOD = 10, 10**6
"""The default and the longest period of a sleeper, in its own rounds."""


@ATTACKS.add(
    WrapEntry,
    name="sleeper",
    written="sleeper:LIE[@ROUNDS]",
    means=f"honest for so many ({PERIOD}) of its rounds, LIE for as many, by turns",
    source="on-off attack, Sun et al., INFOCOM 2006",
    parameters=(Parameter("ROUNDS", whole(1, LONGEST_PERIOD), "its rounds between two turns"),),
)
def sleeper(lie: Attack | None, rounds: int = PERIOD) -> Attack:
    """Lie only in some rounds. Raises ValueError if no lie is named, or poison is: data are poisoned for good."""
    if lie is None:
        raise ValueError("a sleeper has to have a lie")
    if lie.poison is not None:
        raise ValueError(f"sleeper cannot be made of {lie.spec}")
    awake = lie

    def lie_sometimes(sight: Sight) -> Vector:
        return awake.tell(sight) if sight.rounds // rounds % 2 else sight.own

    spec = f"sleeper:{lie.spec}@{rounds}"
    return Attack(spec=spec, lie=lie_sometimes, refused=lie.refused, climbs=lie.climbs, own=lie.own)


@ATTACKS.add(
    WrapEntry,
    name="flood",
    written="flood[:LIE]",
    means="exchanges as fast as it can, with its model or with LIE",
    source="denial of service",
)
def flood(lie: Attack | None) -> Attack:
    """Exchange too often, so that the liar's model counts more often than others."""
    if lie is None:
        return Attack(spec="flood", flood=True)
    return replace(lie, spec=f"flood:{lie.spec}", flood=True)
