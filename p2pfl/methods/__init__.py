"""Learning methods, one per file: they define how local rounds and mixing change a node's model. Nothing here depends
on tasks, files or torch. `catalog` makes a method from the spec in `[training] method`.
"""

from p2pfl.methods.catalog import make_method
from p2pfl.methods.method import METHODS, Method, New, NodeVectors, Round, like
from p2pfl.methods.spelling import parse_method

__all__ = ["METHODS", "Method", "New", "NodeVectors", "Round", "like", "make_method", "parse_method"]
