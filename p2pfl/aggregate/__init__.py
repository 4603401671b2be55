"""Robust rules: how a node mixes when some of its neighbors may be malicious."""

from p2pfl.aggregate.catalog import Adapted, make_rule, rule_from, rule_of
from p2pfl.aggregate.centered import Balance, ClippedSum, Hampel, MoNNA, SelfCenteredClipping
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

__all__ = [
    "NNM",
    "Adapted",
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
    "Rule",
    "SelfCenteredClipping",
    "TrimmedMean",
    "Vector",
    "make_rule",
    "rule_from",
    "rule_of",
]
