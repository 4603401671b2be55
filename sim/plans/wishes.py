"""The wishes for a federation and its network, which of them contradict each other, and the world of them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from p2pfl.config.load import load_config
from p2pfl.config.model import FederationConfig, TrainingConfig
from p2pfl.errors import UserError
from sim.sweeps.run import replace
from sim.worlds.model import ComputeSpec
from topologies.design.candidates import Goal
from topologies.errors import TopologyError
from topologies.timing import Latencies, latencies, read_far

DIGITS = "digits"
LEAST_NODES = 2
DAY_S = 86_400.0
USUAL_STEPS = 20
"""The local steps of a round by which the time of training is estimated where rounds are counted in epochs."""
SELDOM_S = 1e9
DEGREE_LIMIT = 12
"""The highest degree that is looked at if no limit is given: a node has so many neighbors at most."""


@dataclass(frozen=True, slots=True)
class SlowWish:
    """So many nodes are so many times slower than the others."""

    count: int
    times: float


@dataclass(frozen=True, kw_only=True)
class PlanWishes:
    """The wishes. `task` is `digits`, or the path of a federation whose task, data and training are taken.

    `liars`: nodes that may lie, wherever they are. `loss`: the probability that a message is lost. `bytes_per_day`: the
    most that any node may send in a day; training that takes less than a day counts as one day. `far`: nodes and how
    far they are from all others, one way, as `28-29=60ms`.
    """

    task: str = DIGITS
    nodes: int | None = None
    max_degree: int | None = None
    liars: int = 0
    loss: float = 0.0
    slow: SlowWish | None = None
    far: tuple[str, ...] = ()
    bytes_per_day: int | None = None
    rounds: int | None = None
    partition: str | None = None
    seed: int = 0

    @cached_property
    def base(self) -> FederationConfig | None:
        """The federation that `task` names; None for the built-in digits."""
        return None if self.task == DIGITS else load_config(Path(self.task).absolute())

    @cached_property
    def count(self) -> int:
        """The number of nodes."""
        return len(self.base.present) if self.base is not None else self.nodes or 0

    @property
    def full(self) -> int | None:
        """The number of rounds to learn for; None if the federation ends by something else."""
        return self.rounds or self._training.rounds

    @property
    def can_be_shortened(self) -> bool:
        """Whether fewer rounds learn as the first of all: a privacy budget for fewer rounds takes less noise."""
        return self.full is not None and (self.base is None or self.base.privacy is None)

    @property
    def clock(self) -> str:
        """The clock of arrays: in step takes a fifth of the time, where all nodes and links are alike."""
        return "apart" if self.slow or self.far else "in-step"

    @property
    def closing(self) -> int:
        """The rounds of mixing after that."""
        return self._training.closing_rounds

    @property
    def _training(self) -> TrainingConfig:
        return TrainingConfig() if self.base is None else self.base.training

    @property
    def highest(self) -> int:
        """The most neighbors that a node may have."""
        return min(self.count - 1, self.max_degree or DEGREE_LIMIT)

    def goal(self, degree: int, *, byzantine: int = 0) -> Goal:
        """What is asked of a graph whose nodes have at most `degree` neighbors."""
        apart = self.distances
        return Goal(
            nodes=self.count,
            max_degree=degree,
            byzantine=byzantine,
            seed=self.seed,
            minimize="rounds" if apart is None else "time",
            distances=apart,
            train_s=ComputeSpec().step_s * (self._training.local_steps or USUAL_STEPS),
        )

    @property
    def distances(self) -> Latencies | None:
        """How far the nodes are from each other; None if nothing is said. Raises TopologyError for unknown nodes."""
        if not self.far:
            return None
        names = () if self.base is None else [member.name for member in self.base.present]
        return latencies(self.count, names=names, far=[read_far(text) for text in self.far])


def world_text(wishes: PlanWishes) -> str:
    """Return the text of the world file. Nodes are tested at the end alone: a third of a run would go into curves."""
    parts = [f"[run]\nevaluate_every_s = {SELDOM_S!r}\n"]
    if wishes.loss:
        parts.append(f"[links]\nloss = {wishes.loss!r}\n")
    if wishes.slow is not None:
        parts.append(f"[[slow]]\ncount = {wishes.slow.count}\nspeed = {1.0 / wishes.slow.times!r}\n")
    told = map(read_far, wishes.far)
    parts += [f"[[slow]]\nnodes = {json.dumps(one.named)}\nfar_s = {one.time_s!r}\n" for one in told]
    return "\n".join(parts)


def write_world(wishes: PlanWishes, folder: Path) -> Path:
    """Write the world file, so that a command can repeat every run of the plan. Raises StorageError if the disk
    refused.
    """
    path = (folder / "world.toml").absolute()
    replace(path, world_text(wishes).encode())
    return path


def check_wishes(wishes: PlanWishes) -> None:
    """Raise UserError for wishes that make no sense, alone or together; ExceptionGroup if there are several."""
    found = list(_mistakes(wishes))
    if len(found) > 1:
        raise ExceptionGroup("mistakes in the wishes", found)
    if found:
        raise found[0]


def _mistakes(wishes: PlanWishes) -> Iterator[UserError]:
    if wishes.base is None and wishes.nodes is None:
        yield UserError("is missing", key="--nodes", allowed="how many nodes, or --task FOLDER with a federation")
        return
    count = wishes.count
    if wishes.base is not None and wishes.nodes not in (None, count):
        text = f"the federation of --task has {count} nodes"
        yield UserError(text, key="--nodes", value=wishes.nodes, allowed="without --nodes")
    if count < LEAST_NODES:
        yield UserError("too few nodes to learn together", key="--nodes", value=count, allowed=f"from {LEAST_NODES}")
        return
    if wishes.slow is not None and wishes.slow.count >= count:
        text = f"there are {count} nodes, and slow ones are slow beside others"
        yield UserError(text, key="--slow", value=wishes.slow.count, allowed=f"up to {count - 1} nodes")
    if wishes.max_degree == 1 and count > LEAST_NODES:
        text = f"{count} nodes with one neighbor each are not connected"
        yield UserError(text, key="--max-degree", value=1, allowed="from 2")
        return
    try:
        _ = wishes.distances
    except TopologyError as error:
        yield UserError(error.message, key="--far", value=error.value, allowed=error.allowed)
    yield from _impossible_liars(wishes)


def _impossible_liars(wishes: PlanWishes) -> Iterator[UserError]:
    count, liars = wishes.count, wishes.liars
    least = 2 * liars + 1
    if liars and least > count - 1:
        text = f"half of {count - 1} possible neighbors or more would lie, and no rule holds against that"
        yield UserError(text, key="--liars", value=liars, allowed=f"up to {(count - 2) // 2} of {count} nodes")
    elif liars and wishes.max_degree is not None and least > wishes.max_degree:
        text = f"half of a node's {wishes.max_degree} neighbors or more could lie, and no rule holds against that"
        fewer = (wishes.max_degree - 1) // 2
        some = f"up to {fewer}" if fewer else "none"
        allowed = f"{some} with --max-degree {wishes.max_degree}, or --max-degree from {least}"
        yield UserError(text, key="--liars", value=liars, allowed=allowed)
