"""The registry's entries of all robust rules: each is a decorator on its rule's class."""

from __future__ import annotations

from dataclasses import dataclass

from p2pfl.specs import Catalog, Entry, Parameter, whole

MOST_LIARS = 10**6
KRUM_BOUND = "kappa = 6 (1 + b/(n-2b))"
MEDIAN_BOUND = "kappa = 4 (1 + b/(n-2b))^2"
CONTAINED = (
    "each coordinate of a mix lies between those of honest models that the node saw, its own included, while at most b "
    "of its neighbors are malicious"
)
BOUNDED = "no malicious neighbor pulls a model further than the distance of an honest one of the same weight"


@dataclass(frozen=True, kw_only=True)
class RuleEntry(Entry):
    """A rule's entry. In its texts n = m + 1 counts the own model and those of m neighbors; the first
    parameter is b.
    """

    bound: str
    """A bound on kappa: the squared error is at most kappa times the variance of the honest models."""
    cost: str
    weights: bool = False
    """True if the neighbors' weights count, staleness with them."""
    guaranteed: str = ""
    """The guarantee that holds for any task; by default the bound."""

    @property
    def b_means(self) -> str:
        return self.parameters[0].means if self.parameters else "no malicious neighbor is tolerated"


RULES: Catalog[RuleEntry] = Catalog("rule")
BEFORE: Catalog[RuleEntry] = Catalog("pre-aggregation")
"""The pre-aggregations that may stand before a rule."""


def liars(means: str) -> Parameter:
    """The parameter b: the number of malicious neighbors that a node tolerates."""
    return Parameter("b", whole(1, MOST_LIARS), means, default=1, argument="f")
