"""A node as a process: core, engine, learner, network and features put together."""

from p2pfl.plugins import face

__getattr__ = face(__name__)
