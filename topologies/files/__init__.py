"""Reads and writes graph files: one module for each kind of format, and a table of them in `formats`."""

from __future__ import annotations

from topologies.files.formats import read_edges, read_topology, write_topology

__all__ = ["read_edges", "read_topology", "write_topology"]
