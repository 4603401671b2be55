"""Which profile a federation's nodes run: with a robust rule, or with exchanges that conserve the sum."""

from __future__ import annotations

from p2pfl.aggregate import Rule, make_rule
from p2pfl.config.model import Federation
from p2pfl.config.rule import liars_of


def rule_of(federation: Federation) -> Rule | None:
    """The robust profile's rule; None in the conservative profile.

    Raises:
        UserError: it is the user's own and cannot be imported.
    """
    return make_rule(federation.gossip.rule, federation.path.parent)


def beta_of(federation: Federation) -> float:
    """The control variate's rate. It follows the flow between two models, which the robust profile does not have."""
    return 0.0 if liars_of(federation.gossip.rule) else federation.training.control_variate


def least_of(federation: Federation) -> int:
    """How many neighbors the robust profile's rule needs; 0 in the conservative profile."""
    rule = rule_of(federation)
    return 0 if rule is None else rule.least
