"""Graphs whose links span powers of two: the directed exponential graph, its one-peer schedule, and the hypercube's.

Source: Ying, Yuan, Chen, Hu, Pan, Yin, Exponential Graph is Provably Efficient for Decentralized Deep Training, 2021,
arXiv:2110.13363.
"""

from __future__ import annotations

from fractions import Fraction
from typing import TYPE_CHECKING

import numpy as np

from topologies.schedules.limits import check_links, impossible
from topologies.schedules.schedule import Mixing, Part, Schedule

if TYPE_CHECKING:
    from topologies.family import Request

HALF = Fraction(1, 2)


def shifted(nodes: int, shift: int, weight: Fraction) -> Part:
    """Every node i takes from node i + shift."""
    node = np.arange(nodes)
    return Part(node, (node + shift) % nodes, weight)


def one_peer_exponential(wanted: Request) -> Schedule:
    """Round t: every node averages with node i + 2^t. ceil(log2 n) rounds."""
    n = wanted.nodes
    bits = (n - 1).bit_length()
    check_links("one-peer-exponential", n, n * bits)
    rounds = [Mixing.joined(n, [shifted(n, 1 << bit, HALF)]) for bit in range(bits)]
    return Schedule(wanted.spec, n, rounds or [Mixing.joined(n, [])], wanted.seed, directed=True)


def directed_exponential(wanted: Request) -> Schedule:
    """One matrix: every node takes the same share of nodes i + 1, i + 2, i + 4, ... and of itself."""
    n = wanted.nodes
    bits = (n - 1).bit_length()
    check_links("directed-exponential", n, n * bits)
    mixing = Mixing.joined(n, [shifted(n, 1 << bit, Fraction(1, bits + 1)) for bit in range(bits)])
    return Schedule(wanted.spec, n, [mixing], wanted.seed, directed=True)


def one_peer_hypercube(wanted: Request) -> Schedule:
    """Round t: every node averages with the one whose number differs in bit t."""
    n = wanted.nodes
    if n & (n - 1):
        below = 1 << (n.bit_length() - 1)
        raise impossible("one-peer-hypercube", n, f"a power of two, such as {below} or {2 * below}")
    node = np.arange(n)
    bits = n.bit_length() - 1
    check_links("one-peer-hypercube", n, n * bits)
    rounds = [Mixing.joined(n, [Part(node, node ^ (1 << bit), HALF)]) for bit in range(bits)]
    return Schedule(wanted.spec, n, rounds or [Mixing.joined(n, [])], wanted.seed, directed=False)
