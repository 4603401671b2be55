"""Attacks have a package of their own: `sim.attacks`."""

from sim.attacks import ALLOWED_ATTACKS, Attack, parse_attack

__all__ = ["ALLOWED_ATTACKS", "Attack", "parse_attack"]
