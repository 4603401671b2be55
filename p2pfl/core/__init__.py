"""The decisions of a node, as a pure state machine."""

from p2pfl.plugins import face

__getattr__ = face(__name__)
