"""A federation under virtual time: hosts, links, faults, liars. Nothing here decides about learning.

A crash cuts a node's sessions and loses what its engine had not flushed; the same node starts again from its disk. A
`PreparedRun` builds it all from a `Script`: a federation, a settled world, and its learners.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from p2pfl.aggregate import liars_of
from p2pfl.config.graph import all_hops, all_shares, rule_of, settings_of
from p2pfl.config.model import Edges, EvaluateEvery, FederationConfig
from p2pfl.core.core import Core
from p2pfl.core.events import Event
from p2pfl.core.settings import Settings, Turns
from p2pfl.engine.engine import codecs_of, fragments_of
from p2pfl.engine.rounds import NodeSeen
from p2pfl.learn.figures import gauge_of
from p2pfl.learn.interface import Learner, Vector
from p2pfl.learn.privacy.plan import planned_rounds
from p2pfl.methods import Method
from p2pfl.reporting.status import Sketch
from sim.attacks import Attack, Sight, parse_attack, press
from sim.attacks.lies import Slope, slope_for
from sim.exact import ExactEngine, ExactPlan, ShowLie
from sim.host import Host, HostPlan, RoundBudget, Watch
from sim.kernel import NS, Kernel, Trace, TraceKind
from sim.learning.nodes import Learners
from sim.network import Network, lay
from sim.worlds.model import LinkSpec, SlowNodes, WorldSpec
from sim.worlds.timeline import (
    Crash,
    FaultPlan,
    Join,
    NodeSpeed,
    Rejoin,
    Restart,
    Separate,
    Step,
    all_edges,
    node_speeds,
    plan_faults,
    steps_of,
)

if TYPE_CHECKING:
    from sim.sums import SimulatedSums

PRESSES_NS = 1_000_000
"""The time between two attempts by a flooding liar to begin an exchange."""


class Liars:
    """The liars; `meet` connects them to what they see. `samples` are all nodes'; `learners` too, or a pool of them."""

    def __init__(
        self,
        attack: Attack,
        federation: FederationConfig,
        liars: frozenset[int],
        *,
        learners: Sequence[Learner],
        samples: Sequence[int],
    ) -> None:
        self.attack, self.federation, self.liars = attack, federation, liars
        self._initial, self._samples = learners[0].initial(), samples
        self._learners, self._slopes = learners, dict[int, Slope | None]()
        self._slope = _slope(attack, learners, min(liars, default=0))
        self._counts = dict.fromkeys(sorted(liars), 0)
        self._models: Mapping[int, Vector]
        self._rounds: Callable[[int], int]

    def meet(self, models: Mapping[int, Vector], rounds: Callable[[int], int]) -> None:
        """Connect the liars to all models as they are shown, and to the number of rounds that each node has done."""
        self._models, self._rounds = models, rounds

    def flood(self, world: Cluster) -> None:
        """Let them press for exchanges in a world, if that is their attack."""
        for index in sorted(self.liars) if self.attack.flood else ():
            world.kernel.at_ns(PRESSES_NS, partial(self._press, world, index))

    def _press(self, world: Cluster, index: int) -> None:
        """Press for exchanges repeatedly, until the liar's rounds are done."""
        host = world.hosts[index]
        if host.process is not None and host.alive and isinstance(host.core, Core):
            host.process.act(press(host.core, world.kernel.now))
        if not host.finished and index not in world.gone:
            world.kernel.at_ns(world.kernel.now_ns + PRESSES_NS, partial(self._press, world, index))

    def show(self, index: int) -> ShowLie:
        """Return the function that shows lies for the liar `index`."""

        def show(model: Vector, peer: int) -> Vector:
            count = self._counts[index]
            self._counts[index] += 1
            return self.attack.tell(self._sight(index, peer, model, count))

        return show

    def _sight(self, index: int, peer: int, model: Vector, count: int) -> Sight:
        """Build a liar's sight; blind attacks get no models, since they would not look at them."""
        sees = self.attack.sees
        return Sight(
            node=index,
            peer=peer,
            own=model,
            initial=self._initial,
            models=self._models if sees else {},
            liars=self.liars,
            edges=self.federation.edges if sees else (),
            weights=self._weights(peer) if sees else {},
            rule=self.federation.gossip.rule,
            rounds=self._rounds(index),
            count=count,
            seed=self.federation.seed,
            slope=self._slope,
            own_slope=partial(self._own_slope, peer),
        )

    def _own_slope(self, peer: int) -> Slope | None:
        if peer not in self._slopes:
            self._slopes[peer] = slope_for(self.attack, self._learners[peer])
        return self._slopes[peer]

    def _weights(self, peer: int) -> Mapping[int, float]:
        """Compute a_ij of the peer in the Laplacian step, by neighbor: gamma min(n_i/(deg_i+1), n_j/(deg_j+1))/n_i.

        In the robust profile gamma is 1, and liars claim a large n_j.
        """
        robust = liars_of(self.federation.gossip.rule) > 0
        share = [n / (len(others) + 1) for n, others in zip(self._samples, self._neighbors, strict=True)]
        if robust:
            share = [share[peer] if node in self.liars else weight for node, weight in enumerate(share)]
        factor = (1.0 if robust else self.federation.gossip.gamma) / self._samples[peer]
        return {other: factor * min(share[peer], share[other]) for other in self._neighbors[peer]}

    @cached_property
    def _neighbors(self) -> list[list[int]]:
        neighbors: list[list[int]] = [[] for _ in self.federation.members]
        for low, high in self.federation.edges:
            neighbors[low].append(high)
            neighbors[high].append(low)
        return [sorted(others) for others in neighbors]


class ShownModels(Mapping[int, Vector]):
    """Every node's model, read on demand."""

    def __init__(self, nodes: int, model_of: Callable[[int], Vector]) -> None:
        self._nodes, self._model_of = range(nodes), model_of

    def __getitem__(self, node: int) -> Vector:
        if node not in self._nodes:
            raise KeyError(node)
        return self._model_of(node)

    def __iter__(self) -> Iterator[int]:
        return iter(self._nodes)

    def __len__(self) -> int:
        return len(self._nodes)


def _slope(attack: Attack, learners: Sequence[Learner], liar: int) -> Slope | None:
    """Build the loss on everybody's data if they are in memory, otherwise on one liar's data."""
    if not attack.climbs and attack.own is None:
        return None
    pool = getattr(learners, "pool", "")
    return slope_for(attack, learners[liar], None if isinstance(pool, str) else pool.rows)


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """The nodes' surroundings. `start_ns` maps a node to its first start, by default 0.

    `schedule` has the edges of each round if the graph changes; `body_bytes` then covers their union. `body_bytes` is
    the largest body sent over each edge.
    """

    body_bytes: Mapping[tuple[int, int], int]
    edges: Edges | None = None
    """The initial edges, if the graph changes; None means all edges that have bodies."""
    schedule: tuple[Edges, ...] = ()
    links: LinkSpec = field(default_factory=LinkSpec)
    slow: tuple[SlowNodes, ...] = ()
    seed: int = 0
    start_ns: Mapping[int, int] = field(default_factory=dict)
    engine_ns: int = 500_000
    liars: frozenset[int] = frozenset()
    faults_end_ns: int = 0
    """When the last planned fault happens."""


class Cluster:
    """The hosts and the network of a federation. `settings`, `paces`, `steps` and `budgets` are per node.

    Without budgets no round is paid for; with `sums` rounds are those.
    """

    def __init__(
        self,
        around: Surroundings,
        engines: Sequence[ExactEngine],
        *,
        settings: Sequence[Settings],
        paces: Sequence[NodeSpeed],
        steps: Sequence[int],
        budgets: Sequence[RoundBudget] | None = None,
        on_commit: Callable[[int], None] | None = None,
        sums: SimulatedSums | None = None,
    ) -> None:
        self.around = around
        self.within = nullcontext if sums is None else sums.running
        self._unfinished = dict.fromkeys(range(len(engines)))
        """Nodes that have neither finished nor gone; a dict, so that the first is found immediately."""
        self._halts = True
        self.gone: set[int] = set()
        """Nodes that crashed for good."""
        self.kernel = Kernel()
        self.trace = Trace()
        self.network = Network(
            kernel=self.kernel,
            spec=around.links,
            links=lay(around.body_bytes, around.links, around.slow, around.seed),
            deliver=self.deliver,
            alive=lambda index: self.hosts[index].alive,
            accepts=lambda index, peer: self.hosts[index].accepts(peer),
            trace=self.trace,
        )
        turns = all_turns(len(engines), around.schedule)
        neighbors = all_neighbors(len(engines), tuple(around.body_bytes) if around.edges is None else around.edges)
        self.hosts: list[Host] = []
        for index, engine in enumerate(engines):
            plan = HostPlan(
                index=index,
                neighbors=neighbors[index],
                turns=turns[index],
                settings=settings[index],
                pace=paces[index],
                steps=steps[index],
                engine_ns=around.engine_ns,
                budget=budgets[index] if budgets else None,
            )
            host = (Host if sums is None else sums.host)(
                plan,
                engine,
                kernel=self.kernel,
                network=self.network,
                trace=self.trace,
                on_commit=on_commit,
                on_finish=self._one_has_finished,
            )
            self.hosts.append(host)
            self.kernel.at_ns(around.start_ns.get(index, 0), partial(self.start, index))
        if around.faults_end_ns:
            self.kernel.at_ns(around.faults_end_ns + 1, self._halt_if_over)

    # -- what happens -----------------------------------------------------------------------------------------------

    def start(self, index: int) -> None:
        self.hosts[index].start()
        for edge in self.network.links_of(index):
            self.network.open(edge)
        self._halt_if_over()

    def crash(self, index: int, *, kept: int = 0) -> None:
        """Crash as `kill -9` does."""
        host = self.hosts[index]
        if not host.alive:
            return
        self._unfinished[index] = None
        host.crash(kept)
        for edge in self.network.links_of(index):
            self.network.cut(edge, redial=False)

    def forget(self, index: int) -> None:
        """Wipe the disk of a node that is down."""
        self.trace.add(self.kernel.now_ns, TraceKind.FORGOT, index, 0, 0)
        self.hosts[index].forget()

    def restart(self, index: int) -> None:
        """Restart the node, unless it has been removed from the federation."""
        host = self.hosts[index]
        if not host.alive and index not in host.plan.settings.retired:
            self.start(index)

    def amend(self, index: int, plan: HostPlan) -> None:
        """Tell the node that the federation has changed."""
        self.hosts[index].amend(plan)
        for edge in self.network.links_of(index):
            self.network.open(edge)

    def lose(self, index: int) -> None:
        """Record that this node, which is down, will never come back."""
        self.gone.add(index)
        self._unfinished.pop(index, None)
        self._halt_if_over()

    def deliver(self, index: int, event: Event) -> None:
        self.hosts[index].take(event)

    def watch_by(self, watch: Watch) -> None:
        """Let an observer see all operations of all nodes, from now on."""
        for host in self.hosts:
            host.machine.watch = watch

    def run(self, *, until_ns: int, finish: bool = True, stop: Callable[[], bool] | None = None) -> None:
        """Run to virtual time `until_ns`, or until every node has finished, or until `stop` returns true."""
        self._halts = finish
        if not (finish and self.over):
            with self.within():
                self.kernel.run(until_ns, stop)

    @property
    def over(self) -> bool:
        """True if every node has finished, is gone, or waits for neighbors none of which can come or be believed."""
        return all(self._is_stranded(index) for index in self._unfinished)

    def _is_stranded(self, index: int) -> bool:
        """Return True if `p2pfl launch` would end the node because it would wait alone forever.

        A fault may bring a neighbor back.
        """
        may_come = self.kernel.now_ns < self.around.faults_end_ns
        return not may_come and self.hosts[index].is_stranded(self._unfinished, self.around.liars)

    def _one_has_finished(self, index: int) -> None:
        self._unfinished.pop(index, None)
        self._halt_if_over()

    def _halt_if_over(self) -> None:
        if self._halts and self.over:
            self.kernel.halt()


def all_neighbors(nodes: int, edges: Edges) -> list[tuple[int, ...]]:
    neighbors: list[list[int]] = [[] for _ in range(nodes)]
    for a, b in edges:
        neighbors[a].append(b)
        neighbors[b].append(a)
    return [tuple(sorted(peers)) for peers in neighbors]


def all_turns(nodes: int, schedule: Sequence[Edges]) -> list[dict[int, Turns]]:
    """Compute `turns_of` for every node, in one pass over the schedule."""
    phases: list[dict[int, list[int]]] = [{} for _ in range(nodes)]
    for phase, edges in enumerate(schedule):
        for a, b in edges:
            phases[a].setdefault(b, []).append(phase)
            phases[b].setdefault(a, []).append(phase)
    shared: dict[tuple[int, ...], Turns] = {}
    return [
        {peer: shared.setdefault(tuple(own[peer]), Turns(len(schedule), tuple(own[peer]))) for peer in sorted(own)}
        for own in phases
    ]


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
    """Return the rounds between the tests that a stop condition reads: it counts rounds, so no test is left out."""
    return evaluate_every if isinstance(evaluate_every, int) and evaluate_every else 1


def _sums(federation: FederationConfig) -> SimulatedSums | None:
    if federation.hides is None:
        return None
    from sim.sums import SimulatedSums  # noqa: PLC0415 - few federations hide their models

    return SimulatedSums(federation, federation.hides)


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
        self.sums = _sums(federation)
        self.gammas = self._gammas()
        """By node and neighbor, the step that goes well with the compressor of that edge."""
        self.world: Cluster = Cluster(
            self._surroundings(),
            self._engines(),
            settings=self._settings(federation, self.gammas),
            paces=node_speeds(spec, federation),
            steps=[script.learners.steps(node) for node in range(self.nodes)],
            budgets=None
            if federation.privacy is None
            else [RoundBudget(planned_rounds(federation)) for _ in range(self.nodes)],
            on_commit=on_commit,
            sums=self.sums,
        )
        self._plan_faults()
        for step in script.steps[1:]:
            self.world.kernel.at_ns(step.time_ns, partial(self._amend, step.federation))
        if self.liars is not None:
            hosts = self.world.hosts
            self.liars.meet(ShownModels(self.nodes, self.shown_model), lambda node: hosts[node].core.facts.rounds)
            self.liars.flood(self.world)

    def close(self) -> None:
        """Give up what is not memory."""
        if self.sums is not None:
            self.sums.close()

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
        if not method.given or self.sums is not None:
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
        learners, method = script.learners.learners, script.learners.method
        if self.sums is not None:
            learners, method = self.sums.learners(learners, method), Method()  # the engine takes what sums have made
        return [
            ExactEngine(
                ExactPlan(
                    index=index,
                    neighbors=neighbors[index],
                    learner=learners[index],
                    codecs=self.codecs[index],
                    method=method,
                    rule=rule_of(federation),
                    dtype=np.float64 if script.is_watched and self.sums is None else np.float32,
                    durable=index in script.faults.crashing or script.is_watched,
                    show=liars.show(index) if liars and index in script.liars else None,
                    rounds=None if self.sums else script.learners,
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
