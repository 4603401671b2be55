"""Matchings, in which every node averages with one other in each round; and EquiTopo, graphs made from random shifts i
-> i + u, whose mixing rate does not depend on the number of nodes.

Source: Song, Li, Jin, Shi, Yan, Yin, Yuan, Communication-Efficient Topologies for Decentralized Learning with O(1)
Consensus Rate, NeurIPS 2022, arXiv:2210.07881. The basis matrix of shift u is A_u = (n-1)/n P_u + 1/n I. Schedules in
this library repeat, so a one-peer graph is a number of drawn rounds over and over, each shift drawn from all n - 1 (the
paper's case M = n - 1).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from fractions import Fraction

import numpy as np

from topologies.chance import StableDraws
from topologies.families.random import regular
from topologies.family import Family, FamilyParameter, GraphKind, GraphRequest, whole
from topologies.schedules.powers import shifted
from topologies.schedules.schedule import Ints, MixingMatrix, Part, Schedule, check_links, check_rounds

SONG = "Song et al. 2022, arXiv:2210.07881"
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


FINEST = 1_000_000
"""The largest denominator of eta; times the number of nodes it still fits into 64 bits."""


def eta_parameter() -> FamilyParameter:
    def read(text: str) -> Fraction:
        # as a float first, because a fraction with a nine-digit exponent would never end
        if not 0.0 < float(text) <= 1.0 or Fraction(text).denominator > FINEST:
            raise ValueError(text)
        return Fraction(text)

    # exactly one half: about where the expected contraction of OD-EquiDyn is best
    return FamilyParameter(
        0.5,
        "a number above 0 and up to 1, of at most six decimals",
        read,
        "how far a node goes to the mean with its partner",
    )


def d_equi_static(request: GraphRequest) -> Schedule:
    """Average m basis matrices, each for a shift drawn with replacement. By default m = ceil(log2 n), or more until
    the shifts have no divisor in common with n: otherwise nodes could not reach each other.
    """
    n = request.nodes
    m = request["m"] or max(1, (n - 1).bit_length())
    check_links("d-equi-static", n, n * m)
    shifts = _shifts("d-equi-static", request, m)[0].tolist()
    while request["m"] is None and math.gcd(n, *shifts) > 1:
        m += 1
        shifts = _shifts("d-equi-static", request, m)[0].tolist()
    drawn = Counter(shifts)
    parts = [shifted(n, shift, Fraction(times * (n - 1), m * n)) for shift, times in sorted(drawn.items())]
    mixing = MixingMatrix.joined(n, parts)
    return Schedule(request.spec, n, [mixing], request.seed, directed=True, random=True)


def od_equi_dyn(request: GraphRequest) -> Schedule:
    """Mix each round with W = (1 - eta) I + eta A_u for one random shift u: every node receives from node i + u."""
    n = request.nodes
    check_rounds("od-equi-dyn", n, request["rounds"])
    shifts, _ = _shifts("od-equi-dyn", request, request["rounds"])
    rounds = [MixingMatrix.joined(n, [shifted(n, shift, _weight(request))]) for shift in shifts.tolist()]
    return Schedule(request.spec, n, rounds or [MixingMatrix.joined(n, [])], request.seed, directed=True, random=True)


def ou_equi_dyn(request: GraphRequest) -> Schedule:
    """Mix each round with W = (1 - eta) I + eta ((n-1)/n M + 1/n I), where M swaps the pairs that `paired` makes from a
    random shift and a random start, and leaves unpaired nodes unchanged.
    """
    n = request.nodes
    check_rounds("ou-equi-dyn", n, request["rounds"])
    shifts, starts = _shifts("ou-equi-dyn", request, request["rounds"])
    rounds = []
    for shift, start in zip(shifts.tolist(), starts.tolist(), strict=True):
        left, right = paired(n, shift, start)
        ends = np.concatenate([left, right]), np.concatenate([right, left])
        rounds.append(MixingMatrix.joined(n, [Part(*ends, _weight(request))]))
    return Schedule(request.spec, n, rounds or [MixingMatrix.joined(n, [])], request.seed, directed=False, random=True)


def paired(nodes: int, shift: int, start: int) -> tuple[Ints, Ints]:
    """Go once around from `start` and pair each node i with i + shift if both are still free.

    This is done without the loop: counted from the start, the nodes r, r + shift, r + 2 shift, ... up to the end are
    paired two by two. A shift above n/2 first pairs the head of the circle with its tail, then the nodes between them
    in steps of n - shift. Shape of both: (pairs,).
    """
    r = np.arange(nodes)
    back = nodes - shift
    if shift <= back:
        left = r[(r // shift % 2 == 0) & (r + shift < nodes)]
        right = left + shift
    else:
        inner = r[(r >= back) & (r // back % 2 == 1) & (r + back < nodes - back)]
        left = np.concatenate([r[:back], inner])
        right = np.concatenate([r[:back] + shift, inner + back])
    return (left + start) % nodes, (right + start) % nodes


def _weight(request: GraphRequest) -> Fraction:
    return Fraction(request["eta"]) * Fraction(request.nodes - 1, request.nodes)


def _shifts(family: str, request: GraphRequest, count: int) -> tuple[Ints, Ints]:
    """Draw `count` shifts from 1 to n - 1 and as many starts, in turn; none for a single node."""
    n = request.nodes
    if n == 1:
        return np.empty(0, np.int64), np.empty(0, np.int64)
    drawn = StableDraws.of_schedule(family, n, request.seed).uniform(count, 2)
    return 1 + (drawn[:, 0] * (n - 1)).astype(np.int64), (drawn[:, 1] * n).astype(np.int64)


FAMILIES: Mapping[str, Family] = {
    "d-equi-static": Family(
        rule="node i hears nodes i + u for m drawn shifts u, by default ceil(log2 n), or more until it is connected",
        degree="at most m",
        schedule=d_equi_static,
        parameters={
            "m": whole(
                None,
                1,
                "how many shifts are drawn; by default log2 n, rounded up, or more until the graph is connected",
            )
        },
        source=SONG,
        kind=GraphKind.DIRECTED,
        random=True,
    ),
    "od-equi-dyn": Family(
        rule="so many drawn rounds, repeated: node i hears node i + u for one shift u",
        degree="1 in a round",
        schedule=od_equi_dyn,
        parameters={"eta": eta_parameter(), "rounds": whole(16, 1, "rounds that are drawn, then repeated")},
        source=SONG,
        kind=GraphKind.DIRECTED,
        random=True,
    ),
    "ou-equi-dyn": Family(
        rule="so many drawn rounds, repeated: nodes i and i + u meet where both are free, for one shift u",
        degree="at most 1 in a round",
        schedule=ou_equi_dyn,
        parameters={"eta": eta_parameter(), "rounds": whole(16, 1, "rounds that are drawn, then repeated")},
        source=SONG,
        kind=GraphKind.SCHEDULE,
        random=True,
    ),
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
