"""The Base-(k+1) graph: any number of nodes averages exactly in O(log n) rounds, no node joined to more than k others.

Source: Takezawa, Sato, Bao, Niwa, Yamada, Beyond Exponential Graph: Communication-Efficient Topologies for
Decentralized Learning via Finite-time Convergence, NeurIPS 2023, arXiv:2305.11420: Algorithms 1 (hyper-hypercube),
2 (simple Base) and 3 (Base).

All three act on an array of nodes of shape (copies, size): each row runs the same schedule, all at the same time.
"""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from functools import cache
from typing import TYPE_CHECKING

import numpy as np

from topologies.schedules.schedule import Ints, MixingMatrix, Part, Schedule, check_links, impossible

if TYPE_CHECKING:
    from topologies.family import GraphRequest

Rounds = list[list[Part]]


@cache
def factors(n: int, k: int) -> tuple[int, ...] | None:
    """The fewest whole numbers from 2 to k+1 with product n, those with the least sum; None where there are none."""
    if n == 1:
        return ()
    splits = [(f, factors(n // f, k)) for f in range(2, min(n, k + 1) + 1) if n % f == 0]
    found = [tuple(sorted((f, *rest))) for f, rest in splits if rest is not None]
    return min(found, key=lambda split: (len(split), sum(split), split), default=None)


def smooth_part(n: int, k: int) -> int:
    """The largest divisor of n without a prime factor above k + 1."""
    part = 1
    for prime in range(2, min(n, k + 1) + 1):
        while n % prime == 0:
            n //= prime
            part *= prime
    return part


def digits(n: int, base: int) -> list[tuple[int, int]]:
    """The pairs (a, p) with a > 0, p falling, such that n is the sum of all a * base^p."""
    found, p = [], 0
    while n:
        n, a = divmod(n, base)
        found.append((a, p))
        p += 1
    return [(a, p) for a, p in reversed(found) if a]


def cube_rounds(nodes: Ints, k: int) -> Rounds:
    """Hyper-hypercube on each row: with the node's place written in mixed radix, round l averages over digit l."""
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
    """Simple Base-(k+1) on each row.

    The row is cut into V_1, V_2, ..., each of a_l blocks of (k+1)^p_l nodes. Every V_l averages itself; then V_1, V_2,
    ... in turn meet all that come after them, which leaves these with the mean of all that is left, and each
    block of V_l with that mean on average; then each block averages itself.
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
    """Each node of `rest`, (copies, r), is joined to one of each block: `blocks` is (copies, a, r)."""
    others = np.broadcast_to(rest[:, None, :], blocks.shape).ravel()
    return [Part(blocks.ravel(), others, weight), Part(others, blocks.ravel(), weight)]


def _put(rounds: Rounds, start: int, more: Rounds) -> None:
    """Lets `more` happen from round `start` on, beside what happens there already."""
    rounds.extend([] for _ in range(start + len(more) - len(rounds)))
    for at, parts in enumerate(more, start):
        rounds[at].extend(parts)


def base_rounds(nodes: Ints, k: int) -> Rounds:
    """Base-(k+1): n = p q, where p has no prime factor above k + 1: p rows of q nodes run the simple one, then a cube
    joins them. The simple one on all n where that is shorter.
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


def hyper_hypercube(wanted: GraphRequest) -> Schedule:
    n, k = wanted.nodes, wanted["k"]
    if factors(n, k) is None:
        below = next(m for m in range(n - 1, 0, -1) if factors(m, k) is not None)
        above = next(m for m in range(n + 1, 2 * n + 1) if factors(m, k) is not None)
        allowed = f"a product of numbers up to {k + 1}, such as {below} or {above}"
        raise impossible("hyper-hypercube", n, allowed)
    return _schedule("hyper-hypercube", cube_rounds, wanted)


def simple_base(wanted: GraphRequest) -> Schedule:
    return _schedule("simple-base", simple_rounds, wanted)


def base(wanted: GraphRequest) -> Schedule:
    return _schedule("base", base_rounds, wanted)


def _schedule(family: str, rounds_of: Callable[[Ints, int], Rounds], wanted: GraphRequest) -> Schedule:
    n, k = wanted.nodes, min(wanted["k"], max(1, wanted.nodes - 1))
    most = 1
    while (k + 1) ** most < n:
        most += 1
    check_links(family, n, 2 * most * n * k)
    rounds = rounds_of(np.arange(n)[None, :], k)
    mixings = [MixingMatrix.joined(n, parts) for parts in rounds] or [MixingMatrix.joined(n, [])]
    return Schedule(wanted.spec, n, mixings, wanted.seed, directed=False)
