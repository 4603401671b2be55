"""Robust rules: how a node mixes when some of its neighbors may lie."""

from p2pfl.aggregate.interface import Mixture, Neighborhood, Rule, Vector

__all__ = ["Mixture", "Neighborhood", "Rule", "Vector"]
