"""False models: what a liar shows in place of its own.

Lies that look only at the liar's own model are functions on rows, so that one call serves many liars. They are named as
in the papers, whose liars send gradients; here they show models. A row depends only on its model and its draws,
whatever the batch.

Other lies are made from the models around the victim: its own and those of its honest neighbors, as far as the liar
knows them. The published attacks send gradients, or models, to a server; here, as in He et al. 2022 (ClippedGossip,
arXiv 2202.01545), mean and deviation are taken over the victim's honest neighborhood, including the victim. Attacks
that search for the worst lie compute how the victim's rule would mix it (`response`).

Lies that use the graph keep the honest nodes apart where it is weakest.
"""

from __future__ import annotations

import math
from functools import cache

import numpy as np
from numpy.typing import NDArray

from p2pfl.aggregate import Neighborhood, Rule, make_rule
from p2pfl.chance import generator
from p2pfl.specs import MISSING
from sim.attacks.entry import FANG, GRAPH, NEIGHBORS, NOTHING, PEER, RULE, blind, lie, positive, signed
from sim.attacks.sight import Edge, Rows, Sight, Vector, length

BARUCH, XIE = "Baruch et al. 2019, arXiv 1902.06156", "Xie et al. 2019, arXiv 1903.03936"
RSA, AGR = "Li et al. 2019, arXiv 1811.03761", "Shejwalkar and Houmansadr, NDSS 2021"
MIMIC, GAUCHER = "Karimireddy et al. 2022, arXiv 2006.09365", "Gaucher et al. 2025, arXiv 2410.10418"
DOUBLINGS, REFINED, FIRST = 6, 6, 0.25
"""Line search: first the scales FIRST 2^k, then REFINED scales between half and twice the best of them."""
FANG_B = 2.0
"""Parameter b of Fang et al. 2020, as in their experiments."""
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


@blind("constant", "{VALUE} in every entry", RSA, signed("VALUE", "any value", default=MISSING))
@blind("zero", "zeros", "Wu et al. 2020, arXiv 1912.12716")
def constant(sight: Sight, value: float = 0.0) -> Vector:
    """Show a constant. Zeros drag everybody to the origin: zero-gradient where gradients are sent."""
    return np.full_like(sight.own, value)


@blind("replay", "the model from before the first round, forever", "an old message sent again")
def replay(sight: Sight) -> Vector:
    return sight.initial.astype(sight.own.dtype)


@blind("nan", "no numbers", "a broken machine", refused=True)
def nan(sight: Sight) -> Vector:
    """Show NaN, as a broken machine does; an honest node must refuse it before anything is applied."""
    return np.full_like(sight.own, math.nan)


@blind("inf", "infinities of both signs", "a broken machine", refused=True)
def inf(sight: Sight) -> Vector:
    """Show infinities whose signs alternate, so that their mean is NaN."""
    shown = np.full_like(sight.own, math.inf)
    shown[1::2] = -math.inf
    return shown


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


@lie(
    "oscillate",
    "as alie, from the other side every other round",
    f"after {BARUCH}",
    NEIGHBORS,
    signed("Z", "deviations"),
)
def oscillate(sight: Sight, z: float = 1.5) -> Vector:
    side = 1 if sight.rounds % 2 else -1
    shown: Vector = sight.around.mean(axis=0) + side * z * _deviation(sight.around)
    return shown


@lie(
    "small-sign",
    "the mean, every coordinate {Z} mean deviations nearer to zero",
    f"after {BARUCH}",
    NEIGHBORS,
    signed("Z", "deviations"),
)
def small_sign(sight: Sight, z: float = 1.5) -> Vector:
    mean = sight.around.mean(axis=0)
    shown: Vector = mean - z * _deviation(sight.around).mean() * np.sign(mean)
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


@lie("min-max", "as far from the mean as two honest models are from each other", AGR, NEIGHBORS)
def min_max(sight: Sight) -> Vector:
    """Push against the deviation, no further from any model than the two most distant models are from each other:
    AGR-agnostic Min-Max.
    """
    rows, mean, push = _pushed(sight)
    limit = _squares_between(rows).max()
    from_mean = mean - rows
    half, square = np.einsum("ij,j->i", from_mean, push), length(push) ** 2
    slack = np.maximum(limit - np.einsum("ij,ij->i", from_mean, from_mean), 0.0)
    reach = (np.sqrt(half**2 + square * slack) - half).min() / square if square > 0 else 0.0
    shown: Vector = mean + reach * push
    return shown


@lie("min-sum", "as far from the mean as sums of squared distances between honest models allow", AGR, NEIGHBORS)
def min_sum(sight: Sight) -> Vector:
    """Push as `min_max` does, with the sum of squared distances to all models in place of the largest distance."""
    rows, mean, push = _pushed(sight)
    limit = _squares_between(rows).sum(axis=1).max()
    slack = max(limit - float(((rows - mean) ** 2).sum()), 0.0)
    square = length(push) ** 2
    shown: Vector = mean + (np.sqrt(slack / (len(rows) * square)) if square > 0 else 0.0) * push
    return shown


@lie("fang", "just outside the honest range, against the direction in which each coordinate has moved", FANG, NEIGHBORS)
def fang(sight: Sight) -> Vector:
    """Directed deviation against trimmed mean and median.

    Where a coordinate has grown since the start, the lie is somewhat below the smallest honest value; elsewhere it is
    somewhat above the largest.
    """
    rows = sight.around
    least, most = rows.min(axis=0), rows.max(axis=0)
    share = sight.draws("fang", sight.count).random(rows.shape[1])
    below = least - share * (least - np.where(least > 0, least / FANG_B, least * FANG_B))
    above = most + share * (np.where(most > 0, most * FANG_B, most / FANG_B) - most)
    shown: Vector = np.where(rows.mean(axis=0) > sight.initial, below, above)
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
    "collude-median",
    "a copy of the honest model furthest from the mean, to draw medians there",
    f"after {MIMIC}",
    NEIGHBORS,
)
def extreme(sight: Sight) -> Vector:
    """Show a true model, so that no check notices."""
    apart = np.linalg.norm(sight.around - sight.around.mean(axis=0), axis=1)
    shown: Vector = sight.around[int(apart.argmax())]
    return shown


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


@lie(
    "two-faced",
    "a different lie for each neighbor: its model plus {SCALE} times its norm in a direction of the victim's",
    "Lamport et al. 1982, the Byzantine generals",
    NOTHING,
    positive("SCALE", "its model's lengths"),
    place=1,
)
def two_faced(sight: Sight, scale: float = 1.0) -> Vector:
    """Lie in a direction that is fixed for each victim and the same from all liars, and drawn independently for each
    victim.
    """
    own = np.asarray(sight.own, np.float64)
    direction = generator(sight.seed, "two-faced", sight.peer).standard_normal(own.size)
    shown: Vector = own + scale * length(own) / length(direction) * direction
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


def _pushed(sight: Sight) -> tuple[Rows, Vector, Vector]:
    """Return the rows (k, d), their mean, and the push against the deviation, which the paper finds best for both
    rules.
    """
    return sight.around, sight.around.mean(axis=0), -_deviation(sight.around)


def _squares_between(rows: Rows) -> NDArray[np.floating]:
    """Compute squared distances (k, k)."""
    return np.stack([((rows - row) ** 2).sum(axis=1) for row in rows])


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
    for wanted in (np.arange(count) - (count - 1) / 2, *np.eye(count)):
        vector: NDArray[np.float64] = slowest @ (slowest.T @ wanted)
        if length(vector) > ROUNDING * count:
            vector /= length(vector)
            vector[np.abs(vector) < ROUNDING] = 0.0
            return vector
    raise AssertionError("no unit vector has a part in a space of eigenvectors")


def spread_around(sight: Sight) -> float:
    """Compute the root mean square distance of the models around the victim to their mean."""
    rows = sight.around
    return float(np.sqrt(((rows - rows.mean(axis=0)) ** 2).sum(axis=1).mean()))
