"""Secrets cut in shares, of which a threshold gives the secret and fewer give nothing.

Shamir, "How to share a secret", 1979 (doi 10.1145/359168.359176), over the prime field of 2^255 - 19: a secret is then
a private key of X25519. None of the project's libraries has it (libsodium and PyNaCl share no secrets), and it is a
polynomial and its interpolation.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import combinations, islice

PRIME = 2**255 - 19
MOST_TRIES = 5000
"""The sets of shares that are tried when some of them are wrong."""


def deal(secret: int, coefficients: Sequence[int], points: Sequence[int], prime: int = PRIME) -> list[int]:
    """The shares at these points, which are not 0. The threshold is one more than there are uniform coefficients."""
    shares = []
    for point in points:
        value = 0
        for coefficient in (*reversed(coefficients), secret):
            value = (value * point + coefficient) % prime
        shares.append(value)
    return shares


def rebuild(shares: Mapping[int, int], prime: int = PRIME) -> int:
    """The secret, from exactly as many shares as the threshold asks for, by point (Lagrange, at 0)."""
    secret = 0
    for point, share in sorted(shares.items()):
        above, below = 1, 1
        for other in shares:
            if other != point:
                above = above * other % prime
                below = below * (other - point) % prime
        secret += share * above * pow(below, -1, prime)
    return secret % prime


def rebuild_checked(
    shares: Mapping[int, int], threshold: int, is_right: Callable[[int], bool], prime: int = PRIME
) -> int | None:
    """The secret that `is_right`, though holders may have lied about shares; None: no set of shares gives it."""
    for points in islice(combinations(sorted(shares), threshold), MOST_TRIES):
        secret = rebuild({point: shares[point] for point in points}, prime)
        if is_right(secret):
            return secret
    return None
