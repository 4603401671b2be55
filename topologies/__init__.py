"""Graphs for gossip: build one from a spec, and compute how fast it mixes. Imports nothing from p2pfl, and never torch.

`import topologies` loads neither numpy nor networkx; each name below is loaded on first use.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from topologies.errors import TopologyError
    from topologies.families import build, build_schedule
    from topologies.graph import Topology
    from topologies.metrics.describe import describe
    from topologies.schedule import MixingMatrix, Schedule
    from topologies.spectral import Spectrum, contraction, mixing_matrix, spectrum

__distribution__ = "p2pfl-gossip"

__all__ = [
    "MixingMatrix",
    "Schedule",
    "Spectrum",
    "Topology",
    "TopologyError",
    "build",
    "build_schedule",
    "contraction",
    "describe",
    "mixing_matrix",
    "spectrum",
]

_HOME = {
    "MixingMatrix": "topologies.schedule",
    "Schedule": "topologies.schedule",
    "Spectrum": "topologies.spectral",
    "Topology": "topologies.graph",
    "TopologyError": "topologies.errors",
    "build": "topologies.families",
    "build_schedule": "topologies.families",
    "contraction": "topologies.spectral",
    "describe": "topologies.metrics.describe",
    "mixing_matrix": "topologies.spectral",
    "spectrum": "topologies.spectral",
}


def __getattr__(name: str) -> object:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOME[name]), name)
