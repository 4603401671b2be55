"""Momentum before the rule, as a learning method: `momentum.py:Smoothed,beta=0.9` in `[training] method`.

The model that neighbors and the rule see has moved by a running mean of the node's rounds instead of the last one, so
that models differ less by chance and by batch. After Karimireddy et al. 2021, arXiv 2012.10333, and Farhadkhani et al.
2022, arXiv 2205.12173, who send momentum to a server; here it is that of whole rounds.
"""

from __future__ import annotations

from typing import Any

from p2pfl import Method
from p2pfl.learn.methods import New, like


class Smoothed(Method):
    """The method: the model moves by m = beta m + (1 - beta) change, in the long run as far as without it."""

    kept = ("smoothed",)

    def __init__(self, beta: float = 0.9) -> None:
        self.beta = beta

    def trained(self, change: Any, node: Any, round: Any) -> New:  # noqa: A002 - the interface names it so
        """Add the smoothed change, as the base class adds the change."""
        moved = change * like(change, round.rho)
        smoothed = node.kept["smoothed"] * like(moved, self.beta) + moved * like(moved, 1 - self.beta)
        return New({"model": smoothed}, {"smoothed": smoothed})
