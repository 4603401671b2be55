"""Lies made of the models around the victim: its own and those of its honest neighbors, as far as the liar knows them.

The published attacks send gradients, or models, to a server; here, as in He et al. 2022 (ClippedGossip, arXiv
2202.01545), mean and deviation are those of the victim's honest neighborhood, the victim among them. Attacks that look
for the worst lie ask what the victim's rule would make of it (`response`).
"""

from __future__ import annotations

from functools import cache

import numpy as np
from numpy.typing import NDArray

from p2pfl.aggregate import Neighborhood, Rule, make_rule
from sim.attacks.attack import Lie, Rows, Sight, Vector, length

DOUBLINGS, REFINED, FIRST = 6, 6, 0.25
"""of the line search: scales FIRST 2^k, then some between half and twice the best of them."""
FANG_B = 2.0
"""b of Fang et al. 2020, as in their experiments."""


def alie(z: float) -> Lie:
    """A little is enough: mean - z deviations, coordinate by coordinate. Baruch et al. 2019, arXiv 1902.06156."""
    return lambda sight: sight.around.mean(axis=0) - z * _deviation(sight.around)


def oscillate(z: float) -> Lie:
    """As `alie`, from the other side every other round."""

    def lie(sight: Sight) -> Vector:
        side = 1 if sight.rounds % 2 else -1
        shown: Vector = sight.around.mean(axis=0) + side * z * _deviation(sight.around)
        return shown

    return lie


def ipm(eps: float) -> Lie:
    """Inner product manipulation: -eps times the mean. Xie et al. 2019, arXiv 1903.03936."""
    return lambda sight: -eps * sight.around.mean(axis=0)


def empires(evaluations: int = REFINED) -> Lie:
    """Fall of empires with a line search: (1 - eps) times the mean, eps such that the victim's rule ends furthest from
    the honest mean. Xie et al. 2019, arXiv 1903.03936; the search: Farhadkhani et al. 2022, arXiv 2205.12173.
    """

    def lie(sight: Sight) -> Vector:
        mean = sight.around.mean(axis=0)

        def damage(eps: float) -> float:
            return length(response(sight, (1.0 - eps) * mean) - mean)

        best = max((FIRST * 2.0**k for k in range(DOUBLINGS)), key=damage)
        nearer = np.linspace(best / 2, best * 2, evaluations + 2)[1:-1].tolist()
        shown: Vector = (1.0 - max([best, *nearer], key=damage)) * mean
        return shown

    return lie


def small_sign(z: float) -> Lie:
    """Every coordinate equally little toward zero: the mean - z times the mean deviation times the mean's sign."""

    def lie(sight: Sight) -> Vector:
        mean = sight.around.mean(axis=0)
        shown: Vector = mean - z * _deviation(sight.around).mean() * np.sign(mean)
        return shown

    return lie


def mimic() -> Lie:
    """All liars copy the same honest neighbor of the victim: the furthest out along the direction in which the models
    differ most. Karimireddy et al. 2022, arXiv 2006.09365.
    """

    def lie(sight: Sight) -> Vector:
        if not sight.known:
            return sight.victim
        apart = sight.around - sight.around.mean(axis=0)
        _, directions = np.linalg.eigh(apart @ apart.T)
        return sight.models[sight.known[int(np.abs(directions[1:, -1]).argmax())]]

    return lie


def extreme() -> Lie:
    """All liars show the model around the victim that is furthest from the mean: a true one, so no check sees it."""

    def lie(sight: Sight) -> Vector:
        apart = np.linalg.norm(sight.around - sight.around.mean(axis=0), axis=1)
        shown: Vector = sight.around[int(apart.argmax())]
        return shown

    return lie


def mirror() -> Lie:
    """Each is shown its own model. A rule whose radius is the (m - 2b)-th shortest distance has none left where the
    liars are as many as that, and its node goes nowhere.
    """
    return lambda sight: sight.victim


def min_max() -> Lie:
    """As far against the deviation as no further from any model than two of them are from each other: AGR-agnostic
    Min-Max of Shejwalkar and Houmansadr, NDSS 2021.
    """

    def lie(sight: Sight) -> Vector:
        rows, mean, push = _pushed(sight)
        limit = _squares_between(rows).max()
        from_mean = mean - rows
        half, square = np.einsum("ij,j->i", from_mean, push), length(push) ** 2
        slack = np.maximum(limit - np.einsum("ij,ij->i", from_mean, from_mean), 0.0)
        reach = (np.sqrt(half**2 + square * slack) - half).min() / square if square > 0 else 0.0
        shown: Vector = mean + reach * push
        return shown

    return lie


def min_sum() -> Lie:
    """As `min_max`, with the sum of squared distances to all models in place of the largest: their Min-Sum."""

    def lie(sight: Sight) -> Vector:
        rows, mean, push = _pushed(sight)
        limit = _squares_between(rows).sum(axis=1).max()
        slack = max(limit - float(((rows - mean) ** 2).sum()), 0.0)
        square = length(push) ** 2
        shown: Vector = mean + (np.sqrt(slack / (len(rows) * square)) if square > 0 else 0.0) * push
        return shown

    return lie


def fang() -> Lie:
    """Directed deviation against trimmed mean and median: where a coordinate has grown since the start, somewhat below
    the least of the honest, else somewhat above the largest. Fang et al., USENIX Security 2020, arXiv 1911.11815.
    """

    def lie(sight: Sight) -> Vector:
        rows = sight.around
        least, most = rows.min(axis=0), rows.max(axis=0)
        share = sight.draws("fang", sight.count).random(rows.shape[1])
        below = least - share * (least - np.where(least > 0, least / FANG_B, least * FANG_B))
        above = most + share * (np.where(most > 0, most * FANG_B, most / FANG_B) - most)
        shown: Vector = np.where(rows.mean(axis=0) > sight.initial, below, above)
        return shown

    return lie


def replacement(scale: float) -> Lie:
    """Model replacement: what the liar has learned apart from the mean around the victim, `scale` times. Bagdasaryan et
    al. 2020, arXiv 1807.00459.
    """

    def lie(sight: Sight) -> Vector:
        mean = sight.around.mean(axis=0)
        shown: Vector = mean + scale * (sight.own - mean)
        return shown

    return lie


def response(sight: Sight, lie: Vector) -> Vector:
    """The victim's model (d,) after it has mixed with its honest neighbors and, from each liar at it, with `lie`.

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
    """Of each coordinate, (d,); zero where one model alone is known."""
    return rows.std(axis=0, ddof=1) if len(rows) > 1 else np.zeros(rows.shape[1])


def _pushed(sight: Sight) -> tuple[Rows, Vector, Vector]:
    """The rows (k, d), their mean, and the direction of the lie: against the deviation, which serves both rules best in
    the paper.
    """
    return sight.around, sight.around.mean(axis=0), -_deviation(sight.around)


def _squares_between(rows: Rows) -> NDArray[np.floating]:
    """Squared distances (k, k)."""
    return np.stack([((rows - row) ** 2).sum(axis=1) for row in rows])


@cache
def _rule(spec: str) -> Rule | None:
    return make_rule(spec)
