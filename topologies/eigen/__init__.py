"""The second smallest and the largest eigenvalue of a graph's Laplacian: a ladder of methods, each with its proof."""
