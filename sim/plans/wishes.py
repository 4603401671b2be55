"""What a person wants of a federation and of the network it runs on, and which of it contradicts itself."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from p2pfl.config.load import load_config
from p2pfl.config.model import FederationConfig, TrainingConfig
from p2pfl.errors import UserError
from topologies.design.goal import Goal

DIGITS = "digits"
LEAST_NODES = 2
DAY_S = 86_400.0
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
    most that any node may send in a day; training that takes less than a day counts as one day.
    """

    task: str = DIGITS
    nodes: int | None = None
    max_degree: int | None = None
    liars: int = 0
    loss: float = 0.0
    slow: SlowWish | None = None
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
        return Goal(nodes=self.count, max_degree=degree, byzantine=byzantine, seed=self.seed)


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
