"""Schedules that are drawn, or shuffled: matchings, in which every node averages with one other in each round, and a
random regular graph for each round.
"""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction

import numpy as np

from topologies.chance import StableDraws
from topologies.families.random import regular
from topologies.family import Family, GraphKind, GraphRequest, whole
from topologies.schedules.schedule import Ints, MixingMatrix, Part, Schedule, check_links, check_rounds

EACH_ROUND = "random-regular-each-round"


def meeting(nodes: int, left: Ints, right: Ints) -> MixingMatrix:
    """Average node left[e] with node right[e]."""
    ends = np.concatenate([left, right]), np.concatenate([right, left])
    return MixingMatrix.joined(nodes, [Part(*ends, Fraction(1, 2))] if len(left) else [])


def random_matchings(request: GraphRequest) -> Schedule:
    """Pair the nodes of each round in a random order, the first with the second and so on; if their number is odd, one
    rests.
    """
    n, rounds = request.nodes, request["rounds"]
    check_rounds("random-matchings", n, rounds)
    chance = StableDraws.of_schedule("random-matchings", n, request.seed)
    orders = (np.argsort(chance.uniform(n), kind="stable") for _ in range(rounds))
    half = n // 2
    mixings = [meeting(n, order[:half], order[half : 2 * half]) for order in orders]
    return Schedule(request.spec, n, mixings, request.seed, directed=False, random=True)


def random_regular_each_round(request: GraphRequest) -> Schedule:
    """Draw a random regular graph for each round; a node takes equal shares from its neighbors and from itself."""
    n, degree, rounds = request.nodes, request["degree"], request["rounds"]
    check_rounds(EACH_ROUND, n, rounds, degree)
    seeds = StableDraws.of_schedule(EACH_ROUND, n, request.seed).below(1 << 31, rounds).tolist()
    mixings = []
    for seed in seeds:
        low, high = np.array(list(regular(EACH_ROUND, n, degree, seed)), dtype=np.int64).reshape(-1, 2).T
        ends = np.concatenate([low, high]), np.concatenate([high, low])
        mixings.append(MixingMatrix.joined(n, [Part(*ends, Fraction(1, degree + 1))]))
    return Schedule(request.spec, n, mixings, request.seed, directed=False, random=True)


def round_robin(request: GraphRequest) -> Schedule:
    """In each round, pair the nodes whose numbers add up to t modulo n, or n - 1 if n is even; the last node then meets
    the unpaired one. In a period every pair meets once.

    The rounds come in a shuffled order, the same for each seed: with t = 0, 1, 2, ... values only travel around the
    circle, and consensus takes about n^2 / 3 rounds instead of a few dozen.
    """
    n = request.nodes
    circle = n - 1 + n % 2
    check_links("round-robin", n, n * circle)
    node = np.arange(circle)
    mixings = []
    for t in np.argsort(StableDraws.of_schedule("round-robin", n, 0).uniform(circle), kind="stable").tolist():
        other = (t - node) % circle
        other[other == node] = n - 1 if n % 2 == 0 else node[other == node]
        chosen = node < other
        mixings.append(meeting(n, node[chosen], other[chosen]))
    return Schedule(request.spec, n, mixings or [MixingMatrix.joined(n, [])], request.seed, directed=False)


DRAWN: Mapping[str, Family] = {
    "random-matchings": Family(
        rule="so many drawn rounds, repeated: all nodes in random pairs, each pair averages",
        degree="1 in a round, one node of an odd number rests",
        schedule=random_matchings,
        parameters={"rounds": whole(8, 1, "rounds that are drawn, then repeated")},
        source="Boyd et al. 2006, Randomized gossip algorithms, doi:10.1109/TIT.2006.874516",
        kind=GraphKind.SCHEDULE,
        random=True,
    ),
    EACH_ROUND: Family(
        rule="so many drawn rounds, repeated: each a random graph in which every node has this degree",
        degree="degree in a round, up to degree times rounds sessions",
        schedule=random_regular_each_round,
        parameters={
            "degree": whole(4, 1, "of every node in a round"),
            "rounds": whole(8, 1, "rounds that are drawn, then repeated"),
        },
        source="Epidemic Learning, de Vos et al. 2023, arXiv:2310.01972",
        kind=GraphKind.SCHEDULE,
        random=True,
    ),
    "round-robin": Family(
        rule="every pair meets once in n - 1 rounds, n where it is odd, in a mixed order",
        degree="1 in a round, one node of an odd number rests",
        schedule=round_robin,
        source="Kirkman 1847, On a problem in combinations",
        kind=GraphKind.SCHEDULE,
    ),
}
