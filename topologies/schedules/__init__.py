"""Graphs that change from round to round, and directed ones: sequences of mixing matrices."""
