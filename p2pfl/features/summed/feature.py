"""The alarms that all courses of sums have in common. A node needs nothing else of this room by itself."""

from __future__ import annotations

from p2pfl.features.summed.alarms import ALARMS
from p2pfl.node.feature import Attached, Feature, NodeView


class SummedFeature(Feature):
    name = "summed"
    alarms = ALARMS

    def attach(self, node: NodeView) -> Attached | None:  # noqa: ARG002 - the courses attach themselves
        return None
