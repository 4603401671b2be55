"""Directed graphs on words over an alphabet: a link drops the first letter and appends one.

Sources: de Bruijn, A combinatorial problem, 1946; Kautz, Bounds on directed (d, k) graphs, 1968; the arithmetic form of
both: Imase and Itoh, A Design for Directed Graphs with Minimum Diameter, 1983, doi:10.1109/TC.1983.1676323.
"""

from __future__ import annotations

from fractions import Fraction
from typing import TYPE_CHECKING

import numpy as np

from topologies.schedules.limits import check_links, impossible
from topologies.schedules.schedule import Ints, Mixing, Part, Schedule

if TYPE_CHECKING:
    from topologies.family import Request


def de_bruijn(wanted: Request) -> Schedule:
    """Node i, a word of D digits to the base k, sends to k i, ..., k i + k - 1 modulo n = k^D. A link from a node to
    itself is what the node keeps.
    """
    n, k = wanted.nodes, wanted["k"]
    _check("de-bruijn", n, k, [k**D for D in range(n.bit_length() + 1)])
    sender, letter = _sends(n, k)
    return _made(wanted, sender, (k * sender + letter) % n)


def kautz(wanted: Request) -> Schedule:
    """Words of D letters among k + 1 without equal neighbors, n = k^D + k^(D-1): node i sends to -(k i + j) modulo n
    for j = 1, ..., k.
    """
    n, k = wanted.nodes, wanted["k"]
    _check("kautz", n, k, [k**D + k ** (D - 1) for D in range(1, n.bit_length() + 2)])
    sender, letter = _sends(n, k)
    return _made(wanted, sender, -(k * sender + letter + 1) % n)


def _check(family: str, nodes: int, k: int, sizes: list[int]) -> None:
    """`sizes` are those that there are, ascending, up to one above `nodes`."""
    if nodes not in sizes:
        near = [*[size for size in sizes if size < nodes][-1:], next(size for size in sizes if size > nodes)]
        raise impossible(family, nodes, f"with k={k}: " + " or ".join(map(str, near)))
    check_links(family, nodes, nodes * k)


def _sends(nodes: int, k: int) -> tuple[Ints, Ints]:
    """Every node with every letter. Shape of both: (k n,)."""
    sender = np.tile(np.arange(nodes), k)
    return sender, np.repeat(np.arange(k), nodes)


def _made(wanted: Request, senders: Ints, receivers: Ints) -> Schedule:
    apart = senders != receivers
    part = Part(receivers[apart], senders[apart], Fraction(1, wanted["k"]))
    mixing = Mixing.joined(wanted.nodes, [part])
    return Schedule(wanted.spec, wanted.nodes, [mixing], wanted.seed, directed=True)
