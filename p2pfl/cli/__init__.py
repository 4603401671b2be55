"""Commands."""

from p2pfl.plugins import face

__getattr__ = face(__name__)
