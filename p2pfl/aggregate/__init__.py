"""Robust rules: how a node mixes when some of its neighbors may be malicious."""

from p2pfl.aggregate.catalog import (
    ADVICE,
    Advice,
    ParsedRule,
    Rule,
    UserRule,
    advice,
    allowed,
    central,
    liars_of,
    make_rule,
    parse_rule,
)
from p2pfl.aggregate.interface import Mixture, Neighborhood, Vector
from p2pfl.aggregate.rules import (
    BEFORE,
    NNM,
    RULES,
    ClippedSum,
    GeometricMedian,
    Hampel,
    Median,
    MoNNA,
    RuleEntry,
    SelfCenteredClipping,
    TrimmedMean,
)
from p2pfl.plugins import face

__all__ = [
    "ADVICE",
    "BEFORE",
    "NNM",
    "RULES",
    "Advice",
    "ClippedSum",
    "GeometricMedian",
    "Hampel",
    "Median",
    "Mixture",
    "MoNNA",
    "Neighborhood",
    "ParsedRule",
    "Rule",
    "RuleEntry",
    "SelfCenteredClipping",
    "TrimmedMean",
    "UserRule",
    "Vector",
    "advice",
    "allowed",
    "central",
    "liars_of",
    "make_rule",
    "parse_rule",
]

__getattr__ = face(__name__)
