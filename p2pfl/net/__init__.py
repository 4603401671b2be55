"""Sessions with other nodes: sockets, handshakes, queues and limits."""

from p2pfl.plugins import face

__getattr__ = face(__name__)
