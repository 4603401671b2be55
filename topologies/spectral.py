"""Algebraic connectivity and what goes with it: a closed form where the family has one, else the ladder of methods."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from topologies.eigen.dense import ULP
from topologies.eigen.extremes import TOLERANCE, Extremes, exactly, required
from topologies.eigen.ladder import extremes, largest
from topologies.graph import Topology, component_count, require_graph
from topologies.laplacian import Array, Laplacian
from topologies.weights import check_weights, weighted


@dataclass(frozen=True, slots=True, kw_only=True)
class Spectrum:
    """`mixing_rate`: the second largest modulus of the mixing matrix; `mixing_certified`: its distance from 1 is proven
    to within a millionth; `mixing_converged`: the eigenvalues that decide it converged.

    `residual`, `lower_bound`, `probable_bound`, `certified`, `converged` are about the algebraic connectivity: see
    `eigen.extremes.Extremes`. A closed form is certified, with residual 0. `laplacian_max_residual` is that of the
    largest eigenvalue, `laplacian_max_bound` a proven upper bound on it.
    """

    algebraic_connectivity: float
    laplacian_max_eigenvalue: float
    mixing_rate: float
    method: str
    residual: float
    lower_bound: float | None
    certified: bool
    converged: bool
    products: int = 0
    probable_bound: float | None = None
    laplacian_max_residual: float = 0.0
    laplacian_max_bound: float
    mixing_certified: bool
    mixing_converged: bool


def spectrum(
    topology: Topology, weights: str = "metropolis", *, certify: bool = False, found: Extremes | None = None
) -> Spectrum:
    """The spectrum of the Laplacian, and the mixing rate under `weights`.

    `certify` spends time and memory to prove a result that is otherwise reported as uncertified. `found` brings
    `plain_extremes` where they are known already.

    Raises:
        TopologyError: unknown weights, or no graph but a spec, say.
    """
    check_weights(weights)
    found = found or plain_extremes(topology, certify=certify)
    rate = _mixing_rate(topology, weights, found, certify=certify)
    return Spectrum(
        algebraic_connectivity=found.low,
        laplacian_max_eigenvalue=found.high,
        mixing_rate=rate.value,
        method=found.method,
        residual=found.residual,
        lower_bound=found.lower,
        certified=found.certified,
        converged=found.converged,
        products=found.products,
        probable_bound=found.probable,
        laplacian_max_residual=found.high_residual,
        laplacian_max_bound=found.highest,
        mixing_certified=rate.certified,
        mixing_converged=rate.converged,
    )


def plain_extremes(topology: Topology, *, certify: bool = False) -> Extremes:
    """lambda_2 and lambda_max of the Laplacian of any graph."""
    require_graph(topology)
    form = topology.formula
    if form is not None:
        return exactly(form.low, form.high, "closed form")
    if topology.edge_count == 0:
        return exactly(0.0, 0.0, "no edges")
    if component_count(topology) > 1:
        high, residual = largest(plain := Laplacian.plain(topology))
        return replace(exactly(0.0, high, "disconnected"), high_residual=residual, highest=plain.largest)
    return extremes(Laplacian.plain(topology), certify=certify)


def fiedler_vector(topology: Topology) -> Array:
    """The unit eigenvector of lambda_2 of a connected graph, its largest entry positive. Shape (nodes,).

    Raises:
        NotConverged: none was found.
    """
    vector = required(extremes(Laplacian.plain(topology))).vector
    return vector if vector[np.argmax(np.abs(vector))] > 0 else -vector


@dataclass(frozen=True, slots=True)
class _Rate:
    value: float
    certified: bool
    converged: bool


def _mixing_rate(topology: Topology, weights: str, found: Extremes, *, certify: bool) -> _Rate:
    if topology.nodes == 1:
        return _Rate(0.0, certified=True, converged=True)
    if found.low == 0.0:
        return _Rate(1.0, certified=True, converged=True)
    constant = _constant(topology, weights, found)
    if constant is not None:
        return _rate(found, constant)
    return _rate(extremes(weighted(topology, weights), certify=certify), 1.0)


def _rate(found: Extremes, factor: float) -> _Rate:
    """Of W = I - factor A. The eigenvalues lie from `lower` to `highest`, and some at `low` and `high` or beyond."""

    def shrinking(*ends: float) -> float:
        return max(abs(1.0 - factor * end) for end in ends)

    value = shrinking(found.low, found.high)
    worst = shrinking(found.low, found.high, found.lower or 0.0, found.highest)
    decided = found.high_converged or shrinking(found.highest) <= shrinking(found.low)
    # a hair more than what `certified` allows: the rate itself is rounded
    close = worst - value <= 1.01 * TOLERANCE * abs(1.0 - value) + 4.0 * ULP
    return _Rate(value, certified=bool(close), converged=found.converged and decided)


def _constant(topology: Topology, weights: str, found: Extremes) -> float | None:
    """The one weight of every edge, where all have the same: then the plain spectrum tells the rate."""
    if weights == "best-constant":
        return 2.0 / (found.low + found.high)
    form = topology.formula
    most = form.degrees[1] if form is not None else int(topology.degrees.max())
    if weights == "max-degree" or topology.implicit:
        return 1.0 / (most + 1)
    full = topology.degrees == most
    everywhere = bool((full[topology.ends[:, 0]] | full[topology.ends[:, 1]]).all())
    return 1.0 / (most + 1) if everywhere else None
