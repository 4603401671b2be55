"""Sweeps: many simulated runs from one file, in separate processes, resumable, as one table and one figure."""
