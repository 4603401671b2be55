"""Differential privacy for `[privacy]`: planning a node's noise, and spending its budget."""

from p2pfl.learn.privacy.accounting import Spend
from p2pfl.learn.privacy.plan import Plan, plan_of

__all__ = ["Plan", "Spend", "plan_of"]
