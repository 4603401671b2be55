"""Learning at many simulated nodes at once, and what the same learning gives without a network of peers."""
