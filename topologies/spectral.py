"""Algebraic connectivity and what goes with it: a closed form where the family has one, else the ladder of methods."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from topologies.eigen.ladder import Extremes, extremes
from topologies.graph import Topology, component_count
from topologies.laplacian import Array, Laplacian
from topologies.weights import check_weights, weighted


@dataclass(frozen=True, slots=True, kw_only=True)
class Spectrum:
    """`mixing_rate`: the second largest modulus of the mixing matrix. `residual`, `lower_bound`, `certified` are about
    the algebraic connectivity: see `eigen.ladder.Extremes`. A closed form is certified, with residual 0.
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


def spectrum(topology: Topology, weights: str = "metropolis", *, certify: bool = False) -> Spectrum:
    """The spectrum of the Laplacian, and the mixing rate under `weights`.

    `certify` spends time and memory to prove a result that is otherwise reported as uncertified.

    Raises:
        TopologyError: unknown weights.
    """
    check_weights(weights)
    found = plain_extremes(topology, certify=certify)
    return Spectrum(
        algebraic_connectivity=found.low,
        laplacian_max_eigenvalue=found.high,
        mixing_rate=_mixing_rate(topology, weights, found),
        method=found.method,
        residual=found.residual,
        lower_bound=found.lower,
        certified=found.certified,
        converged=found.converged,
        products=found.products,
    )


def plain_extremes(topology: Topology, *, certify: bool = False) -> Extremes:
    """lambda_2 and lambda_max of the Laplacian of any graph."""
    form = topology.formula
    if form is not None:
        return _known(form.low, form.high, "closed form")
    if topology.edge_count == 0:
        return _known(0.0, 0.0, "no edges")
    if component_count(topology) > 1:
        return _known(0.0, _largest(topology), "disconnected")
    return extremes(Laplacian.plain(topology), certify=certify)


def fiedler_vector(topology: Topology) -> Array:
    """The unit eigenvector of lambda_2 of a connected graph, its largest entry positive. Shape (nodes,)."""
    found = extremes(Laplacian.plain(topology))
    vector = found.vector / np.linalg.norm(found.vector)
    return vector if vector[np.argmax(np.abs(vector))] > 0 else -vector


def _known(low: float, high: float, method: str) -> Extremes:
    return Extremes(
        low=low,
        high=high,
        method=method,
        residual=0.0,
        lower=low,
        certified=True,
        converged=True,
        products=0,
        vector=np.zeros(0),
    )


def _largest(topology: Topology) -> float:
    """Of a disconnected graph: the largest among its components."""
    from topologies.graph import component_labels  # noqa: PLC0415

    labels = component_labels(topology)
    highest = 0.0
    for root in np.unique(labels[topology.ends[:, 0]]):
        members = np.flatnonzero(labels == root)
        place = np.full(topology.nodes, -1)
        place[members] = np.arange(len(members))
        ends = place[topology.ends[labels[topology.ends[:, 0]] == root]]
        highest = max(highest, extremes(Laplacian(ends, np.ones(len(ends)), np.ones(len(members)))).high)
    return highest


def _mixing_rate(topology: Topology, weights: str, found: Extremes) -> float:
    if topology.nodes == 1:
        return 0.0
    if found.low == 0.0:
        return 1.0
    constant = _constant(topology, weights, found)
    if constant is not None:
        return max(abs(1.0 - constant * found.low), abs(1.0 - constant * found.high))
    other = extremes(weighted(topology, weights))
    return max(abs(1.0 - other.low), abs(1.0 - other.high))


def _constant(topology: Topology, weights: str, found: Extremes) -> float | None:
    """The one weight of every edge, where all have the same: then the plain spectrum tells the rate."""
    if weights == "best-constant":
        return 2.0 / (found.low + found.high)
    form = topology.formula
    largest = form.degrees[1] if form is not None else int(topology.degrees.max())
    if weights == "max-degree" or topology.implicit:
        return 1.0 / (largest + 1)
    full = topology.degrees == largest
    everywhere = bool((full[topology.ends[:, 0]] | full[topology.ends[:, 1]]).all())
    return 1.0 / (largest + 1) if everywhere else None
