"""What every simulation begins with: a connected graph, random values, and how far they are from agreeing."""

from __future__ import annotations

import numpy as np

from topologies.errors import TopologyError
from topologies.graph import Topology, component_count
from topologies.laplacian import Array

VANISHED = 1e-12
"""less than this of a distance left after one round is rounding."""
VALUES_LIMIT = 20_000_000
"""held at once: a few copies of them take a gigabyte."""


class DisconnectedError(TopologyError):
    """Nodes that cannot reach each other never agree."""

    exit_code = 3


def require_connected(topology: Topology) -> None:
    """Two or more nodes, all of which can reach each other."""
    if topology.nodes < 2:
        raise TopologyError("nothing to agree on", key="nodes", value=topology.nodes, allowed="from 2")
    if (parts := component_count(topology)) > 1:
        text = f"not connected, its {parts} components never agree with each other"
        raise DisconnectedError(text, key="topology", value=topology.spec, allowed="a connected graph")


def require_epsilon(epsilon: float, below: float = 1.0) -> None:
    if not 0.0 < epsilon < below:
        raise TopologyError("impossible accuracy", key="epsilon", value=epsilon, allowed=f"between 0 and {below:g}")


def require_whole(key: str, value: int, minimum: int, maximum: int) -> None:
    if not minimum <= value <= maximum:
        raise TopologyError("out of range", key=key, value=value, allowed=f"from {minimum} to {maximum}")


def require_held(values: int, key: str, value: int) -> None:
    """Raises TopologyError where so many values are more than can be held."""
    if values > VALUES_LIMIT:
        allowed = f"less, or fewer nodes: up to {VALUES_LIMIT:,} values at all nodes together"
        raise TopologyError("too many values to hold", key=key, value=value, allowed=allowed)


def random_values(nodes: int, dimension: int, rng: np.random.Generator) -> Array:
    """Shape (nodes, dimension), standard normal: their mean is not zero, so that a drift of it can be seen."""
    require_whole("dimension", dimension, 1, 1_000)
    require_held(nodes * dimension, "dimension", dimension)
    return rng.normal(size=(nodes, dimension))


def centered(x: Array) -> Array:
    """`x` without its mean over nodes. Shape (nodes, dimension)."""
    return np.asarray(x - x.mean(axis=0))


def disagreement(x: Array) -> float:
    """The distance to consensus: Frobenius norm of what remains without the mean."""
    return float(np.linalg.norm(centered(x)))


def drift(x: Array, begun: Array) -> float:
    """How far the mean moved since `begun`, over the root mean square distance to it at the start.

    Both are means over the columns, so that one column with a small spread does not decide.
    """
    moved = np.linalg.norm(x.mean(axis=0) - begun.mean(axis=0))
    return float(moved * np.sqrt(len(begun)) / disagreement(begun))
