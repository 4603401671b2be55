"""Build the report of a run of real processes, in the same form as for a simulated run.

It is honest about nodes that died: a node that did not reach its end is listed with how it ended, and its figures are
excluded from means, unless the whole run was stopped. So are a liar's figures, and figures for an older model than the
node's last.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Protocol

import msgspec
import numpy as np

from p2pfl.config.charter import compacted
from p2pfl.config.model import FederationConfig
from p2pfl.config.sections import PUBLIC
from p2pfl.errors import StorageError, UserError
from p2pfl.fleet.fleet import STOPPED, Child, Lies, ending
from p2pfl.learn.figures import about_lone_classes
from p2pfl.learn.interface import Vector
from p2pfl.learn.load import with_torch
from p2pfl.node.assembly import load_learner, replay
from p2pfl.reporting.figures import (
    about_mixing,
    configuration,
    contraction,
    held_against,
    overall_staleness,
)
from p2pfl.reporting.measures import (
    Point,
    References,
    alone,
    centralized,
    mean_intervals,
    measures_of,
    of_alone,
    round_seconds,
    spread,
    spreads,
)
from p2pfl.reporting.report import PRIVATE_FIGURES, SCORES, NodeReport, Report, Withheld, instead
from p2pfl.reporting.status import consensus_distance
from p2pfl.storage import peek
from topologies import Topology, describe


class Nodes(Protocol):
    """All nodes of a federation, as processes or in this process."""

    federation: FederationConfig
    children: list[Child]
    lies: Lies | None
    stopping: bool

    @property
    def honest(self) -> list[Child]: ...
    @property
    def elapsed_s(self) -> float: ...


class History:
    """Collects the figures of a run while it is in progress."""

    def __init__(self) -> None:
        self.points: list[Point] = []

    def look(self, nodes: Nodes) -> Point | None:
        """Return the current figures, or None before any node has printed a line.

        They are recorded if more than the time has changed.
        """
        point = _point(nodes)
        last = self.points[-1] if self.points else None
        if point is not None and (last is None or point != msgspec.structs.replace(last, time_s=point.time_s)):
            self.points.append(point)
        return point


def final_report(fleet: Nodes, history: Sequence[Point]) -> Report:
    """Build the report after every node has ended. The consensus distance is computed from the models on disk."""
    federation = compacted(fleet.federation)
    nodes = [_node(child) for child in fleet.children]
    honest, stopped = [node for node in nodes if not node.byzantine], ending(STOPPED) if fleet.stopping else None
    ended = [node for node in honest if node.finished or (node.rounds and node.state == stopped)]
    tested = [node for node in ended if not node.test_is_stale]
    graph = describe(Topology(federation.topology, len(nodes), federation.edges, federation.seed), "sample-weighted")
    by_name = {node.name: _model(child) for child, node in zip(fleet.children, nodes, strict=True) if node in ended}
    models = list(by_name.values())
    lies, succeeded = fleet.lies, dict[str, float]()
    if lies is not None and by_name:
        succeeded = lies.attackers.success(lies.spec, fleet.federation, fleet.honest[0].node, by_name)
    for node in nodes:
        node.attack_success = succeeded.get(node.name)
    return Report(
        nodes=nodes,
        topology=federation.topology,
        algebraic_connectivity=graph["algebraic_connectivity"],
        rounds={node.name: node.rounds for node in nodes},
        rounds_asked=federation.training.trained_rounds,
        rounds_beyond=spread(node.rounds_beyond for node in ended),
        accuracy=spread(node.accuracy for node in tested),
        local_accuracy=spread(node.local_accuracy for node in ended),
        loss=spread(node.test_loss for node in tested),
        measures=list(measures_of(child.last for child in fleet.children if child.last is not None)),
        metrics=spreads(node.metrics for node in tested),
        intervals=mean_intervals(tested),
        local_metrics=spreads((node.local_metrics for node in ended), defined=True),
        attack=None if lies is None else lies.spec,
        attack_success=spread(succeeded.values()),
        consensus_distance=consensus_distance(np.stack(models)) if models and not federation.grows_trees else None,
        bytes_sent=sum(node.bytes_sent or 0 for node in nodes),
        messages_sent=sum(node.messages_sent or 0 for node in nodes),
        wall_time_s=round(fleet.elapsed_s, 3),
        staleness=overall_staleness(node.staleness for node in ended),
        contraction=contraction(
            federation,
            [node.samples for node in nodes],
            [{phase.closing_rounds: phase for line in child.lines if (phase := line.closed)} for child in fleet.honest],
            ends=_honest_ends(fleet),
            size=models[0].size if models else None,
        ),
        rule=federation.gossip.rule,
        held_against=held_against(honest),
        died=[node.name for node in nodes if node.died],
        byzantine=[node.name for node in nodes if node.byzantine],
        stopped=fleet.stopping,
        warnings=[*_warnings(fleet), *about_mixing(nodes)],
        history=list(history),
        config=configuration(federation),
        privacy=_withheld(federation, nodes),
        seed=federation.seed,
        simulated=False,
    )


def _warnings(fleet: Nodes) -> list[str]:
    """Return the warnings that need the data of all honest nodes, which only their launcher has."""
    classes = {child.name: line.classes for child in fleet.honest for line in child.lines if line.classes is not None}
    text = about_lone_classes(fleet.federation.gossip.rule, classes) if len(classes) == len(fleet.honest) else None
    return [] if text is None else [text]


def _withheld(federation: FederationConfig, nodes: Sequence[NodeReport]) -> Withheld | None:
    """Return the privacy promise as reported by the nodes, and the figures that the report withholds because of it."""
    promises = [node.privacy for node in nodes if node.privacy is not None]
    if federation.privacy is None or not promises:
        return None
    known = [promise.epsilon for promise in promises if promise.epsilon is not None and promise.state != "unsure"]
    return Withheld(
        unit=promises[0].unit,
        epsilon=max(known) if len(known) == len(nodes) else None,
        budget=max(promise.budget for promise in promises),
        delta=promises[0].delta,
        figures=list(PRIVATE_FIGURES if federation.privacy.test_set == PUBLIC else (*PRIVATE_FIGURES, SCORES)),
        instead=instead(federation.task.name),
    )


def _model(child: Child) -> Vector:
    loaded = peek(child.node.state_dir)
    if loaded is None:
        raise StorageError(f"{child.name} finished, and its state is gone from {child.node.state_dir}")
    return replay(loaded).model


def _point(fleet: Nodes) -> Point | None:
    """Return a point from the latest line of each honest node, or None if none has printed one yet."""
    lines = [child.last for child in fleet.honest if child.last is not None and not child.died]
    if not lines:
        return None
    sketches = [line.sketch for line in lines if line.sketch and line.staleness is not None]
    return Point(
        time_s=round(fleet.elapsed_s, 3),
        rounds=spread(line.rounds for line in lines),
        tested_rounds=spread(line.tested_round for line in lines),
        accuracy=spread(line.accuracy for line in lines),
        loss=spread(line.test_loss for line in lines),
        metrics=spreads(line.metrics for line in lines),
        train_loss=spread(line.loss for line in lines),
        consensus_distance=consensus_distance(np.array(sketches)) if len(sketches) > 1 else None,
        neighbor_distance=spread(line.neighbor_distance for line in lines),
        staleness=overall_staleness(line.staleness for line in lines),
        bytes_sent=sum(line.bytes_sent for line in lines),
        messages_sent=sum(line.messages_sent for line in lines),
        running=sum(child.exit_code is None for child in fleet.children),
    )


def _node(child: Child) -> NodeReport:
    result, line = child.result(), child.last
    node = NodeReport(
        name=child.name,
        state=child.state,
        finished=result is not None and result.finished,
        died=child.died,
        byzantine=child.byzantine,
        stranded=child.stranded,
        log=None if child.process is None else str(child.log_path),
    )
    latest = result or line
    for key in node.__struct_fields__:
        if hasattr(latest, key):
            setattr(node, key, getattr(latest, key))
    if result is None and line is not None:  # it was killed, so its latest test is of its final model only by chance
        node.test_is_stale = line.accuracy is not None and line.tested_version != line.version
    return node


def _honest_ends(fleet: Nodes) -> float:
    """Count the edge ends that one round uses at honest nodes."""
    federation = fleet.federation
    honest = sum(len(federation.neighbors(federation.member(child.name).index)) for child in fleet.honest)
    return federation.edges_at_once * honest / max(1, len(federation.edges))


# -- references: what nodes would have learned without each other, from their own data --------------------------------


def refuse_references(federation: FederationConfig, key: str) -> None:
    """Refuse references if privacy is promised: such data must not be pooled, nor trained on without noise."""
    if federation.privacy is not None:
        text = "they would be learned from the nodes' rows without noise, while [privacy] is there"
        raise UserError(text, file=federation.path, key=key, allowed="without them")


def add_references(report: Report, federation: FederationConfig, children: Sequence[Child]) -> None:
    """Add references to `report`: each honest node alone, and one model trained on all their data, with as many rounds
    as a node has trained on average.

    Raises LearningError: the task failed.
    """
    from p2pfl.learn.trainer import TorchLearner  # noqa: PLC0415 - slow, and only here needed

    whole = compacted(federation)
    honest = [child for child in children if not child.byzantine]
    learners = [with_torch(load_learner(replace(whole, hides=None), child.node)) for child in honest]
    round_s = round_seconds(report.history)
    rounds = round(sum(node.rounds or 0 for node in report.nodes) / len(report.nodes))
    by_name = {node.name: node for node in report.nodes}
    for child, learner in zip(honest, learners, strict=True):
        by_name[child.name].alone = alone(learner, rounds, round_s)
    torch = [learner for learner in learners if isinstance(learner, TorchLearner)]
    report.reference = References(
        alone=of_alone([node.alone for node in report.nodes]),
        centralized=centralized(torch, rounds, round_s=round_s) if torch and rounds else None,
    )
