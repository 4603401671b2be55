"""Families whose Laplacian spectrum is known: its second smallest and its largest eigenvalue as formulas.

Source: Brouwer and Haemers, Spectra of Graphs, section 1.4 (cycles, paths, products).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping

import numpy as np

from topologies.families import FAMILIES, Parameters, powers, sides
from topologies.graph import Topology, ordered
from topologies.specs import is_file, parse

Extremes = tuple[float, float]


def extremes(topology: Topology) -> Extremes | None:
    """(lambda_2, lambda_max), or None where no formula is known or the edges are not those of the spec."""
    if topology.nodes < 2 or is_file(topology.spec) or topology.spec.partition(":")[0] not in FAMILIES:
        return None
    spec = parse(topology.spec)
    formula = _FORMULAS.get(spec.name)
    if formula is None or not is_built(topology):
        return None
    return formula(topology.nodes, spec.parameters)


def is_built(topology: Topology) -> bool:
    """Whether the edges are exactly those that the spec's family has: a formula may be trusted only then."""
    spec = parse(topology.spec)
    return ordered(FAMILIES[spec.name].build(topology.nodes, spec.parameters, topology.seed)) == topology.edges


def _circulant(nodes: int, steps: Iterable[int]) -> Extremes:
    """lambda_k = sum over steps s of 2 - 2 cos(2 pi k s / n); a step of n/2 counts once."""
    k = np.arange(1, nodes // 2 + 1, dtype=np.int64)
    values = np.zeros(len(k))
    for step in steps:
        # 2 - 2 cos(t) as 4 sin(t/2)^2: no cancellation where the gap of a large ring is tiny
        term = 4.0 * np.sin(np.pi * (k * step % nodes) / nodes) ** 2
        values += term / 2.0 if 2 * step == nodes else term
    return float(values.min()), float(values.max())


def _ring(nodes: int) -> Extremes:
    return _circulant(nodes, (1,))


def _path(nodes: int, _parameters: Parameters) -> Extremes:
    low, high = math.sin(math.pi / (2 * nodes)), math.cos(math.pi / (2 * nodes))
    return 4.0 * low * low, 4.0 * high * high


def _star(nodes: int, _parameters: Parameters) -> Extremes:
    return (1.0 if nodes > 2 else 2.0), float(nodes)


def _torus(nodes: int, parameters: Parameters) -> Extremes:
    across, down = (_ring(side) for side in sides(nodes, parameters))
    return min(across[0], down[0]), across[1] + down[1]


_FORMULAS: Mapping[str, Callable[[int, Parameters], Extremes]] = {
    "ring": lambda n, _: _ring(n),
    "path": _path,
    "star": _star,
    "complete": lambda n, _: (float(n), float(n)),
    "torus": _torus,
    "hypercube": lambda n, _: (2.0, 2.0 * (n.bit_length() - 1)),
    "circulant": lambda n, parameters: _circulant(n, parameters["offsets"]),
    "exponential": lambda n, _: _circulant(n, powers(n)),
}
