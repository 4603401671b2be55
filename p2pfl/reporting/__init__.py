"""Figures that the reports of real and of simulated runs share, so that the two can be held side by side."""
