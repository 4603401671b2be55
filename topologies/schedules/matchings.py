"""Schedules in which every node meets one other each round, and the two average."""

from __future__ import annotations

from fractions import Fraction
from typing import TYPE_CHECKING

import numpy as np

from topologies.schedules.limits import check_links, check_rounds, generator
from topologies.schedules.schedule import Ints, Mixing, Part, Schedule

if TYPE_CHECKING:
    from topologies.family import Request


def meeting(nodes: int, left: Ints, right: Ints) -> Mixing:
    """Node left[e] and node right[e] average."""
    ends = np.concatenate([left, right]), np.concatenate([right, left])
    return Mixing.joined(nodes, [Part(*ends, Fraction(1, 2))] if len(left) else [])


def random_matchings(wanted: Request) -> Schedule:
    """Each round pairs the nodes in a drawn order, the first with the second and so on; of an odd number one rests."""
    n, rounds = wanted.nodes, wanted["rounds"]
    check_rounds("random-matchings", n, rounds)
    chance = generator("random-matchings", n, wanted.seed)
    orders = (np.argsort(chance.random(n), kind="stable") for _ in range(rounds))
    half = n // 2
    mixings = [meeting(n, order[:half], order[half : 2 * half]) for order in orders]
    return Schedule(wanted.spec, n, mixings, wanted.seed, directed=False, random=True)


def round_robin(wanted: Request) -> Schedule:
    """A round pairs the nodes whose numbers add up to t modulo n, or n - 1 where n is even: then the last node meets
    the one that is left over. In a period every pair meets once.

    The rounds come in a mixed order, the same for each seed: with t = 0, 1, 2, ... values only travel around the
    circle, and consensus takes some n^2 / 3 rounds instead of some tens.
    """
    n = wanted.nodes
    circle = n - 1 + n % 2
    check_links("round-robin", n, n * circle)
    node = np.arange(circle)
    mixings = []
    for t in np.argsort(generator("round-robin", n, 0).random(circle), kind="stable").tolist():
        other = (t - node) % circle
        other[other == node] = n - 1 if n % 2 == 0 else node[other == node]
        chosen = node < other
        mixings.append(meeting(n, node[chosen], other[chosen]))
    return Schedule(wanted.spec, n, mixings or [Mixing.joined(n, [])], wanted.seed, directed=False)
