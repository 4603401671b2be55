"""Robust rules: how a node mixes when some of its neighbors may be malicious."""

from p2pfl.aggregate.catalog import UserRule, make_rule, rule_from
from p2pfl.aggregate.centered import Balance, ClippedSum, Hampel, MoNNA, SelfCenteredClipping
from p2pfl.aggregate.entry import BEFORE, RULES, RuleEntry
from p2pfl.aggregate.interface import Mixture, Neighborhood, Rule, Vector
from p2pfl.aggregate.rules import (
    NNM,
    Average,
    Bulyan,
    CenteredClipping,
    GeometricMedian,
    Krum,
    Median,
    MultiKrum,
    TrimmedMean,
)
from p2pfl.aggregate.spelling import ParsedRule, liars_of, parse_rule

__all__ = [
    "BEFORE",
    "NNM",
    "RULES",
    "Average",
    "Balance",
    "Bulyan",
    "CenteredClipping",
    "ClippedSum",
    "GeometricMedian",
    "Hampel",
    "Krum",
    "Median",
    "Mixture",
    "MoNNA",
    "MultiKrum",
    "Neighborhood",
    "ParsedRule",
    "Rule",
    "RuleEntry",
    "SelfCenteredClipping",
    "TrimmedMean",
    "UserRule",
    "Vector",
    "liars_of",
    "make_rule",
    "parse_rule",
    "rule_from",
]
