"""Graphs whose links span powers of two: the directed exponential graph, its one-peer schedule, and the hypercube's.
And directed graphs on words over an alphabet: a link drops the first letter and appends one.

Sources: Ying, Yuan, Chen, Hu, Pan, Yin, Exponential Graph is Provably Efficient for Decentralized Deep Training, 2021,
arXiv:2110.13363; de Bruijn, A combinatorial problem, 1946; Kautz, Bounds on directed (d, k) graphs, 1968; the
arithmetic form of both: Imase and Itoh, A Design for Directed Graphs with Minimum Diameter, 1983,
doi:10.1109/TC.1983.1676323.
"""

from __future__ import annotations

from fractions import Fraction
from typing import TYPE_CHECKING

import numpy as np

from topologies.schedules.schedule import MixingMatrix, Part, Schedule, check_links, impossible

if TYPE_CHECKING:
    from topologies.family import GraphRequest
from typing import TYPE_CHECKING

from topologies.schedules.schedule import Ints

HALF = Fraction(1, 2)


def shifted(nodes: int, shift: int, weight: Fraction) -> Part:
    """Every node i takes from node i + shift."""
    node = np.arange(nodes)
    return Part(node, (node + shift) % nodes, weight)


def one_peer_exponential(wanted: GraphRequest) -> Schedule:
    """Round t: every node averages with node i + 2^t. ceil(log2 n) rounds."""
    n = wanted.nodes
    bits = (n - 1).bit_length()
    check_links("one-peer-exponential", n, n * bits)
    rounds = [MixingMatrix.joined(n, [shifted(n, 1 << bit, HALF)]) for bit in range(bits)]
    return Schedule(wanted.spec, n, rounds or [MixingMatrix.joined(n, [])], wanted.seed, directed=True)


def directed_exponential(wanted: GraphRequest) -> Schedule:
    """One matrix: every node takes the same share of nodes i + 1, i + 2, i + 4, ... and of itself."""
    n = wanted.nodes
    bits = (n - 1).bit_length()
    check_links("directed-exponential", n, n * bits)
    mixing = MixingMatrix.joined(n, [shifted(n, 1 << bit, Fraction(1, bits + 1)) for bit in range(bits)])
    return Schedule(wanted.spec, n, [mixing], wanted.seed, directed=True)


def one_peer_hypercube(wanted: GraphRequest) -> Schedule:
    """Round t: every node averages with the one whose number differs in bit t."""
    n = wanted.nodes
    if n & (n - 1):
        below = 1 << (n.bit_length() - 1)
        raise impossible("one-peer-hypercube", n, f"a power of two, such as {below} or {2 * below}")
    node = np.arange(n)
    bits = n.bit_length() - 1
    check_links("one-peer-hypercube", n, n * bits)
    rounds = [MixingMatrix.joined(n, [Part(node, node ^ (1 << bit), HALF)]) for bit in range(bits)]
    return Schedule(wanted.spec, n, rounds or [MixingMatrix.joined(n, [])], wanted.seed, directed=False)


def de_bruijn(wanted: GraphRequest) -> Schedule:
    """Node i, a word of D digits to the base k, sends to k i, ..., k i + k - 1 modulo n = k^D. A link from a node to
    itself is what the node keeps.
    """
    n, k = wanted.nodes, wanted["k"]
    _check("de-bruijn", n, k, [k**D for D in range(n.bit_length() + 1)])
    sender, letter = _sends(n, k)
    return _made(wanted, sender, (k * sender + letter) % n)


def kautz(wanted: GraphRequest) -> Schedule:
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


def _made(wanted: GraphRequest, senders: Ints, receivers: Ints) -> Schedule:
    apart = senders != receivers
    part = Part(receivers[apart], senders[apart], Fraction(1, wanted["k"]))
    mixing = MixingMatrix.joined(wanted.nodes, [part])
    return Schedule(wanted.spec, wanted.nodes, [mixing], wanted.seed, directed=True)
