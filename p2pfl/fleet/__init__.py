"""Nodes as processes, and runs of many: one node, many nodes on one machine, and a run's result."""

from p2pfl.plugins import face

__getattr__ = face(__name__)
