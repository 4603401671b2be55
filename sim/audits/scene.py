"""The scene of an attack, and what all neighbors of the attacked node together can observe in it.

A scene is a copy of a federation reduced to one of its nodes and the neighbors, with data on this machine.

An exchange shows a neighbor the node's model, and the neighbor knows how far the exchange then moves it, because both
ends compute the same D. So neighbors that combine what they see know where a local round began and ended, as precisely
as the compressor allows. `Eye` watches, in virtual time (`observe_simulated`) and next to the engines of real nodes
with real sockets, in this process (`observe_real`). Where models are hidden, others see sums alone (`observe_sums`).
"""

from __future__ import annotations

import tempfile
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from operator import attrgetter
from pathlib import Path
from typing import Any

import numpy as np
import torch

from p2pfl.aggregate import liars_of
from p2pfl.chance import generator
from p2pfl.compress import Fragments, make_compressor
from p2pfl.config.charter import compacted
from p2pfl.config.load import load_config, load_node, node_file
from p2pfl.config.model import FederationConfig, TaskConfig, TrainingConfig
from p2pfl.config.sections import MEAN, HideConfig, PrivacyConfig
from p2pfl.core.events import ApplyReply, ApplyRequest, Operation
from p2pfl.engine.engine import Engine, Outcome
from p2pfl.engine.state import NodeState
from p2pfl.errors import UserError
from p2pfl.features import FEATURES
from p2pfl.features.status.feature import StatusDisplay
from p2pfl.features.sums.sessions import groups_of
from p2pfl.fleet.fleet import STOPPED, Child
from p2pfl.fleet.one_process import InProcessFleet, _with_keys, run_selecting
from p2pfl.learn.averaging import AveragedLearner, AveragedRounds
from p2pfl.learn.interface import Learner, RoundStart, Vector
from p2pfl.learn.load import load_task, resolved
from p2pfl.learn.methods import method_of
from p2pfl.learn.privacy.noise import Chance
from p2pfl.learn.privacy.plan import protection_of
from p2pfl.learn.table.schema import with_agreed
from p2pfl.learn.task import NodeContext, Task
from p2pfl.learn.tensors import DataSets, Samples, TensorSamples, read_samples
from p2pfl.learn.trainer import TorchLearner
from p2pfl.methods import FLOW
from p2pfl.node.application import Application, OneProcess
from p2pfl.node.assembly import Setup
from p2pfl.node.driver import Driver
from p2pfl.reporting.status import NodeResult
from p2pfl.reporting.vitals import Vitals
from sim.cluster import PreparedRun, script
from sim.exact import ExactEngine
from sim.host import Watch
from sim.kernel import NS
from sim.learning.nodes import Learners, refuse_sums
from sim.worlds.model import ComputeSpec, LinkSpec, Spread, WorldSpec
from sim.worlds.settling import settle

MOST_NODES = 4
"""The maximum number of nodes in a scene: the attacked one and its neighbors."""
OTHERS = "others"
"""The name of the neighbor that gets half of the rows if only one node's data are on this machine."""
ROUNDS = 40
"""The number of rounds of the copy if the federation's training is bounded by time."""


@dataclass(frozen=True, kw_only=True)
class Scene:
    """The copy that is attacked. `federation` is without privacy; `data` are by member, `victim` is the attacked
    member's index.

    `notes` say how it differs from the federation itself.
    """

    federation: FederationConfig
    task: Task
    data: Sequence[DataSets]
    victim: int
    notes: tuple[str, ...] = ()
    privacy: PrivacyConfig | None = None
    """The privacy settings of the federation."""
    hides: HideConfig | None = None
    """How the federation hides models; `federation` does not."""
    groups: tuple[frozenset[int], ...] = ()
    """The groups by which sums of hidden models differ, of members of `whole`."""
    whole: Scene | None = None
    """The scene of all members where models are hidden; None if some of their data are not on this machine."""

    @property
    def name(self) -> str:
        """The name of the attacked node."""
        return self.federation.members[self.victim].name

    def rows(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Inputs and targets of the victim."""
        samples = self.data[self.victim].train
        inputs, targets = samples.rows(torch.arange(len(samples)))
        return inputs, targets

    def with_rows(self, rows: Samples) -> Scene:
        """Return the scene with these rows as the victim's."""
        data = list(self.data)
        data[self.victim] = DataSets(train=rows, test=data[self.victim].test)
        return replace(self, data=data, task=_in_memory(self.task, data))

    def learner(self, federation: FederationConfig, index: int, chance: Chance | None = None) -> TorchLearner:
        """Build one node's learner, private if `federation` says so; by default with the randomness of a real node."""
        protection = protection_of(federation, chance)
        context = self._context(index)
        return TorchLearner(self.task, context, federation.training, federation.gossip.patterns, protection=protection)

    def learners(self, federation: FederationConfig, chance: Chance | None = None) -> list[TorchLearner]:
        return [self.learner(federation, index, chance) for index in range(len(self.data))]

    def _context(self, index: int) -> NodeContext:
        federation = self.federation
        return NodeContext(
            node=index,
            nodes=len(federation.members),
            name=federation.members[index].name,
            seed=federation.seed,
            base_dir=federation.path.parent,
        )


def scene_of(file: Path, *, node: str | None = None) -> Scene:
    """Build the scene for a file or folder, around `node`, or around the first node whose data are on this machine.

    Raises UserError if there are no data here, or if the task has no rows that could be attacked.
    """
    federation = replace(compacted(load_config(file)), admin=(), edition=None, charter=b"")
    text = "is not attacked here: a neighbor gets no node's own messages, but sums"
    if federation.hides is None:
        refuse_sums(federation, text, "`p2pfl audit FOLDER --attacks sums`, which attacks these")
    names = [member.name for member in federation.members]
    if node is not None and node not in names:
        raise UserError("no such node", file=federation.path, key="--node", value=node, allowed=", ".join(names))
    specs = {federation.gossip.compressor, *federation.edge_compressors.values()}
    if any(isinstance(make_compressor(spec), Fragments) for spec in specs):
        text = "an audit reads whole models, of which fragments show a part at a time"
        allowed = "another compressor: in the end neighbors see as much by fragments as with none"
        raise UserError(
            text, file=federation.path, key="gossip.compressor", value=federation.gossip.compressor, allowed=allowed
        )
    task, held, missing = _read_all(federation)
    if not held or (node is not None and names.index(node) not in held):
        who = "any node" if node is None else node
        said = "; ".join(f"{name}: {error.key or error}" for name, error in list(missing.items())[:3])
        text = f"the data of {who} are not on this machine, and an audit makes none up ({said})"
        allowed = "on a machine with a node's folder and its data, beside the federation file"
        raise UserError(text, file=federation.path, key="data", allowed=allowed)
    victim = names.index(node) if node is not None else _first(federation, held)
    return _scene_around(federation, task, held, victim)


def _read_all(federation: FederationConfig) -> tuple[Task, dict[int, DataSets], dict[str, UserError]]:
    """Read the task, the data sets on this machine by member, and the reasons why others are missing."""
    held, missing = dict[int, DataSets](), dict[str, UserError]()
    task: Any = None
    for member in federation.members:
        node = load_node(node_file(federation, member.name), federation, member.name)
        task = load_task(with_agreed(federation.task, node.state_dir), federation.path.parent, file=federation.path)
        if not isinstance(task, Task):
            text, allowed = "has a learner of its own: there are no rows that could be attacked", "a torch task"
            raise UserError(text, file=federation.path, key="task.name", value=federation.task.name, allowed=allowed)
        folder = node_file(federation, member.name).parent
        local = {key: resolved(key, value, folder) for key, value in node.data.items()}
        context = NodeContext(
            node=member.index,
            nodes=len(federation.members),
            name=member.name,
            seed=federation.seed,
            base_dir=federation.path.parent,
            options=federation.task.options,
            local=local,
        )
        try:
            train, test = read_samples(task, context)
            held[member.index] = DataSets(train=train, test=test)
        except UserError as error:
            if folder.is_dir() and not (error.key or "").startswith("data"):
                error.file = error.file or str(federation.path)
                raise
            missing[member.name] = error
    return task, held, missing


def _first(federation: FederationConfig, data: dict[int, DataSets]) -> int:
    """Return the first of the nodes with the most neighbors here."""
    return max(sorted(data), key=lambda index: sum(peer in data for peer in federation.neighbors(index)))


def _scene_around(federation: FederationConfig, task: Task, held: dict[int, DataSets], victim: int) -> Scene:
    notes = []
    near = [peer for peer in federation.neighbors(victim) if peer in held]
    far = [index for index in sorted(held) if index not in (victim, *near)]
    chosen = [victim, *(near or far)[: MOST_NODES - 1]]
    names = [federation.members[index].name for index in chosen]
    data = [held[index] for index in chosen]
    if len(chosen) == 1:
        data = _halves(data[0], federation.seed)
        names = [names[0], OTHERS if names[0] != OTHERS else OTHERS + "-2"]
        notes.append(f"only the data of {names[0]} are here: a neighbor has half of its rows")
    elif len(chosen) < len(federation.members):
        notes.append(f"attacked is a copy of {len(chosen)} of the {len(federation.members)} nodes: {', '.join(names)}")
    if liars_of(federation.gossip.rule):
        notes.append("the copy mixes by the mean: what a neighbor is shown does not depend on the rule")
    scene = _copied(federation, task, data, chosen, names)
    whole = None
    if federation.hides is not None and len(held) == len(federation.members):
        whole = _copied(federation, task, [*held.values()], [*held], [member.name for member in federation.members])
    return replace(scene, notes=tuple(notes), groups=groups_of(federation), whole=whole)


def _copied(
    federation: FederationConfig, task: Task, data: Sequence[DataSets], chosen: Sequence[int], names: Sequence[str]
) -> Scene:
    """Return the scene around the first of the chosen members, with these names and data."""
    copied = replace(
        federation,
        path=federation.path.parent / "audit",  # no file: nodes of the copy have none of their own
        task=TaskConfig(name=task.name or federation.task.name, given=_in_memory(task, data)),
        members=tuple(
            replace(federation.members[min(index, len(federation.members) - 1)], index=place, name=name, address=None)
            for place, (index, name) in enumerate(zip([*chosen, *chosen][: len(names)], names, strict=True))
        ),
        edges=_edges(federation, chosen),
        schedule=(),
        edge_compressors={},
        founders=(),
        discovery=False,
        privacy=None,
        hides=None,
        training=_training(federation),
        gossip=replace(federation.gossip, rule="mean", start_wait_s=30.0, linger_s=2.0),
    )
    return Scene(
        federation=copied,
        task=_in_memory(task, data),
        data=data,
        victim=0,
        privacy=federation.privacy,
        hides=federation.hides,
    )


def _training(federation: FederationConfig) -> TrainingConfig:
    """Return the configured training, with a bounded number of rounds and without early stopping or overtime."""
    training = federation.training
    return replace(
        training,
        rounds=training.rounds or ROUNDS,
        time_s=None,
        method=federation.method,
        closing_rounds=min(training.closing_rounds, 2),
        when_through="mix",
        stop=None,
        evaluate_every=0,
    )


def _edges(federation: FederationConfig, chosen: Sequence[int]) -> tuple[tuple[int, int], ...]:
    """Return the edges between the chosen nodes, and from the first of them to all others."""
    place = {index: number for number, index in enumerate(chosen)}
    own = {(place[i], place[j]) for i, j in federation.edges if i in place and j in place}
    own |= {(0, number) for number in range(1, max(2, len(chosen)))}
    return tuple(sorted({(min(edge), max(edge)) for edge in own}))


def _halves(whole: DataSets, seed: int) -> list[DataSets]:
    order = torch.from_numpy(generator(seed, "audit-halves").permutation(len(whole.train)))
    if len(order) < 4:
        raise UserError("too few rows to attack", key="data", value=len(order), allowed="at least 4")
    parts = (order[: len(order) // 2], order[len(order) // 2 :])
    return [DataSets(train=_part(whole.train, part), test=whole.test) for part in parts]


def _part(samples: Samples, rows: torch.Tensor) -> Samples:
    inputs, targets = samples.rows(rows)
    return TensorSamples(inputs, targets)


def _in_memory(task: Task, data: Sequence[DataSets]) -> Task:
    """Return the task over data that have already been read."""

    def pairs(context: NodeContext) -> tuple[Any, Any]:
        both = data[context.node].train, data[context.node].test
        return tuple(None if samples is None else samples.rows(torch.arange(len(samples))) for samples in both)  # type: ignore[return-value]

    return replace(task, data=pairs)


ROUNDING = 1e-5
"""A change below this fraction of the model's norm is a float32 rounding error."""
MOST_MODELS = 32
"""How many models shown by a victim in one round are remembered; each exchange that it mixes makes another."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sighting:
    """One exchange with the victim, as its neighbor `peer` sees it afterwards.

    `replica` (d,) is what the victim has shown of its model at its `version`, `move` (d,) what the exchange then adds
    to that model. `flow` (d,) is what the learning method keeps for the edge at the victim's end; None if nothing yet.
    """

    peer: int
    version: int
    replica: Vector
    move: Vector
    flow: Vector | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundSeen:
    """A local round between two exchanges: the model (d,) it began from and its `change` (d,), as computed by
    neighbors.

    `flows` (d,) is the sum of what the method keeps for all edges at the victim's end; `versions` is the number of
    rounds between the two exchanges, training or not.
    """

    number: int
    start: Vector
    change: Vector
    flows: Vector | None
    versions: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """The sightings of a victim by all neighbors, in order.

    `initial` (d,) is the model that every node started from, which follows from the federation's seed; `models` (nodes,
    d) are the final ones, for the auditor.
    """

    victim: int
    initial: Vector
    sightings: Sequence[Sighting]
    models: Vector
    lossless: bool = False
    """True if nothing of a model is lost in transmission."""
    vitals: Sequence[object] = field(default=())
    """Rows of vitals sent by a real victim, in order."""
    seen: Sequence[RoundSeen] | None = None
    """The rounds, where they are seen in sums and not in sightings."""

    def rounds(self) -> list[RoundSeen]:
        """Recover the rounds that changed the model, numbered from 0.

        A round begins when every neighbor has had its exchange; later exchanges move the model while it trains. If
        transmission is lossless, the vectors shown distinguish one round from the next. The versions in messages are
        less exact: the first exchange after a commit may still name the version before.
        """
        if self.seen is not None:
            return list(self.seen)
        return _by_content(self) if self.lossless else _by_version(self)


def _by_content(observed: Observation) -> list[RoundSeen]:
    rounds, start, left = list[RoundSeen](), observed.initial, observed.initial
    known, before, served = [observed.initial], list[Vector](), set[int]()
    flows, now = dict[int, Vector](), dict[int, Vector]()
    everybody = {sight.peer for sight in observed.sightings}
    for sight in observed.sightings:
        near = ROUNDING * float(np.linalg.norm(sight.replica))
        if not any(np.linalg.norm(sight.replica - model) <= near for model in known + before):
            change = sight.replica - left
            rounds.append(RoundSeen(number=len(rounds), start=start, change=change, flows=_sum(flows), versions=1))
            start = left = sight.replica
            known, before, served, flows = [sight.replica], known, set(), dict(now)
        left = left + sight.move
        known = (known + [model + sight.move for model in known])[-MOST_MODELS:]
        if sight.flow is not None:
            now[sight.peer] = sight.flow
        if served != everybody:
            served.add(sight.peer)
            start, flows = start + sight.move, dict(now)
    return rounds


def _by_version(observed: Observation) -> list[RoundSeen]:
    flows, rounds, most = dict[int, Vector](), list[RoundSeen](), np.linalg.norm(observed.initial)
    version, start, left, total = 0, observed.initial, observed.initial, None
    ordered, everybody = sorted(observed.sightings, key=attrgetter("version")), {s.peer for s in observed.sightings}
    for number, group in groupby(ordered, key=attrgetter("version")):
        first, later = _split(list(group), everybody)
        shown = first[0].replica
        change = shown - left
        if number > version and np.linalg.norm(change) > ROUNDING * most:
            place, apart = len(rounds), number - version
            rounds.append(RoundSeen(number=place, start=start, change=change, flows=total, versions=apart))
        flows |= {sight.peer: sight.flow for sight in first if sight.flow is not None}
        total = _sum(flows)
        flows |= {sight.peer: sight.flow for sight in later if sight.flow is not None}
        version, start = number, shown + sum((sight.move for sight in first), np.zeros_like(shown))
        left = start + sum((sight.move for sight in later), np.zeros_like(shown))
        most = np.linalg.norm(shown)
    return rounds


def _sum(vectors: Mapping[int, Vector]) -> Vector | None:
    """Sum all vectors, (d,); None if there are none."""
    return np.sum([vectors[peer] for peer in sorted(vectors)], axis=0) if vectors else None


def _split(seen: list[Sighting], everybody: set[int]) -> tuple[list[Sighting], list[Sighting]]:
    """Split the exchanges of one version: those up to the point at which every neighbor has had one, and the rest."""
    served = set[int]()
    for place, sight in enumerate(seen):
        served.add(sight.peer)
        if served == everybody:
            return seen[: place + 1], seen[place + 1 :]
    return seen, []


class Eye:
    """Records each exchange that one of the `spies` has with the `victim`, whose data have `samples` n rows."""

    def __init__(self, victim: int, spies: Iterable[int], samples: int) -> None:
        self.victim, self.spies, self.samples = victim, frozenset(spies), samples
        self.sightings: list[Sighting] = []
        self._lock = threading.Lock()

    def look(self, index: int, state: NodeState, operation: Operation) -> None:
        """Record what happened after node `index` carried out `operation`; `state` is that node's."""
        if index not in self.spies or not isinstance(operation, ApplyRequest | ApplyReply):
            return
        edge = state.edges.get(operation.peer)
        message = operation.request if isinstance(operation, ApplyRequest) else operation.reply
        if operation.peer != self.victim or edge is None or edge.record.seq != message.seq:
            return  # it belongs to another node, or was refused
        factor = operation.factor if isinstance(operation, ApplyRequest) else operation.reply.factor
        size = state.model.size
        flow = edge.kept.get(FLOW)
        sighting = Sighting(
            peer=index,
            version=message.version,
            replica=edge.peer[:size].copy(),
            move=(edge.own[:size] - edge.peer[:size]) * np.float32(factor) / np.float32(self.samples),
            flow=None if flow is None else -flow[:size],
        )
        with self._lock:
            self.sightings.append(sighting)


def is_lossless(federation: FederationConfig) -> bool:
    """Return True if neighbors get the model itself, up to rounding."""
    return {federation.gossip.compressor, *federation.edge_compressors.values()} == {"none"}


AT_ONCE = WorldSpec(
    links=LinkSpec(latency_s=Spread(low=0.0, high=0.0)), compute=ComputeSpec(engine_s=0.0), limit_s=10_000.0
)
"""A world in which colluding neighbors answer at once, so that every exchange is over before a local round ends."""


class _Watching(Watch):
    """Shows an eye what each host has done."""

    def __init__(self, eye: Eye, engines: Sequence[ExactEngine]) -> None:
        self.eye, self.engines = eye, engines

    def after(self, index: int, operation: Operation) -> None:
        self.eye.look(index, self.engines[index].state, operation)


def observe_simulated(federation: FederationConfig, learners: Sequence[Learner], victim: int) -> Observation:
    """Run `federation` in virtual time with these `learners`, one for each member, and watch `victim` from all its
    neighbors; of hidden models, the sums. Raises LearningError if the task failed.
    """
    if federation.hides is not None:
        return observe_sums(federation, learners, victim, federation.hides)
    spec = settle(AT_ONCE, len(federation.members), federation.seed)
    everyone = Learners(learners, method_of(federation))
    stage = PreparedRun(script(federation, spec, everyone))
    hosts = stage.world.hosts
    eye = Eye(victim, federation.neighbors(victim), learners[victim].samples)
    stage.watch_by(_Watching(eye, [host.engine for host in hosts]))
    stage.world.run(until_ns=round(spec.limit_s * NS))
    return Observation(
        victim=victim,
        initial=everyone.initial(),
        sightings=eye.sightings,
        models=stage.models(),
        lossless=is_lossless(federation),
    )


def observe_sums(
    federation: FederationConfig, learners: Sequence[Learner], victim: int, hides: HideConfig
) -> Observation:
    """Run rounds of hidden models, and see the mean change of the victim and one other member in each: the smallest sum
    that is left of a group if as many work together as may. Raises LearningError if the task failed.
    """
    pair, seen, model = [victim, federation.neighbors(victim)[0]], list[RoundSeen](), learners[0].initial()
    for number, (changes, rows, after) in enumerate(hidden_rounds(federation, learners, hides)):
        change = changes[pair].sum(axis=0) / rows[pair].sum()
        seen.append(RoundSeen(number=number, start=model, change=change, flows=None))
        model = after
    models = np.stack([model] * len(learners))
    return Observation(victim=victim, initial=learners[0].initial(), sightings=(), models=models, seen=seen)


def hidden_rounds(
    federation: FederationConfig, learners: Sequence[Learner], hides: HideConfig
) -> Iterator[tuple[Vector, Vector, Vector]]:
    """Run rounds of hidden models. Yield of each what sums are sums of: the members' changes (members, d), each times
    its rows, and these rows (members,); and the common model (d,) after it. Raises LearningError if the task failed.
    """
    how: dict[str, Any] = {"members": len(learners), "seed": federation.seed, "method": method_of(federation)}
    nodes = [AveragedLearner(learner, hides, **how, node=node) for node, learner in enumerate(learners)]
    model, common = learners[0].initial(), nodes[0].averaged
    mean = AveragedRounds(replace(hides, outer=MEAN, outer_rate=None), size=model.size, **how, node=0)
    for averaged in (mean, *(node.averaged for node in nodes)):
        averaged.rows = sum(learner.samples for learner in learners)
    for number in range(federation.training.rounds or ROUNDS):
        start, mean.common = model, common.common
        for node in nodes:
            node.train(RoundStart(start), number)
        parts = np.array([node.averaged.part for node in nodes], np.uint64)
        rows, total = parts[:, 0].astype(np.float32), parts.sum(axis=0)
        model, *_ = [node.averaged.next_model(start, total, len(nodes), number) for node in nodes]
        changes, before = list[Vector](), mean.common
        for part in parts:
            mean.common = before
            changes.append(mean.next_model(start, part, 1, number) - start)
        yield np.stack(changes) * rows[:, None], rows, model


class Spied(Application):
    """The shipped application, with a spy that only watches what its engine does and what it sends."""

    eye: Eye
    vitals: list[Vitals]

    def _engine_of(self, recovered: NodeState | None) -> Engine:
        engine = super()._engine_of(recovered)
        run = engine.run

        def watched(operation: Operation) -> Outcome:
            outcome = run(operation)
            self.eye.look(engine.index, engine.state, operation)
            return outcome

        engine.run = watched  # type: ignore[method-assign]
        self.last_engine = engine
        return engine

    async def _conclude(self, engine: Engine, driver: Driver) -> NodeResult:
        """Ask the victim for its latest vitals: a short run may be over before any has reached a spy."""
        shown = self.attached.of(StatusDisplay)
        if self.setup.member.index == self.eye.victim and shown.display.tells:
            self.vitals.append(shown.display.vitals())
        return await super()._conclude(engine, driver)


@dataclass(slots=True)
class SpiedFleet(InProcessFleet):
    """All nodes with spies. `applications` are by member index."""

    eye: Eye | None = None
    vitals: list[Vitals] = field(default_factory=list)
    applications: dict[int, Spied] = field(default_factory=dict)

    async def _run_one(self, child: Child, setup: Setup, shared: OneProcess) -> None:
        application = Spied(setup, on_line=child.lines.append, sketched=True, shared=shared, features=FEATURES)
        if self.eye is None:
            raise AssertionError("nobody watches")
        application.eye, application.vitals = self.eye, self.vitals
        self.applications[setup.member.index] = application
        result = await application.run()
        child.exit_code = 0 if result is not None and result.finished else STOPPED


def observe_real(federation: FederationConfig, victim: int) -> Observation:
    """Run all nodes of `federation` in this process, over loopback, and watch `victim` from all its neighbors.

    Raises UserError if the task or its data are wrong, LearningError if the task failed.
    """
    with tempfile.TemporaryDirectory(prefix="p2pfl-audit-") as folder:
        together = SpiedFleet(*_with_keys(federation), Path(folder))
        setups = together.prepare()
        eye = together.eye = Eye(victim, federation.neighbors(victim), setups[victim].learner.samples)
        run_selecting(together.run(setups))
        return _observed(together, eye, setups)


def _observed(together: SpiedFleet, eye: Eye, setups: Sequence[Setup]) -> Observation:
    engines = [together.applications[setup.member.index].last_engine for setup in setups]
    models = np.stack([engine.state.model for engine in engines])
    return Observation(
        victim=eye.victim,
        initial=setups[0].learner.initial(),
        sightings=eye.sightings,
        models=models,
        lossless=is_lossless(together.federation),
        vitals=tuple(together.vitals),
    )
