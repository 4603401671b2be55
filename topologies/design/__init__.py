"""Finds a graph: given what is wanted, or by adding edges to one that is there."""
