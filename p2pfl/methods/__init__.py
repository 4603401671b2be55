"""Learning methods, one file each: the effect of local rounds and mixing on a node's model. Nothing here knows tasks,
files or torch. `catalog` makes them from the spec in `[training] method`.
"""

from p2pfl.methods.catalog import make_method
from p2pfl.methods.method import METHODS, Method, New, NodeVectors, Round, like
from p2pfl.methods.spelling import parse_method

__all__ = ["METHODS", "Method", "New", "NodeVectors", "Round", "like", "make_method", "parse_method"]
