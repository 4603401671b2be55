"""Shared noise at a node: its course, and the rounds attached to it."""

from __future__ import annotations

from p2pfl.core.course import Course
from p2pfl.engine.state import NodeState
from p2pfl.features.shared_noise.doubtful import too_large
from p2pfl.features.shared_noise.sum_rounds import SumRounds
from p2pfl.features.summed.summed_rounds import SummedRounds
from p2pfl.learn.privacy.shared import shared_by
from p2pfl.node.assembly import Setup
from p2pfl.node.feature import Attached, Feature, NodeView


class SharedNoiseFeature(Feature):
    name = "shared_noise"
    needs = ("privacy", "summed")

    def guards(self, setup: Setup) -> bool:
        return shared_by(setup.learner) is not None

    def check(self, setup: Setup) -> None:
        """Check that the model fits in a sum. Raises UserError: it is too large."""
        if (mistake := too_large(setup.federation, shared_by(setup.learner))) is not None:
            raise mistake

    def course(self, setup: Setup, state: NodeState) -> Course | None:
        return None if shared_by(setup.learner) is None else SummedRounds.of(setup, state)

    def attach(self, node: NodeView) -> Attached | None:
        shared = shared_by(node.setup().learner)
        if shared is None or not isinstance(node.core, SummedRounds):
            return None
        return SumRounds(node, node.core, shared)
