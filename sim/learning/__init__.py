"""Learning for many simulated nodes at once, and the results of the same learning without a peer-to-peer network."""
