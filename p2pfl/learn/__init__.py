"""Training and testing of a model on a node's own data."""

from p2pfl.plugins import face

__getattr__ = face(__name__)
