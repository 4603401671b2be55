"""Lies that use the graph: they keep the honest nodes apart where the graph is weakest."""

from __future__ import annotations

from functools import cache

import numpy as np
from numpy.typing import NDArray

from p2pfl.learn.chance import generator
from sim.attacks.attack import Edge, Lie, Sight, Vector, length

ROUNDING = 1e-9


def dissensus(eps: float) -> Lie:
    """Undoes `eps` times what the victim's honest neighbors pull it by; at 1 the weighted mean leaves it where it is.
    He et al. 2022, arXiv 2202.01545.
    """

    def lie(sight: Sight) -> Vector:
        victim = np.asarray(sight.victim, np.float64)
        pull = sum((sight.weight(n) * (sight.models[n] - victim) for n in sight.known), np.zeros_like(victim))
        shown: Vector = victim - eps * pull / sum(sight.weight(n) for n in sight.lying)
        return shown

    return lie


def spectral(scale: float) -> Lie:
    """Spectral heterogeneity: the victim's model, pushed along the slowest mode of the honest graph (its Fiedler
    vector), in which gossip is worst at bringing models together. Gaucher et al. 2025, arXiv 2410.10418.

    The push has `scale` times the length by which the honest models of its neighborhood deviate.
    """

    def lie(sight: Sight) -> Vector:
        victim = np.asarray(sight.victim, np.float64)
        nodes = tuple(sorted({*sight.honest, sight.peer}))
        mode = fiedler(sight.edges, nodes)
        models = [victim if node == sight.peer else sight.models[node] for node in nodes]
        slowest = sum((part * model for part, model in zip(mode, models, strict=True)), np.zeros_like(victim))
        size, side = length(slowest), np.sign(mode[nodes.index(sight.peer)])
        shown: Vector = victim + (side * scale * _spread(sight) / size) * slowest if size > 0 else victim
        return shown

    return lie


def two_faced(scale: float) -> Lie:
    """Another lie for each neighbor: its model plus a direction that is always the same for one victim, the same from
    all liars, and drawn anew for the next; `scale` times as long as the model.
    """

    def lie(sight: Sight) -> Vector:
        own = np.asarray(sight.own, np.float64)

        direction = generator(sight.seed, "two-faced", sight.peer).standard_normal(own.size)
        shown: Vector = own + scale * length(own) / length(direction) * direction
        return shown

    return lie


@cache
def fiedler(edges: tuple[Edge, ...], nodes: tuple[int, ...]) -> NDArray[np.float64]:
    """The Laplacian's eigenvector of the second smallest eigenvalue, of the graph between `nodes`: (n,), of length 1;
    entries that are zero but for rounding are zero. Zeros for one node.

    Where that eigenvalue has several, as in a ring, it is the one nearest to rising in the order of `nodes`, so that it
    does not depend on who computes it.
    """
    count = len(nodes)
    if count < 2:
        return np.zeros(count)
    place = {node: index for index, node in enumerate(nodes)}
    laplacian = np.full((count, count), 1.0 + 1.0 / count)  # puts what is constant behind all other modes
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


def _spread(sight: Sight) -> float:
    """Root mean square distance of the models around the victim to their mean."""
    rows = sight.around
    return float(np.sqrt(((rows - rows.mean(axis=0)) ** 2).sum(axis=1).mean()))
