"""Simulates up to a hundred thousand nodes as arrays: the mathematics of the node's algorithm, without its messages."""
