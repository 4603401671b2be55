"""The report of a simulated run: the form of a real one's, with figures that only a simulation knows.

Its figures cover honest nodes that reached their end; the fate of the others is reported separately.

`Figures` measures during the run: scores at chosen virtual times, and models in the nodes' closing rounds.
"""

from __future__ import annotations

import dataclasses
import hashlib
import time
from collections import Counter
from collections.abc import Iterable
from statistics import fmean
from typing import Any

import numpy as np
from numpy.typing import NDArray

from p2pfl.aggregate import liars_of
from p2pfl.chance import stream
from p2pfl.config.model import FederationConfig
from p2pfl.core.settings import Phase
from p2pfl.learn.figures import about_lone_classes, own_classes
from p2pfl.learn.interface import Score
from p2pfl.learn.metrics import Measure
from p2pfl.reporting.figures import (
    about_mixing,
    configuration,
    contraction,
    held_against,
    overall_staleness,
)
from p2pfl.reporting.measures import (
    ModelScore,
    Point,
    References,
    centralized,
    mean_intervals,
    measures_in,
    metrics_in,
    model_score,
    of_alone,
    round_seconds,
    rounded,
    rounds_beyond,
    spread,
    spreads,
)
from p2pfl.reporting.report import Cost, NodeReport, Report
from p2pfl.reporting.status import ClosedRound, NeighborStatus, consensus_distance
from p2pfl.system import peak_memory_bytes
from sim.cluster import PreparedRun, Script
from sim.learning.batching import make_learners
from sim.learning.nodes import Learners, Pool, success
from sim.learning.references import alone as each_alone
from sim.learning.references import fedavg
from sim.worlds.settling import sample
from topologies import Topology
from topologies.spectral import plain_extremes

"""The unit of `ru_maxrss` on Linux, in bytes."""
ROWS = 512
"""How many models are copied to float64 at a time."""

MOST_COMPARED = 1000
"""The maximum number of nodes whose data are compared for warnings."""
MOST_EVALUATED = 256
"""The maximum number of nodes scored for a point of the history; the final figures cover all nodes."""


def final_report(stage: PreparedRun, figures: Figures, *, references: bool, alone: bool = False) -> Report:
    """Build the report. `references` adds what a server and pooled data would achieve; `alone` adds each node alone."""
    federation, world = stage.script.federation, stage.world
    models = stage.models()
    values = value_digest(models, stage.method_vectors(), stage.personal())
    nodes = _nodes(stage, figures, models)
    kept = [index for index, node in enumerate(nodes) if node.finished and not node.byzantine]
    began = time.process_time()
    reference = _references(stage, nodes, figures.history, alone=alone) if references or alone else None
    figures.references_cpu_s = time.process_time() - began
    traffic = world.network.traffic
    return report_of(
        federation,
        nodes,
        kept,
        models,
        measures=figures.measures,
        mean_model=_mean_model(stage, models, kept),
        attack=None if stage.script.attack is None else stage.script.attack.spec,
        bytes_sent=traffic.bytes_sent,
        messages_sent=traffic.messages_sent,
        virtual_time_s=world.kernel.now,
        staleness=overall_staleness(nodes[index].staleness for index in kept),
        contraction=contraction(
            federation,
            stage.script.learners.samples,
            figures.closing_rounds(),
            ends=figures.closing_ends(),
            size=stage.script.learners.size,
        ),
        held_against=held_against(node for node in nodes if not node.byzantine),
        died=[node.name for node in nodes if node.died],
        warnings=[*_warnings(stage, figures.honest), *about_mixing(nodes)],
        reached_limit=not world.over,
        history=figures.history,
        world=_plain(dataclasses.asdict(stage.script.spec)),
        digest=world.trace.digest,
        value_digest=values,
        reference=reference,
    )


def report_of(
    federation: FederationConfig, nodes: list[NodeReport], kept: list[int], models: NDArray[Any], **others: Any
) -> Report:
    """Build a simulation's report with its figures over the nodes `kept`, of `models` (rows), and with `others`."""
    ended = [nodes[index] for index in kept]
    graph = plain_extremes(Topology(federation.topology, len(nodes), federation.edges, federation.seed))
    return Report(
        nodes=nodes,
        topology=federation.topology,
        algebraic_connectivity=graph.low,
        rounds={node.name: node.rounds for node in nodes},
        rounds_asked=federation.training.trained_rounds,
        rounds_beyond=spread(node.rounds_beyond for node in ended),
        accuracy=spread(node.accuracy for node in ended),
        local_accuracy=spread(node.local_accuracy for node in ended),
        loss=spread(node.test_loss for node in ended),
        metrics=spreads(node.metrics for node in ended),
        local_metrics=spreads((node.local_metrics for node in ended), defined=True),
        intervals=mean_intervals(ended),
        attack_success=spread(node.attack_success for node in ended),
        byzantine=[node.name for node in nodes if node.byzantine],
        consensus_distance=distance(models, kept),
        rule=federation.gossip.rule,
        config=configuration(federation),
        seed=federation.seed,
        simulated=True,
        peak_memory_bytes=peak_memory_bytes(),
        **others,
    )


def scored(test: Score | None, local: Score | None) -> dict[str, Any]:
    """Return the fields of a `NodeReport` from the node's scores on the test set and on its own data."""
    figures: dict[str, Any] = {}
    if test is not None:
        figures |= {"accuracy": test.accuracy, "test_loss": test.loss, "metrics": metrics_in(test)}
        figures |= {"test_samples": test.samples, "intervals": rounded(test.intervals)}
    if local is not None:
        figures |= {"local_accuracy": local.accuracy, "local_metrics": metrics_in(local)}
    return figures


def point_of(scores: list[Score | None], rows: NDArray[Any], **others: Any) -> Point:
    """Build a point of the history from the models (rows) and their scores, and with `others`."""
    known = [score for score in scores if score]
    return Point(
        accuracy=spread(score.accuracy for score in known),
        loss=spread(score.loss for score in known),
        metrics=spreads(map(metrics_in, known)),
        consensus_distance=consensus_distance(rows.astype(np.float64)) if len(rows) > 1 else None,
        evaluated=len(rows),
        **others,
    )


def cost_of(*, began: float, set_up: float, ran: float, evaluation_s: float, rounds: int, **others: Any) -> Cost:
    """Return the cost of a run with its report made; `began`, `set_up` and `ran` are readings of the CPU's clock."""
    now, run_s = time.process_time(), ran - set_up - evaluation_s
    return Cost(
        cpu_s=now - began,
        set_up_cpu_s=set_up - began,
        run_cpu_s=run_s,
        evaluation_cpu_s=evaluation_s,
        report_cpu_s=now - ran - others.get("references_cpu_s", 0.0),
        node_rounds=rounds,
        node_rounds_per_cpu_s=rounds / run_s if run_s > 0 else None,
        **others,
    )


def _warnings(stage: PreparedRun, honest: list[int]) -> list[str]:
    """Warn about the data of the honest nodes."""
    federation, learners = stage.script.federation, stage.script.learners.learners
    if not liars_of(federation.gossip.rule) or len(honest) > MOST_COMPARED:
        return []
    held = {federation.members[node].name: own_classes(learners[node]) for node in honest}
    known = {name: classes for name, classes in held.items() if classes is not None}
    text = about_lone_classes(federation.gossip.rule, known) if len(known) == len(held) else None
    return [] if text is None else [text]


def value_digest(
    models: NDArray[Any], method_vectors: NDArray[Any] | None, personal: Iterable[NDArray[Any]] = ()
) -> str:
    """Hash every bit that all nodes have at the end."""
    values = hashlib.blake2b(digest_size=32, person=b"p2pfl-values")
    for rows in (models, method_vectors, *personal):
        if rows is not None:
            values.update(np.ascontiguousarray(rows).data)
    return values.hexdigest()


def mean_of(models: NDArray[Any], nodes: list[int]) -> NDArray[np.float64]:
    """Compute the plain, unweighted mean (d,) of the models (rows) of `nodes`, at least one."""
    total: NDArray[np.float64] = sum(models[part].sum(axis=0, dtype=np.float64) for part in _blocks(nodes))
    return total / len(nodes)


def distance(models: NDArray[Any], nodes: list[int]) -> float | None:
    """Compute the root mean square distance of these models (rows) to their mean, relative to that mean's norm."""
    if not nodes:
        return None
    mean = mean_of(models, nodes)
    square = sum(float(np.sum((models[part] - mean) ** 2)) for part in _blocks(nodes)) / len(nodes)
    norm = float(np.linalg.norm(mean))
    return float(np.sqrt(square)) / norm if norm > 0 else 0.0


def score_of_mean(models: NDArray[Any], nodes: list[int], learners: Learners) -> Score | None:
    """Score the mean of these models (rows) on the test sets of these nodes.

    None if no node is left, if there is nothing to test on, or if nodes keep part of the model personal, so that there
    is no single model.
    """
    if not nodes or learners.personal:
        return None
    return learners.score_everywhere(mean_of(models, nodes).astype(models.dtype), nodes)


def evaluated(federation: FederationConfig, nodes: list[int]) -> list[int]:
    """Choose which of these nodes are scored for the points of the history, all if there are few."""
    return sample(stream(federation.seed, "evaluated"), nodes, MOST_EVALUATED)


class Figures:
    """Measures a run. `stage` is set once it exists."""

    def __init__(self, script: Script) -> None:
        self.script = script
        self.stage: PreparedRun
        nodes = range(len(script.federation.members))
        honest = [node for node in nodes if node not in script.liars]
        self.honest = honest
        self.sample = evaluated(script.federation, honest)
        self.history: list[Point] = []
        self.closing: list[dict[int, int]] = [{} for _ in nodes]
        """For each closing round, the number of exchanges that each node had completed after it."""
        self.measures: list[Measure] = measures_in(script.learners.learners[0], None)
        """The task's measures, the main one first; a user's own learner provides them with its first score."""
        self.evaluation_cpu_s = 0.0
        self.references_cpu_s = 0.0
        self._moved = -1

    def committed(self, index: int) -> None:
        """Record a closing round; there are few, and they show how fast the nodes converge."""
        host = self.stage.world.hosts[index]
        if host.core.phase is Phase.CLOSING:
            tick = host.core.facts.closing_rounds_done
            self.closing[index][tick] = host.counts.exchanges
            host.engine.sketch(tick)

    # -- now and then -------------------------------------------------------------------------------------------------

    def evaluate(self) -> None:
        """Add a point to the history, unless no model has moved since the last one."""
        world = self.stage.world
        moved = sum(host.machine.moves for host in world.hosts)
        if moved == self._moved:
            return
        self._moved = moved
        there = [node for node in self.sample if world.hosts[node].alive]
        rows = self.stage.scored_models(there) if there else None
        began = time.process_time()
        if rows is not None:
            self.history.append(self._point(there, rows))
        self.evaluation_cpu_s += time.process_time() - began

    def _point(self, nodes: list[int], rows: NDArray[Any]) -> Point:
        world = self.stage.world
        honest = [world.hosts[node] for node in self._honest_and_up()]
        traffic = world.network.traffic
        return point_of(
            self.scores(rows, "test", nodes),
            rows,
            time_s=world.kernel.now,
            rounds=spread(host.core.facts.rounds for host in honest),
            train_loss=spread(self.stage.loss(node) for node in nodes),
            staleness=overall_staleness(host.counts.staleness for host in honest),
            bytes_sent=traffic.bytes_sent,
            messages_sent=traffic.messages_sent,
            running=sum(host.alive and not host.finished for host in world.hosts),
        )

    def scores(self, rows: NDArray[Any], part: str, nodes: list[int]) -> list[Score | None]:
        scores = self.script.learners.evaluate(rows, part, np.array(nodes, dtype=np.int64))
        self.measures = self.measures or measures_in(self.script.learners.learners[0], scores[0] if scores else None)
        return scores

    def closing_rounds(self) -> list[dict[int, ClosedRound]]:
        """Return the closing rounds of the honest nodes that are up, each with the sketch of the model."""
        return [
            {tick: ClosedRound(tick, count, self.stage.sketch_of(node, tick)) for tick, count in closed.items()}
            for node in self._honest_and_up()
            for closed in [self.closing[node]]
        ]

    def closing_ends(self) -> float:
        """Return the mean number of edge ends that those nodes have in a round, none to nodes that are down."""
        federation, hosts = self.script.federation, self.stage.world.hosts
        counted = set(self._honest_and_up())
        schedule = federation.schedule or (federation.edges,)
        live = (edge for edges in schedule for edge in edges if all(hosts[end].alive for end in edge))
        return sum(end in counted for edge in live for end in edge) / len(schedule)

    def _honest_and_up(self) -> list[int]:
        return [node for node in self.honest if self.stage.world.hosts[node].alive]


def _references(stage: PreparedRun, nodes: list[NodeReport], history: list[Point], *, alone: bool) -> References:
    """Compute the references for the mean rounds of a node: more than asked, where it went on till all were through."""
    federation, learners, attack = stage.script.federation, stage.script.learners, stage.script.attack
    if (attack is not None and attack.poison is not None) or (alone and learners.personal):
        learners = make_learners(federation)
    taken = [host.core.facts.rounds for host in stage.world.hosts if host.starts] or [0]
    rounds = max(1, round(fmean(taken)))
    round_s = round_seconds(history)
    if alone:
        for node, score in zip(nodes, each_alone(learners, rounds, round_s), strict=True):
            node.alone = None if node.byzantine else score
    every, pool = learners.nodes, None if learners.nodes is None else learners.nodes.pool
    pooled = None
    if every is not None and isinstance(pool, Pool):
        each = [every[node] for node in range(len(every))]
        pooled = centralized(each, rounds, rows=pool.rows, round_s=round_s)
    return References(
        alone=of_alone([node.alone for node in nodes]),
        centralized=pooled,
        fedavg=fedavg(federation, learners, rounds=rounds, round_s=round_s),
    )


def _nodes(stage: PreparedRun, figures: Figures, models: NDArray[Any]) -> list[NodeReport]:
    world, members = stage.world, stage.script.federation.members
    robust = liars_of(stage.script.federation.gossip.rule) > 0
    everybody = list(range(stage.nodes))
    now = world.kernel.now
    test, local = (figures.scores(models, part, everybody) for part in ("test", "local"))
    succeeded = _success(stage, models)
    nodes = []
    for node, host in enumerate(world.hosts):
        traffic = world.network.traffic_of(node)
        core = host.core if host.starts else None
        nodes.append(
            NodeReport(
                name=members[node].name,
                state="never started" if core is None else "down" if not host.alive else core.phase.value,
                finished=host.finished and not host.core.retired,
                died=core is not None and not host.alive,
                byzantine=node in stage.script.liars,
                failed_rounds=host.counts.failed_rounds,
                rounds=0 if core is None else core.facts.rounds,
                rounds_without_neighbor=0 if core is None else core.facts.alone,
                rounds_beyond=None
                if core is None
                else rounds_beyond(core.facts.rounds, stage.script.federation.training.trained_rounds),
                ended_by=None if core is None else core.ended_by,
                through_by=None if core is None else core.completed_by(now),
                **scored(test[node], local[node]),
                attack_success=succeeded[node],
                loss=stage.loss(node),
                samples=stage.script.learners.samples[node],
                bytes_sent=traffic.bytes_sent,
                messages_sent=traffic.messages_sent,
                staleness=None if core is None else host.counts.staleness,
                exchanges=host.counts.exchanges,
                rounds_unmixed=host.counts.alone,
                rounds_mixed=host.counts.mixed if robust else None,
                rounds_alone=host.counts.alone if robust else None,
                starts=host.starts,
                neighbors=_neighbors(stage, node),
                alarms=dict(sorted(Counter(alarm.kind for alarm in host.alarms).items())),
            )
        )
    return nodes


def _mean_model(stage: PreparedRun, models: NDArray[Any], kept: list[int]) -> ModelScore | None:
    """Score the mean of those nodes' models, which no node holds."""
    return model_score(score_of_mean(models, kept, stage.script.learners))


def _success(stage: PreparedRun, models: NDArray[Any]) -> list[float | None]:
    """Return, for each node's model, the share of samples that it labels as the poisoned data intend."""
    attack, learners = stage.script.attack, stage.script.learners
    if attack is None or attack.poison is None:
        return [None] * stage.nodes
    return success(learners.learners, attack.poison, models, range(stage.nodes))


def _neighbors(stage: PreparedRun, node: int) -> list[NeighborStatus]:
    """Return each neighbor's traffic with the node, and its state since the latest start, as real nodes report them."""
    federation, host = stage.script.federation, stage.world.hosts[node]
    held = host.core.reputations(stage.world.kernel.now) if host.starts else {}
    return [
        NeighborStatus(
            name=federation.members[way.target].name,
            compressor=federation.compressor_of(node, way.target),
            bytes_sent=way.bytes_sent,
            messages_sent=way.messages_sent,
            standing=held[way.target].score if held else None,
            faults=held[way.target].faults if held else {},
            quarantines=held[way.target].quarantines if held else 0,
        )
        for way in stage.world.network.ways_of(node)
        if not held or way.target in held
    ]


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    return value if isinstance(value, str | int | float | bool) or value is None else str(value)


def _blocks(nodes: list[int]) -> list[list[int]]:
    return [nodes[first : first + ROWS] for first in range(0, len(nodes), ROWS)]
