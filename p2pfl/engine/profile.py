"""Which profile a federation's nodes run: with a robust rule, or with exchanges that conserve the sum."""

from __future__ import annotations

from p2pfl.aggregate import Rule, make_rule
from p2pfl.config.model import Federation


def rule_of(federation: Federation) -> Rule | None:
    """The robust profile's rule; None in the conservative profile."""
    return make_rule(federation.gossip.rule)


def beta_of(federation: Federation) -> float:
    """The control variate's rate. It follows the flow between two models, which the robust profile does not have."""
    return 0.0 if rule_of(federation) else federation.training.control_variate
