"""Bounds on a node's traffic: only in some hours, so much in a month. While a node pauses, its neighbors know."""

from __future__ import annotations

FEATURE = "p2pfl.features.bounds.traffic:BoundsFeature"
