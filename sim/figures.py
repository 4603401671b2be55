"""What is measured while a run goes on: scores at chosen virtual times, and where nodes are in their closing rounds."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
from numpy.typing import NDArray

from p2pfl.chance import stream
from p2pfl.core.facts import Phase
from p2pfl.learn.interface import Score
from p2pfl.reporting.figures import overall_staleness, spread
from p2pfl.reporting.history import Point
from p2pfl.reporting.sketch import consensus_distance
from p2pfl.reporting.status import ClosedRound
from sim.draws import some
from sim.stage import Script, Stage

MOST_EVALUATED = 256
"""Most nodes scored for a point of the history; the final figures are of all nodes."""


class Figures:
    """`stage` is set once there is one."""

    def __init__(self, given: Script) -> None:
        self.given = given
        self.stage: Stage
        nodes = range(len(given.federation.members))
        honest = [node for node in nodes if node not in given.liars]
        chosen = stream(given.federation.seed, "evaluated")
        self.honest = honest
        self.sample = sorted(some(chosen, honest, MOST_EVALUATED)) if len(honest) > MOST_EVALUATED else honest
        self.history: list[Point] = []
        self.closing: list[dict[int, int]] = [{} for _ in nodes]
        """By closing round, how many exchanges each node had completed after it."""
        self.evaluation_cpu_s = 0.0
        self._moved = -1

    def committed(self, index: int) -> None:
        """Closing rounds are few and show how fast the nodes come together."""
        host = self.stage.world.hosts[index]
        if host.core.rounds.phase is Phase.CLOSING:
            tick = host.core.facts.closed
            self.closing[index][tick] = host.counts.exchanges
            host.engine.sketch(tick)

    # -- now and then -------------------------------------------------------------------------------------------------

    def evaluate(self) -> None:
        """Add a point to the history, unless no model has moved since the last one."""
        world = self.stage.world
        moved = sum(host.moves for host in world.hosts)
        if moved == self._moved:
            return
        self._moved = moved
        there = [node for node in self.sample if world.hosts[node].alive]
        rows = self.stage.measured(there) if there else None
        began = time.process_time()
        if rows is not None:
            self.history.append(self._point(there, rows))
        self.evaluation_cpu_s += time.process_time() - began

    def _point(self, nodes: list[int], rows: NDArray[Any]) -> Point:
        world = self.stage.world
        scores = self.scores(rows, "test", nodes)
        honest = [world.hosts[node] for node in self._honest_and_up()]
        traffic = world.network.traffic
        return Point(
            time_s=world.kernel.now,
            rounds=spread(host.core.facts.rounds for host in honest),
            accuracy=spread(score.accuracy for score in scores if score),
            loss=spread(score.loss for score in scores if score),
            train_loss=spread(self.stage.loss(node) for node in nodes),
            consensus_distance=consensus_distance(rows.astype(np.float64)) if len(nodes) > 1 else None,
            staleness=overall_staleness(host.counts.staleness for host in honest),
            bytes_sent=traffic.bytes_sent,
            messages_sent=traffic.messages_sent,
            running=sum(host.alive and not host.finished for host in world.hosts),
            evaluated=len(nodes),
        )

    def scores(self, rows: NDArray[Any], part: str, nodes: list[int]) -> list[Score | None]:
        return self.given.learners.evaluate(rows, part, np.array(nodes, dtype=np.int64))

    def closing_rounds(self) -> list[dict[int, ClosedRound]]:
        """Closing rounds of the honest nodes that are up, each with the sketch of the model."""
        return [
            {tick: ClosedRound(tick, count, self.stage.sketch_of(node, tick)) for tick, count in closed.items()}
            for node in self._honest_and_up()
            for closed in [self.closing[node]]
        ]

    def closing_ends(self) -> float:
        """How many ends of edges those nodes have in one round, on average; edges to nodes that are down are none."""
        federation, hosts = self.given.federation, self.stage.world.hosts
        counted = set(self._honest_and_up())
        schedule = federation.schedule or (federation.edges,)
        live = (edge for edges in schedule for edge in edges if all(hosts[end].alive for end in edge))
        return sum(end in counted for edge in live for end in edge) / len(schedule)

    def _honest_and_up(self) -> list[int]:
        return [node for node in self.honest if self.stage.world.hosts[node].alive]
