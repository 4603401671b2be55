"""The figures of a run over time, and of its references."""

from __future__ import annotations

import math

import msgspec

from p2pfl.reporting.status import MeanAndMax


class Statistic(msgspec.Struct, frozen=True):
    """A figure over the honest nodes that have a value; NaN if one of them is NaN."""

    mean: float
    min: float
    max: float

    @property
    def is_finite(self) -> bool:
        return math.isfinite(self.mean) and math.isfinite(self.min) and math.isfinite(self.max)


class Point(msgspec.Struct, kw_only=True):
    """One moment of a run's history."""

    time_s: float
    """Seconds since the start; virtual time in a simulation."""
    rounds: Statistic | None = None
    tested_rounds: Statistic | None = None
    """The rounds after which the models were tested, fewer than `rounds` where not every round is; real runs only."""
    accuracy: Statistic | None = None
    loss: Statistic | None = None
    """The loss on the common test set."""
    metrics: dict[str, Statistic] = {}
    """The task's own metrics on the common test set, by name."""
    train_loss: Statistic | None = None
    consensus_distance: float | None = None
    neighbor_distance: Statistic | None = None
    """The distance between nodes and the replicas of their neighbors; real runs only."""
    staleness: MeanAndMax | None = None
    bytes_sent: int | None = None
    messages_sent: int | None = None
    running: int | None = None
    """The number of nodes still running."""
    evaluated: int | None = None
    """The number of nodes in the figures; null if all honest ones are."""


class ModelScore(msgspec.Struct, kw_only=True):
    accuracy: float | None = None
    loss: float | None = None
    metrics: dict[str, float | None] = {}
    """The task's own metrics, by name."""
    intervals: dict[str, tuple[float, float]] = {}
    """95% intervals of accuracy and metrics, by name, for the choice of test rows."""


class ReferencePoint(ModelScore):
    """One moment of a reference run."""

    rounds: int | None = None
    steps: int | None = None
    bytes_sent: int | None = None


class Reference(ReferencePoint):
    history: list[ReferencePoint] = []


class Centralized(msgspec.Struct, kw_only=True):
    """A model trained on all data: once with as many steps as one node takes, and once with as many as all nodes."""

    one_node: Reference | None = None
    all_nodes: Reference | None = None


class Alone(msgspec.Struct, kw_only=True):
    """The scores on the common test set, over all nodes, of models that were each trained on one node's data."""

    accuracy: Statistic | None = None
    loss: Statistic | None = None
    metrics: dict[str, Statistic] = {}
    intervals: dict[str, tuple[float, float]] = {}
    """95% intervals of the means, by name, as if all nodes were tested on the same rows."""


class Comparison(msgspec.Struct, kw_only=True):
    """The difference between the mean over the nodes and a reference, and whether the choice of test rows alone could
    explain it.
    """

    measure: str
    """The task's main measure."""
    difference: float
    """The mean over the nodes minus the reference."""
    interval: tuple[float, float] | None
    """The 95% interval of the difference; null if the models were tested on different rows, or on too few."""
    rows: int | None = None
    """The total number of test rows."""
    verdict: str
    """"better", "worse", or "open": the figures do not decide which is better."""
    why: str
    """The reason, in words."""


class References(msgspec.Struct, kw_only=True):
    """The results of the same training without a network of peers."""

    alone: Alone | None = None
    """Each node trained on its own data only; null unless the run was started with references."""
    against_alone: Comparison | None = None
    """The nodes together compared with each alone; null if they were not compared."""
    centralized: Centralized | None = None
    """A model trained on all data; null if the data cannot be pooled."""
    against_pooled: Comparison | None = None
    """The nodes together, compared with a model trained on all data with as many steps as all nodes."""
    fedavg: Reference | None = None
    """A server that averages all models each round; null if part of the model is personal."""
