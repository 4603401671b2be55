"""Trees at a node: their course, and the rounds attached to it."""

from __future__ import annotations

from p2pfl.core.course import Course
from p2pfl.engine.state import NodeState
from p2pfl.errors import UserError
from p2pfl.features.sums.rounds import SummedRounds
from p2pfl.features.trees.tree_rounds import TreeRounds
from p2pfl.features.trees.unsuited import refusals
from p2pfl.learn.interface import Learner
from p2pfl.learn.trees.learner import TreeLearner
from p2pfl.node.assembly import Setup
from p2pfl.node.feature import Attached, Feature, NodeView


class TreesFeature(Feature):
    name = "trees"
    needs = ("sums",)

    def guards(self, setup: Setup) -> bool:
        return _trees_of(setup.learner) is not None

    def check(self, setup: Setup) -> None:
        """Raises UserError: something cannot be combined with trees."""
        if _trees_of(setup.learner) is not None:
            mistake: UserError | None = next(refusals(setup.federation), None)
            if mistake is not None:
                raise mistake

    def course(self, setup: Setup, state: NodeState) -> Course | None:
        return None if _trees_of(setup.learner) is None else SummedRounds.of(setup, state)

    def attach(self, node: NodeView) -> Attached | None:
        learner = _trees_of(node.setup().learner)
        if learner is None or not isinstance(node.core, SummedRounds):
            return None
        return TreeRounds(node, node.core, learner)


def _trees_of(learner: Learner) -> TreeLearner | None:
    found: object = learner
    return found if isinstance(found, TreeLearner) else None
