"""Schedules: those of powers (one-peer exponential, hypercube, Base-(k+1)), and those that are drawn or shuffled.

The links of the one-peer exponential graph and of the hypercube span powers of two. Source of the first: Ying, Yuan,
Chen, Hu, Pan, Yin, Exponential Graph is Provably Efficient for Decentralized Deep Training, 2021, arXiv:2110.13363.

The Base-(k+1) graph: any number of nodes averages exactly in O(log n) rounds, with no node joined to more than k
others. Source: Takezawa, Sato, Bao, Niwa, Yamada, Beyond Exponential Graph: Communication-Efficient Topologies for
Decentralized Learning via Finite-time Convergence, NeurIPS 2023, arXiv:2305.11420: Algorithm 3, and in it 1
(hyper-hypercube) and 2 (simple Base). All three act on an array of nodes of shape (copies, size): each row runs the
same schedule, all at the same time.

Drawn, or shuffled, are matchings, in which every node averages with one other in each round, and a random regular graph
for each round.
"""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from functools import cache

import numpy as np

from topologies.chance import StableDraws
from topologies.families.classic import dimension
from topologies.families.random import regular
from topologies.family import Family, GraphKind, GraphRequest, whole
from topologies.schedule import Ints, MixingMatrix, Part, Schedule, check_links, check_rounds

HALF = Fraction(1, 2)


def shifted(nodes: int, shift: int, weight: Fraction) -> Part:
    """Let every node i receive from node i + shift."""
    node = np.arange(nodes)
    return Part(node, (node + shift) % nodes, weight)


def one_peer_exponential(request: GraphRequest) -> Schedule:
    """Let every node average with node i + 2^t in round t. ceil(log2 n) rounds."""
    n = request.nodes
    bits = (n - 1).bit_length()
    check_links("one-peer-exponential", n, n * bits)
    rounds = [MixingMatrix.joined(n, [shifted(n, 1 << bit, HALF)]) for bit in range(bits)]
    return Schedule(request.spec, n, rounds, request.seed, directed=True)


def one_peer_hypercube(request: GraphRequest) -> Schedule:
    """In round t, let every node average with the one whose number differs in bit t."""
    n = request.nodes
    node, bits = np.arange(n), dimension("one-peer-hypercube", n)
    check_links("one-peer-hypercube", n, n * bits)
    rounds = [MixingMatrix.joined(n, [Part(node, node ^ (1 << bit), HALF)]) for bit in range(bits)]
    return Schedule(request.spec, n, rounds, request.seed, directed=False)


Rounds = list[list[Part]]


@cache
def factors(n: int, k: int) -> tuple[int, ...] | None:
    """Return the fewest integers from 2 to k+1 with product n, choosing the smallest sum; None if there are none."""
    if n == 1:
        return ()
    splits = [(f, factors(n // f, k)) for f in range(2, min(n, k + 1) + 1) if n % f == 0]
    choices = [tuple(sorted((f, *rest))) for f, rest in splits if rest is not None]
    return min(choices, key=lambda split: (len(split), sum(split), split), default=None)


def smooth_part(n: int, k: int) -> int:
    """Return the largest divisor of n without a prime factor above k + 1."""
    part = 1
    for prime in range(2, min(n, k + 1) + 1):
        while n % prime == 0:
            n //= prime
            part *= prime
    return part


def digits(n: int, base: int) -> list[tuple[int, int]]:
    """Return the pairs (a, p) with a > 0 and p decreasing, such that n is the sum of all a * base^p."""
    pairs, p = [], 0
    while n:
        n, a = divmod(n, base)
        pairs.append((a, p))
        p += 1
    return [(a, p) for a, p in reversed(pairs) if a]


def cube_rounds(nodes: Ints, k: int) -> Rounds:
    """Build a hyper-hypercube on each row: with the place written in mixed radix, round l averages over digit l."""
    place = np.arange(nodes.shape[1])
    rounds, stride = [], 1
    for factor in factors(nodes.shape[1], k) or ():
        digit = place // stride % factor
        others = [place + ((digit + step) % factor - digit) * stride for step in range(1, factor)]
        senders = np.concatenate([nodes[:, other].ravel() for other in others])
        rounds.append([Part(np.tile(nodes.ravel(), factor - 1), senders, Fraction(1, factor))])
        stride *= factor
    return rounds


def simple_rounds(nodes: Ints, k: int) -> Rounds:
    """Build the simple Base-(k+1) graph on each row.

    The row is split into V_1, V_2, ..., each with a_l blocks of (k+1)^p_l nodes. Every V_l averages within itself; then
    V_1, V_2, ... in turn meet all that come after them, which gives these the mean of all the rest, and each block of
    V_l that mean on average; then each block averages within itself.
    """
    copies, size = nodes.shape
    if factors(size, k) is not None:
        return cube_rounds(nodes, k)
    rounds: Rounds = []
    start = 0
    first = 0
    for level, (a, p) in enumerate(digits(size, k + 1)):
        block = (k + 1) ** p
        end = start + a * block
        mine = nodes[:, start:end]
        within = cube_rounds(mine, k)
        first = first or len(within)
        _put(rounds, 0, within)
        if end < size:
            blocks = mine.reshape(copies * a, block)
            met = blocks[:, : size - end].reshape(copies, a, size - end)
            _put(rounds, first + level, [_meeting(met, nodes[:, end:], Fraction(a * block, a * (size - start)))])
            _put(rounds, first + level + 1, cube_rounds(blocks, k))
        start = end
    return rounds


def _meeting(blocks: Ints, rest: Ints, weight: Fraction) -> list[Part]:
    """Join each node of `rest`, (copies, r), to one of each block: `blocks` is (copies, a, r)."""
    others = np.broadcast_to(rest[:, None, :], blocks.shape).ravel()
    return [Part(blocks.ravel(), others, weight), Part(others, blocks.ravel(), weight)]


def _put(rounds: Rounds, start: int, more: Rounds) -> None:
    """Add the rounds `more`, from round `start` on, to the rounds already there."""
    rounds.extend([] for _ in range(start + len(more) - len(rounds)))
    for at, parts in enumerate(more, start):
        rounds[at].extend(parts)


def base_rounds(nodes: Ints, k: int) -> Rounds:
    """Build Base-(k+1): with n = p q, where p has no prime factor above k + 1, p rows of q nodes run the simple graph,
    then a cube joins them. If the simple graph on all n is shorter, use that.
    """
    copies, size = nodes.shape
    p = smooth_part(size, k)
    rows = nodes.reshape(copies * p, size // p)
    columns = nodes.reshape(copies, p, size // p).transpose(0, 2, 1).reshape(-1, p)
    split = simple_rounds(rows, k) + cube_rounds(columns, k)
    if p in {1, size}:
        return split
    whole = simple_rounds(nodes, k)
    return whole if len(whole) < len(split) else split


def base(request: GraphRequest) -> Schedule:
    n, k = request.nodes, min(request["k"], max(1, request.nodes - 1))
    most = 1
    while (k + 1) ** most < n:
        most += 1
    check_links("base", n, 2 * most * n * k)
    mixings = [MixingMatrix.joined(n, parts) for parts in base_rounds(np.arange(n)[None, :], k)]
    return Schedule(request.spec, n, mixings, request.seed, directed=False)


POWERS: Mapping[str, Family] = {
    "one-peer-exponential": Family(
        rule="round t: node i averages with node i + 2^t; the exact mean after log2 n rounds if n is a power of two",
        degree="1 in a round",
        schedule=one_peer_exponential,
        source="Ying et al. 2021, arXiv:2110.13363",
        kind=GraphKind.DIRECTED,
    ),
    "one-peer-hypercube": Family(
        rule="round t: nodes whose numbers differ in bit t average; n a power of two: exact after log2 n rounds",
        degree="1 in a round",
        schedule=one_peer_hypercube,
        source="Shi et al. 2016, Finite-time convergent gossiping, doi:10.1109/TNET.2015.2484345",
        kind=GraphKind.SCHEDULE,
    ),
    "base": Family(
        rule="any n, the exact mean after about 2 log n rounds to the base k + 1",
        degree="at most k in a round",
        schedule=base,
        parameters={"k": whole(1, 1, "most neighbors in a round")},
        source="Takezawa et al. 2023, arXiv:2305.11420",
        kind=GraphKind.SCHEDULE,
    ),
}

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
    return Schedule(request.spec, n, mixings, request.seed, directed=False)


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
