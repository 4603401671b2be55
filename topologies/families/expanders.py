"""Graphs of constant degree that stay well connected at any size, without chance. Loops and repeated edges of the
original definitions are left out.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from topologies.families.circulants import is_prime
from topologies.families.parts import Ints, cycle, pairs, together
from topologies.family import Family, Request, impossible
from topologies.graph import Ends


def margulis(wanted: Request) -> Ends:
    """Node x * m + y is joined to (x + 2y, y), (x + 2y + 1, y), (x, y + 2x), (x, y + 2x + 1), and so back, mod m."""
    m = math.isqrt(wanted.nodes)
    if m * m != wanted.nodes:
        raise impossible("Margulis expander", wanted.nodes, f"a square, such as {m * m} or {(m + 1) ** 2}")
    node = np.arange(wanted.nodes)
    x, y = np.divmod(node, m)
    along = [((x + 2 * y + step) % m * m + y) for step in (0, 1)]
    across = [(x * m + (y + 2 * x + step) % m) for step in (0, 1)]
    return together(*(pairs(node, there) for there in (*along, *across)))


def chordal_cycle(wanted: Request) -> Ends:
    """A ring, and each node x joined to 1 / x modulo n."""
    n = wanted.nodes
    if not is_prime(n):
        lower = next((m for m in range(n, 1, -1) if is_prime(m)), None)
        upper = next(m for m in range(n, 2 * n + 3) if is_prime(m))
        raise impossible("chordal cycle", n, f"a prime, such as {lower} or {upper}" if lower else "a prime")
    node = np.arange(n)
    return together(cycle(node), pairs(node, _power(node, n - 2, n)))


def _power(base: Ints, exponent: int, modulus: int) -> Ints:
    """The power modulo `modulus`, which is below 2^31. By Fermat 1 / x is x^(p - 2), and 0 stays 0."""
    result = np.ones_like(base)
    while exponent:
        if exponent & 1:
            result = result * base % modulus
        base = base * base % modulus
        exponent >>= 1
    return result % modulus


FAMILIES: Mapping[str, Family] = {
    "margulis": Family(
        rule="pairs (x, y) mod m joined by shears, m^2 = n: an expander without chance",
        degree="at most 8",
        build=margulis,
        connectivity="at least 8 - 5 sqrt 2 = 0.93 if repeated edges counted again",
        source="Gabber and Galil 1981; Hoory, Linial and Wigderson 2006",
    ),
    "chordal-cycle": Family(
        rule="a ring, and x joined to 1 / x modulo n; n a prime: an expander of degree 3",
        degree="2 or 3",
        build=chordal_cycle,
        connectivity="above a constant for any n",
        source="Lubotzky 1994, Discrete Groups, Expanding Graphs and Invariant Measures, 4.4.2",
    ),
}
