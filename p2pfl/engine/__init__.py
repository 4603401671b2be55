"""The vectors of a node: models, replicas and flows, and the changes that exchanges and rounds make to them."""

from p2pfl.plugins import face

__getattr__ = face(__name__)
