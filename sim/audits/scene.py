"""The scene of an attack: a copy of a federation reduced to one of its nodes and the neighbors, with data on this
machine.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from p2pfl.aggregate import liars_of
from p2pfl.chance import generator
from p2pfl.compress import Fragments, make_compressor
from p2pfl.config.charter import compacted
from p2pfl.config.load import load_config, load_node, node_file
from p2pfl.config.model import FederationConfig, TaskConfig, TrainingConfig
from p2pfl.config.sections import PrivacyConfig
from p2pfl.errors import UserError
from p2pfl.learn.load import load_task, resolved
from p2pfl.learn.privacy.noise import Chance
from p2pfl.learn.privacy.plan import protection_of
from p2pfl.learn.samples import DataSets, Samples, TensorSamples, read_samples
from p2pfl.learn.table.agreed import with_agreed
from p2pfl.learn.task import NodeContext, Task
from p2pfl.learn.trainer import TorchLearner
from sim.learning.nodes import refuse_sums

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
        """Build the learner of one node, private if `federation` says so; by default with the randomness of a real
        node.
        """
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


def scene_of(file: Path, *, node: str | None = None, seed: int | None = None) -> Scene:
    """Build the scene for a file or folder, around `node`, or around the first node whose data are on this machine.

    Raises UserError if there are no data here, or if the task has no rows that could be attacked.
    """
    federation = replace(compacted(load_config(file)), admin=(), signed=None)
    text = "is not attacked here: a neighbor gets no node's own messages, but sums"
    refuse_sums(federation, text, "`p2pfl audit FOLDER --attacks sums`, which attacks these")
    if seed is not None:
        federation = replace(federation, seed=seed)
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
    task, found, missing = _read_all(federation)
    if not found or (node is not None and names.index(node) not in found):
        who = "any node" if node is None else node
        said = "; ".join(f"{name}: {error.key or error}" for name, error in list(missing.items())[:3])
        text = f"the data of {who} are not on this machine, and an audit makes none up ({said})"
        allowed = "on a machine with a node's folder and its data, beside the federation file"
        raise UserError(text, file=federation.path, key="data", allowed=allowed)
    victim = names.index(node) if node is not None else _first(federation, found)
    return _scene_around(federation, task, found, victim)


def _read_all(federation: FederationConfig) -> tuple[Task, dict[int, DataSets], dict[str, UserError]]:
    """Read the task, the data sets on this machine by member, and the reasons why others are missing."""
    found, missing = dict[int, DataSets](), dict[str, UserError]()
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
            found[member.index] = DataSets(train=train, test=test)
        except UserError as error:
            if folder.is_dir() and not (error.key or "").startswith("data"):
                error.file = error.file or str(federation.path)
                raise
            missing[member.name] = error
    return task, found, missing


def _first(federation: FederationConfig, data: dict[int, DataSets]) -> int:
    """Return the first of the nodes with the most neighbors here."""
    return max(sorted(data), key=lambda index: sum(peer in data for peer in federation.neighbors(index)))


def _scene_around(federation: FederationConfig, task: Task, found: dict[int, DataSets], victim: int) -> Scene:
    notes = []
    near = [peer for peer in federation.neighbors(victim) if peer in found]
    far = [index for index in sorted(found) if index not in (victim, *near)]
    chosen = [victim, *(near or far)[: MOST_NODES - 1]]
    names = [federation.members[index].name for index in chosen]
    data = [found[index] for index in chosen]
    if len(chosen) == 1:
        data = _halves(data[0], federation.seed)
        names = [names[0], OTHERS if names[0] != OTHERS else OTHERS + "-2"]
        notes.append(f"only the data of {names[0]} are here: a neighbor has half of its rows")
    elif len(chosen) < len(federation.members):
        notes.append(f"attacked is a copy of {len(chosen)} of the {len(federation.members)} nodes: {', '.join(names)}")
    if liars_of(federation.gossip.rule):
        notes.append("the copy mixes by the mean: what a neighbor is shown does not depend on the rule")
    edges = _edges(federation, chosen)
    copied = replace(
        federation,
        path=federation.path.parent / "audit",  # no file: nodes of the copy have none of their own
        task=TaskConfig(name=task.name or federation.task.name, given=_in_memory(task, data)),
        members=tuple(
            replace(federation.members[min(index, len(federation.members) - 1)], index=place, name=name, address=None)
            for place, (index, name) in enumerate(zip([*chosen, *chosen][: len(names)], names, strict=True))
        ),
        edges=edges,
        schedule=(),
        edge_compressors={},
        edge_tables=(),
        founders=(),
        discovery=False,
        privacy=None,
        training=_training(federation),
        gossip=replace(federation.gossip, rule="mean", start_wait_s=30.0, linger_s=2.0),
    )
    return Scene(
        federation=copied,
        task=_in_memory(task, data),
        data=data,
        victim=0,
        notes=tuple(notes),
        privacy=federation.privacy,
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
        return tuple(None if one is None else one.rows(torch.arange(len(one))) for one in both)  # type: ignore[return-value]

    return replace(task, data=pairs, files=lambda _: ())
