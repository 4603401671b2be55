"""Averaging without learning in two worlds, rule by rule, in synchronous rounds.

Two cliques hold different values. In the *dumbbell* of He, Karimireddy and Jaggi (2022, arXiv 2202.01545) one edge
joins two cliques of ten, and nobody lies. In the *two worlds* of Gaucher, Dieuleveut and Hendrikx (ICML 2025, arXiv
2410.10418) two cliques of 13 are joined by eight edges from each node, values are normal in five dimensions, +-5 apart
in the first, and `b` liars are neighbors of everybody. Liars know everything; the rules and lies are the shipped ones.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from p2pfl.aggregate import Neighborhood, make_rule
from sim.attacks import Sight, parse_attack
from topologies import Topology, build, spectrum

Models = NDArray[np.float64]
RULES = (
    "mean",
    "median",
    "trimmed-mean",
    "geometric-median",
    "nnm+trimmed-mean",
    "monna",
    "scc",
    "cs+",
    "hampel",
)
ATTACKS = ("alie", "foe", "dissensus", "spectral")


@dataclass(frozen=True, kw_only=True)
class Worlds:
    """Nodes with values, and liars. `start` (honest, d) has the values of the nodes from 0 on; the nodes after them are
    liars, each a neighbor of all honest ones.
    """

    start: Models
    edges: tuple[tuple[int, int], ...]
    liars: frozenset[int] = field(default_factory=frozenset)

    @property
    def between_honest(self) -> tuple[tuple[int, int], ...]:
        return tuple(edge for edge in self.edges if not self.liars.intersection(edge))


def dumbbell(clique: int = 10) -> Worlds:
    edges = build("barbell", 2 * clique).edges
    return Worlds(start=np.repeat([[0.0], [1.0]], clique, axis=0), edges=edges)


def two_worlds(liars: int, *, clique: int = 13, bridges: int = 8, seed: int = 0) -> Worlds:
    honest = 2 * clique
    edges = {
        (low, high) for first in (0, clique) for high in range(first, first + clique) for low in range(first, high)
    }
    edges |= {(node, clique + (node + step) % clique) for node in range(clique) for step in range(bridges)}
    edges |= {(node, honest + liar) for node in range(honest) for liar in range(liars)}
    start = np.random.default_rng(seed).standard_normal((honest, 5))
    start[:, 0] += np.repeat([5.0, -5.0], clique)
    return Worlds(start=start, edges=tuple(sorted(edges)), liars=frozenset(range(honest, honest + liars)))


def gap(worlds: Worlds) -> float:
    """Compute the second smallest eigenvalue of the Laplacian of the honest nodes' graph."""
    graph = Topology("honest", len(worlds.start), worlds.between_honest)
    lambda_2 = spectrum(graph).algebraic_connectivity
    if lambda_2 is None:
        raise ValueError("this graph's spectrum is not known")
    return float(lambda_2)


def average(worlds: Worlds, rule: str, attack: str | None = None, rounds: int = 100) -> list[float]:
    """Return the mean squared distance of the honest nodes to the mean of their initial values, before and after each
    round.

    Weights are 1/(max(degree, other degree) + 1), counting liars.
    """
    nodes = len(worlds.start) + len(worlds.liars)
    neighbors: list[list[int]] = [[] for _ in range(nodes)]
    for low, high in worlds.edges:
        neighbors[low].append(high)
        neighbors[high].append(low)
    models, goal, history = worlds.start.copy(), worlds.start.mean(axis=0), []
    for count in range(rounds + 1):
        history.append(float(((models - goal) ** 2).sum(axis=1).mean()))
        models = np.stack([_mixed(worlds, neighbors, models, node, rule, attack, count) for node in range(len(models))])
    return history


def _mixed(  # noqa: PLR0917 - one round of one node, and all that it depends on
    worlds: Worlds,
    neighbors: Sequence[Sequence[int]],
    models: Models,
    node: int,
    rule: str,
    attack: str | None,
    count: int,
) -> Models:
    peers = tuple(sorted(peer for peer in neighbors[node] if attack is not None or peer not in worlds.liars))
    largest = [max(len(neighbors[node]), len(neighbors[peer]) if peer < len(models) else 0) for peer in peers]
    weights = 1.0 / (np.array(largest, dtype=np.float64) + 1.0)
    sight = dict(zip(peers, weights.tolist(), strict=True))
    others = [
        models[peer] if peer < len(models) else _lie(worlds, models, (peer, node), rule, attack or "", count, sight)
        for peer in peers
    ]
    robust = make_rule(rule)
    if robust is None:
        mean: Models = models[node] + (weights[:, None] * (np.stack(others) - models[node])).sum(axis=0)
        return mean
    around = Neighborhood(own=models[node], others=others, weights=weights, peers=peers)
    return robust.mix(around).model.astype(np.float64)


def _lie(  # noqa: PLR0917 - as above
    worlds: Worlds,
    models: Models,
    pair: tuple[int, int],
    rule: str,
    attack: str,
    count: int,
    weights: dict[int, float],
) -> Models:
    liar, victim = pair
    seen = Sight(
        node=liar,
        peer=victim,
        own=models.mean(axis=0),
        initial=np.zeros_like(models[0]),
        models=dict(enumerate(models)),
        liars=worlds.liars,
        edges=worlds.edges,
        weights=weights,
        rule=None if rule == "mean" else rule,
        rounds=count,
        count=count,
    )
    return np.asarray(parse_attack(attack).tell(seen), dtype=np.float64)


def with_liars(rule: str, liars: int) -> str:
    return rule if rule == "mean" else f"{rule}:b={max(liars, 1)}"


def main() -> None:
    parser = argparse.ArgumentParser(description="averaging alone in two worlds, rule by rule")
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--liars", type=int, nargs="+", default=[1, 2, 4, 6])
    given = parser.parse_args()
    bell = dumbbell()
    print(f"dumbbell, nobody lies, {given.rounds} rounds; at the start {average(bell, 'mean', rounds=0)[-1]:.3f}\n")
    print("| rule | mean squared error |\n|---|---|")
    for rule in ("mean", *(f"{name}:b=1" for name in RULES[1:]), "scc:b=1,tau=1"):
        print(f"| {rule} | {average(bell, rule, rounds=given.rounds)[-1]:.3g} |", flush=True)
    for liars in given.liars:
        worlds = two_worlds(liars)
        begin = average(worlds, "mean", rounds=0)[-1]
        print(f"\ntwo worlds, b = {liars}, mu2 = {gap(worlds):.3g}, {given.rounds} rounds; at the start {begin:.3g}\n")
        print("| rule | " + " | ".join(ATTACKS) + " |\n|---" * 1 + "|---" * len(ATTACKS) + "|")
        for name in RULES:
            rule = with_liars(name, liars)
            ends = [average(worlds, rule, attack, given.rounds)[-1] for attack in ATTACKS]
            print(f"| {rule} | " + " | ".join(f"{end:.3g}" for end in ends) + " |", flush=True)


if __name__ == "__main__":
    main()
