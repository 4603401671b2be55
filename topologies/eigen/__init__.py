"""The second smallest and the largest eigenvalue of a graph's Laplacian: a ladder of methods, and the proof of each."""
