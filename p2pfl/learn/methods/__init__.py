"""Learning methods, one file each. `catalog` makes them from what `[training] method` says."""

from p2pfl.learn.methods.catalog import make_method, method_of
from p2pfl.learn.methods.method import Method, New, NodeVectors, Round, like

__all__ = ["Method", "New", "NodeVectors", "Round", "like", "make_method", "method_of"]
