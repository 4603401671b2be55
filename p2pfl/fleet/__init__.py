"""Nodes as processes, and runs of many: one node with all its features, many nodes on one machine, and a run's
result.
"""
