"""Algebraic connectivity and what goes with it: a formula where the family has one, else a dense eigensolver.

No larger method is offered: above `DENSE_LIMIT` nodes a family without a formula is an error.
"""

from __future__ import annotations

from dataclasses import dataclass

from topologies.closed import extremes
from topologies.dense import eigenvalues
from topologies.graph import Topology, components
from topologies.weights import check_weights, contraction, laplacian, step

TOLERANCE = 1e-9


@dataclass(frozen=True, slots=True, kw_only=True)
class Spectrum:
    """`mixing_rate`: the second largest modulus of the mixing matrix. `residual`: how far the eigenvalues can
    be off, 0 where a formula gave them. `certified`: that is below `TOLERANCE` of the largest eigenvalue.
    """

    algebraic_connectivity: float
    laplacian_max_eigenvalue: float
    mixing_rate: float
    method: str
    residual: float
    certified: bool


def spectrum(topology: Topology, weights: str = "metropolis") -> Spectrum:
    """The spectrum of the Laplacian, and the mixing rate under `weights`.

    Raises:
        TopologyError: unknown weights, or a graph too large for the only method there is for it.
    """
    check_weights(weights)
    low, high, method, residual = _extremes(topology)
    return Spectrum(
        algebraic_connectivity=low,
        laplacian_max_eigenvalue=high,
        mixing_rate=_mixing_rate(topology, weights, low, high),
        method=method,
        residual=residual,
        certified=residual <= TOLERANCE * max(1.0, high),
    )


def _extremes(topology: Topology) -> tuple[float, float, str, float]:
    connected = len(components(topology)) == 1
    formula = extremes(topology)
    if formula is not None:
        return formula[0] if connected else 0.0, formula[1], "closed form", 0.0
    if not topology.edges:
        return 0.0, 0.0, "no edges", 0.0
    found = eigenvalues(laplacian(topology))
    low = float(found.values[1]) if connected else 0.0
    return low, float(found.values[-1]), "dense" if connected else "disconnected", found.bound


def _mixing_rate(topology: Topology, weights: str, low: float, high: float) -> float:
    if topology.nodes == 1:
        return 0.0
    if low == 0.0:
        return 1.0
    degrees = topology.degrees()
    least, most = min(degrees), max(degrees)
    constant = step(weights, low, high, most)
    if constant is None and least == most:
        constant = 1.0 / (most + 1)
    if constant is None:
        return contraction(topology)
    return max(abs(1.0 - constant * low), abs(1.0 - constant * high))
