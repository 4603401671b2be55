"""Nodes as processes, and runs of many: one node, many nodes on one machine, and a run's result."""
