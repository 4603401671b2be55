"""Builds a run: a federation, a settled world, and its learners, with engines and hosts for them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from p2pfl.config.graph import all_hops, all_shares, rule_of, settings_of
from p2pfl.config.model import Edges, EvaluateEvery, FederationConfig
from p2pfl.core.settings import Settings
from p2pfl.engine.arithmetic import NodeSeen, codecs_of, fragments_of
from p2pfl.learn.gauge import gauge_of
from p2pfl.learn.interface import Vector
from p2pfl.learn.privacy.plan import planned_rounds
from p2pfl.reporting.status import Sketch
from sim.attacks import Attack, parse_attack
from sim.cluster import Cluster, Surroundings, all_neighbors, all_turns
from sim.exact import ExactEngine, ExactPlan
from sim.kernel import NS
from sim.learning.nodes import Learners
from sim.liars import Liars, ShownModels
from sim.machine import Watch
from sim.privacy_budget import Purse
from sim.worlds.amendments import Step, all_edges, steps_of
from sim.worlds.faults import Crash, FaultPlan, Join, Rejoin, Restart, Separate, plan_faults
from sim.worlds.model import WorldSpec
from sim.worlds.speeds import node_speeds

Rows2 = NDArray[np.floating[Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Script:
    """The script of a run; `spec` is settled. `is_watched`: vectors are in float64, and every node has a disk."""

    federation: FederationConfig
    spec: WorldSpec
    learners: Learners
    faults: FaultPlan
    is_watched: bool
    steps: tuple[Step, ...]
    """The federation as it changes over time, from the beginning."""

    @property
    def edges(self) -> Edges:
        """The edges of all times together."""
        return all_edges(self.steps)

    @property
    def attack(self) -> Attack | None:
        return None if self.spec.liars is None else parse_attack(self.spec.liars.attack)

    @property
    def liars(self) -> frozenset[int]:
        return frozenset(self.spec.liars.nodes if self.spec.liars else ())


def script(federation: FederationConfig, spec: WorldSpec, learners: Learners, *, is_watched: bool = False) -> Script:
    return Script(
        federation=federation,
        spec=spec,
        learners=learners,
        faults=plan_faults(spec, len(federation.members), federation.seed),
        is_watched=is_watched,
        steps=steps_of(federation, spec),
    )


def _tested_every(evaluate_every: EvaluateEvery) -> int:
    """Return the number of rounds between the tests that a stop condition reads: it counts rounds, so none are left out
    to save time.
    """
    return evaluate_every if isinstance(evaluate_every, int) and evaluate_every else 1


class PreparedRun:
    """One run, ready to go."""

    def __init__(self, script: Script, on_commit: Callable[[int], None] | None = None) -> None:
        self.script = script
        federation, spec = script.federation, script.spec
        self.nodes = len(federation.members)
        self.codecs = [codecs_of(federation, index) for index in range(self.nodes)]
        self.sketch = Sketch(script.learners.size, federation.seed)
        self.liars: Liars | None = None
        if script.attack is not None:
            everybody = script.learners
            self.liars = Liars(
                script.attack,
                federation,
                script.liars,
                learners=everybody.nodes or everybody.learners,
                samples=everybody.samples,
            )
        self.watch = Watch()
        self.gammas = self._gammas()
        """By node and neighbor, the step that goes well with the compressor of that edge."""
        self.world: Cluster = Cluster(
            self._surroundings(),
            self._engines(),
            settings=self._settings(federation, self.gammas),
            paces=node_speeds(spec, federation),
            steps=[script.learners.steps(node) for node in range(self.nodes)],
            purses=None
            if federation.privacy is None
            else [Purse(planned_rounds(federation)) for _ in range(self.nodes)],
            on_commit=on_commit,
        )
        self._plan_faults()
        for step in script.steps[1:]:
            self.world.kernel.at_ns(step.time_ns, partial(self._amend, step.federation))
        if self.liars is not None:
            hosts = self.world.hosts
            self.liars.meet(ShownModels(self.nodes, self.shown_model), lambda node: hosts[node].core.facts.rounds)
            self.liars.flood(self.world)

    def watch_by(self, watch: Watch) -> None:
        """Let an observer see all operations, and all that is lost in crashes."""
        self.watch = watch
        self.world.watch_by(watch)

    # -- vectors -----------------------------------------------------------------------------------------------------

    def models(self) -> Rows2:
        """Return all current models, (nodes, d)."""
        return np.stack([host.engine.state.model for host in self.world.hosts])

    def shown_model(self, node: int) -> Vector:
        """Return the model (d,) that an honest node shows its neighbors now."""
        shown: Vector = self.world.hosts[node].engine.state.shown
        return shown

    def scored_models(self, nodes: Sequence[int]) -> Rows2:
        """Return the models (len(nodes), d) that real nodes would have scored last.

        These are the models with which their latest local round began, after the exchanges of the previous round; if a
        node does not train, its current model.
        """
        hosts = [self.world.hosts[node] for node in nodes]
        begun = [host.engine.begun if host.in_round else None for host in hosts]
        return np.stack([host.engine.state.model if at is None else at for at, host in zip(begun, hosts, strict=True)])

    def method_vectors(self) -> Rows2 | None:
        """Return the vectors that the method gives to each node's round (nodes, d); None if it gives none."""
        method = self.script.learners.method
        if not method.given:
            return None
        engines = [host.engine for host in self.world.hosts]
        each = [method.begin(NodeSeen.of(engine.state, method)) for engine in engines]
        return np.stack([np.concatenate([given[name] for name in method.given]) for given in each])

    def personal(self) -> list[NDArray[Any]]:
        """Return the personal parts of each node, tensor by tensor; none if no part of the model is personal."""
        if not self.script.learners.personal:
            return []
        return [array for host in self.world.hosts for _, array in sorted(host.engine.state.local.items())]

    def loss(self, node: int) -> float | None:
        """Return the loss of the node's latest local round."""
        return self.world.hosts[node].engine.loss

    def sketch_of(self, node: int, tick: int) -> Any:
        """Return a sketch of the node's model after that closing round."""
        return self.world.hosts[node].engine.sketches[tick]

    # -- engines -----------------------------------------------------------------------------------------------------

    def _engines(self) -> list[ExactEngine]:
        script, federation, liars = self.script, self.script.federation, self.liars
        neighbors = all_neighbors(self.nodes, federation.edges)
        return [
            ExactEngine(
                ExactPlan(
                    index=index,
                    neighbors=neighbors[index],
                    learner=script.learners.learners[index],
                    codecs=self.codecs[index],
                    method=script.learners.method,
                    rule=rule_of(federation),
                    dtype=np.float64 if script.is_watched else np.float32,
                    durable=index in script.faults.crashing or script.is_watched,
                    show=liars.show(index) if liars and index in script.liars else None,
                    rounds=script.learners,
                    sketch=self.sketch.of,
                    gauge=gauge_of(federation.training, script.learners.learners[index]),
                    evaluate_every=_tested_every(federation.training.evaluate_every),
                )
            )
            for index in range(self.nodes)
        ]

    def _gammas(self) -> list[dict[int, float]]:
        """Compute the same gammas as `gammas_of` without looking at every edge for each node."""
        gamma, size = self.script.federation.gossip.gamma, self.script.learners.exchanged_size
        neighbors = all_neighbors(self.nodes, self.script.edges)
        return [
            {peer: gamma * codecs.of(peer).gamma(size) for peer in peers}
            for codecs, peers in zip(self.codecs, neighbors, strict=True)
        ]

    def _settings(self, federation: FederationConfig, gammas: Sequence[Mapping[int, float]]) -> list[Settings]:
        rule = rule_of(federation)
        least = rule.least if rule else 0
        shares = all_shares(federation)
        return [
            settings_of(
                federation,
                hops=hops,
                gammas=gammas[index],
                shares=shares[index],
                least=least,
                fragments=fragments_of(self.codecs[index], gammas[index]),
            )
            for index, hops in enumerate(all_hops(federation))
        ]

    def _amend(self, federation: FederationConfig) -> None:
        """Tell all nodes about the change at once. A removed node ends; if it is down, it is not waited for."""
        world = self.world
        neighbors, turns = all_neighbors(self.nodes, federation.edges), all_turns(self.nodes, federation.schedule)
        for index, settings in enumerate(self._settings(federation, self.gammas)):
            host = world.hosts[index]
            world.amend(index, replace(host.plan, neighbors=neighbors[index], turns=turns[index], settings=settings))
            if index in federation.retired and not host.alive and host.starts:
                world.lose(index)

    # -- surroundings ------------------------------------------------------------------------------------------------

    def _surroundings(self) -> Surroundings:
        federation, spec, faults = self.script.federation, self.script.spec, self.script.faults
        size = self.script.learners.exchanged_size
        return Surroundings(
            body_bytes={(low, high): self.codecs[low].of(high).size_bytes(size) for low, high in self.script.edges},
            edges=federation.edges,
            schedule=federation.schedule,
            links=spec.links,
            slow=spec.slow,
            seed=federation.seed,
            start_ns={fault.node: fault.time_ns for fault in faults.faults if isinstance(fault, Join)},
            engine_ns=round(spec.compute.engine_s * NS),
            liars=self.script.liars,
            faults_end_ns=max((fault.time_ns for fault in faults.faults), default=0),
        )

    def _plan_faults(self) -> None:
        world = self.world
        for fault in self.script.faults.faults:
            match fault:
                case Separate(groups=groups):
                    action = partial(world.network.separate, groups)
                case Rejoin():
                    action = partial(world.network.rejoin)
                case Restart(node=node):
                    action = partial(world.restart, node)
                case Crash(node=node):
                    action = partial(self._crash, fault)
                case Join():
                    continue
            world.kernel.at_ns(fault.time_ns, action)

    def _crash(self, fault: Crash) -> None:
        node = fault.node
        host = self.world.hosts[node]
        if not host.alive or node in host.plan.settings.retired:
            return
        self.watch.crashes(node, 0)
        self.world.crash(node)
        if fault.amnesia:
            self.watch.forgets(node, self.world.forget)
        if not fault.returns:
            self.world.lose(node)
