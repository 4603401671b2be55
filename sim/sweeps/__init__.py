"""Sweeps: many simulated runs from one file, in processes of their own, resumable, as one table and one figure."""
