"""Learning at many simulated nodes at once, and the results of the same learning without a network of peers."""
