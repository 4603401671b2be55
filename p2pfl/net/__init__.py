"""Sessions with other nodes: sockets, handshakes, queues and limits."""
