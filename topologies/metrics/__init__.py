"""The common part of all figures of a graph: answers that may be a range, and facts that need no computation."""

from __future__ import annotations

from dataclasses import dataclass

from topologies.building import parse
from topologies.eigen.extremes import Extremes
from topologies.families import FAMILIES
from topologies.files.content import is_file
from topologies.graph import Topology, component_count
from topologies.spectral import plain_extremes

SPECTRUM_LIMIT = 600
"""Up to this many nodes a figure computes a spectrum that its caller lacks: about 0.1 s."""
ROUNDING = 1e-6
"""The relative margin subtracted from an eigenvalue before a whole number is concluded from it."""


@dataclass(frozen=True, slots=True)
class IntegerBounds:
    """A whole number proven to lie in lower .. upper, both included. `method` names the proof."""

    lower: int
    upper: int
    method: str

    @property
    def exact(self) -> bool:
        return self.lower == self.upper


def is_transitive(topology: Topology) -> bool:
    """Return True if every node is known to have the same view of the graph.

    Only a graph that carries its family's closed form is certainly the one of its spec.
    """
    if topology.formula is None or is_file(topology.spec):
        return False
    return FAMILIES[parse(topology.spec).name].transitive


def is_connected(topology: Topology) -> bool:
    """Return True if the graph is connected; for an implicit graph by its formula."""
    return bool(topology.formula.low > 0.0) if topology.implicit else component_count(topology) == 1


def is_complete(topology: Topology) -> bool:
    return topology.edge_count == topology.nodes * (topology.nodes - 1) // 2


def degree_range(topology: Topology) -> tuple[int, int]:
    """Return the least and the largest degree."""
    if topology.implicit:
        least, most = topology.formula.degrees
        return int(least), int(most)
    return int(topology.degrees.min()), int(topology.degrees.max())


def spectrum_if_cheap(topology: Topology, extremes: Extremes | None) -> Extremes | None:
    """Return `extremes`, or a spectrum that takes only a moment: a closed form, or that of a small graph."""
    if extremes is not None:
        return extremes
    if topology.nodes > 1 and (topology.formula is not None or topology.nodes <= SPECTRUM_LIMIT):
        return plain_extremes(topology)
    return None


def proven_connectivity(extremes: Extremes | None) -> float:
    """Return a lower bound on lambda_2 that rounding cannot have raised; 0 where nothing is proven."""
    if extremes is None or extremes.lower is None:
        return 0.0
    return max(0.0, extremes.lower * (1.0 - ROUNDING))
