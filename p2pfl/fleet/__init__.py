"""Nodes as processes and together: one node with all its features, many on one machine, and the result of a run."""
