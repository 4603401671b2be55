"""The figures of a run over time, and of its references."""

from __future__ import annotations

import math

import msgspec

from p2pfl.reporting.status import MeanAndMax


class Statistic(msgspec.Struct, frozen=True):
    """A figure over the honest nodes that have a value; NaN where one of these is NaN."""

    mean: float
    min: float
    max: float

    @property
    def is_finite(self) -> bool:
        return math.isfinite(self.mean) and math.isfinite(self.min) and math.isfinite(self.max)


class Point(msgspec.Struct, kw_only=True):
    """One moment of a run's history."""

    time_s: float
    """Seconds since the start, virtual in a simulation."""
    rounds: Statistic | None = None
    accuracy: Statistic | None = None
    loss: Statistic | None = None
    """The loss on the common test set."""
    metrics: dict[str, Statistic] = {}
    """The task's own metrics on the common test set, by name."""
    train_loss: Statistic | None = None
    consensus_distance: float | None = None
    neighbor_distance: Statistic | None = None
    """The distance of nodes to their neighbors' replicas; real runs only."""
    staleness: MeanAndMax | None = None
    bytes_sent: int | None = None
    messages_sent: int | None = None
    running: int | None = None
    """The number of nodes that had not ended."""
    evaluated: int | None = None
    """The number of nodes in the figures; null: all honest ones."""


class ModelScore(msgspec.Struct, kw_only=True):
    accuracy: float | None = None
    loss: float | None = None
    metrics: dict[str, float | None] = {}
    """The task's own metrics, by name."""
    intervals: dict[str, tuple[float, float]] = {}
    """95% intervals of accuracy and metrics, by name, for the chance of which rows are in the test set."""


class ReferencePoint(ModelScore):
    """One moment of a reference run."""

    rounds: int | None = None
    steps: int | None = None
    bytes_sent: int | None = None


class Reference(ReferencePoint):
    history: list[ReferencePoint] = []


class Centralized(msgspec.Struct, kw_only=True):
    """One model that learns from all data, with as many steps as one node, and as all nodes."""

    one_node: Reference | None = None
    all_nodes: Reference | None = None


class Alone(msgspec.Struct, kw_only=True):
    """The scores of models that each learned from one node's data: on the common test set, over the nodes."""

    accuracy: Statistic | None = None
    loss: Statistic | None = None
    metrics: dict[str, Statistic] = {}
    intervals: dict[str, tuple[float, float]] = {}
    """95% intervals of the means, by name, as if the nodes were all tested on the same rows."""


class Comparison(msgspec.Struct, kw_only=True):
    """The difference between the mean over the nodes and a reference, and whether the choice of test rows could explain
    it.
    """

    measure: str
    """The task's main measure."""
    difference: float
    """The mean over the nodes minus the reference."""
    interval: tuple[float, float] | None
    """The 95% interval of the difference; null where the same rows were not tested, or too few."""
    rows: int | None = None
    """The number of test rows in all."""
    verdict: str
    """"better", "worse", or "open": the figures do not decide which is better."""
    why: str
    """The reason, in words."""


class References(msgspec.Struct, kw_only=True):
    """The results of the same learning without a network of peers."""

    alone: Alone | None = None
    """Each node with its own data; null unless the run was started with references."""
    against_alone: Comparison | None = None
    """The nodes together compared with each alone; null if they were not compared."""
    centralized: Centralized | None = None
    """One model that learns from all data; null if they cannot be pooled."""
    against_pooled: Comparison | None = None
    """The nodes together compared with all data in one place, with as many steps as all nodes."""
    fedavg: Reference | None = None
    """A server that averages all models each round; null if nodes keep part of the model to themselves."""
