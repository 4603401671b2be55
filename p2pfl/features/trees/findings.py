"""The findings of `p2pfl check` about trees: what they cost, who may work together, who waits for whom."""

from __future__ import annotations

from typing import Any

from p2pfl.console.output import size
from p2pfl.features.sums.rounds import bytes_each
from p2pfl.node.findings import Findings, Inspected


class TreesFindings(Findings):
    part = "trees"

    def __init__(self) -> None:
        self._facts: dict[str, Any] | None = None

    def of_learners(self, inspected: Inspected) -> None:
        federation = inspected.federation
        if not federation.grows_trees:
            return
        from p2pfl.features.trees.unsuited import colluders_of, refusals  # noqa: PLC0415 - `--help` stays instant
        from p2pfl.learn.trees.learner import TreeLearner  # noqa: PLC0415 - as above

        inspected.mistakes.extend(refusals(federation))
        members = len(federation.present)
        found: list[object] = list(inspected.learners.values())
        learner = next((one for one in found if isinstance(one, TreeLearner)), None)
        entries: list[int] = []
        if learner is not None:
            known = inspected.here.keys() & inspected.learners.keys()
            rows = sum(inspected.learners[index].samples for index in known) if len(known) == members else None
            entries = learner.entries_of_a_round(rows)
        each = sum(bytes_each(count, members) for count in entries) if entries else None
        colluders = colluders_of(federation)
        self._facts = {
            "members": members,
            "colluders": colluders,
            "most_entries": max(entries, default=None),
            "bytes_each": each,
        }
        brief = inspected.brief
        outputs = 1 if learner is None else learner.settings.outputs
        trees = "a tree" if outputs == 1 else f"{outputs} trees, one for each class,"
        brief["a round"] = f"{trees} by a secure sum for each level"
        if each is not None and learner is not None:
            brief["a round"] += f"; estimate: at most {size(each)} sent by each node"
            rounds = learner.settings.rounds
            brief["sent"] = f"estimate: at most {size(each * members * rounds)} by all nodes in {rounds} rounds"
        brief["trees"] = f"of the rows of all {members} nodes; {colluders} may work together against another"
        brief["duration"] = "not estimated: each sum is some messages back and forth between all nodes"
        brief["waits"] = "each sum is of all nodes: without one of them nothing grows until it is back"

    def told(self) -> dict[str, Any] | None:
        return self._facts
