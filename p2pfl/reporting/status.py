"""What a node says about itself: one line of a live view, its status page, the result that it leaves.

Each form has all fields of the one before. Times are in seconds, sizes in bytes; a field that is null is not known.
"""

from __future__ import annotations

from typing import Any

import msgspec

from p2pfl.learn.metrics import Measure


class MeanAndMax(msgspec.Struct, frozen=True):
    """Staleness over all exchanges that were weighed, in own rounds in which the edge has its turn."""

    mean: float
    max: int | float


class ClosedRound(msgspec.Struct, frozen=True):
    """Where the model was after closing round `closing_rounds`."""

    closing_rounds: int
    exchanges: int
    """Exchanges of all edges since the process began, when the model was there."""
    sketch: list[float]
    """A short random projection of the model: distances between sketches estimate distances between models."""


class PrivacyStatus(msgspec.Struct, frozen=True):
    """What a node has spent of its privacy budget."""

    unit: str
    """Who is protected: a "record", or the "member" with all its rows."""
    epsilon: float | None
    """What is spent so far, a bound; null where that is not known."""
    budget: float
    """The epsilon for the whole run."""
    delta: float
    rounds_left: int
    """How many more rounds the budget has room for."""
    state: str
    """"open"; "spent"; or nothing is left because it is not known what was spent: "missing", "unsure"."""


class NodeLine(msgspec.Struct, kw_only=True, omit_defaults=True):
    """One line of a node's progress, and one point of its history."""

    node: str
    uptime_s: float
    phase: str
    rounds: int
    rounds_without_neighbor: int
    version: int
    accuracy: float | None
    """The latest accuracy on the common test set."""
    test_loss: float | None
    metrics: dict[str, float | None] = {}
    """The task's own metrics on the common test set, by name."""
    test_samples: int | None = None
    """The rows of that test set."""
    intervals: dict[str, tuple[float, float]] = {}
    """95% intervals of accuracy and metrics, by name, by the chance of which rows are in the test set."""
    measures: list[Measure] = []
    """The measures of the task, the main one first."""
    tested_round: int | None
    """The round after which the model was tested."""
    tested_version: int | None
    test_is_stale: bool
    """Whether an older model was tested than should have been by now."""
    loss: float | None
    """The loss of the latest local round."""
    staleness: MeanAndMax
    bytes_sent: int
    bytes_received: int
    messages_sent: int
    messages_received: int
    peers: int
    """How many neighbors have an open session."""
    quarantined: int
    exchanges: int
    closing_rounds: int
    neighbor_distance: float | None
    """The root mean square distance to the models of the neighbors that are heard, relative to the own model's norm."""
    disk_refuses: str | None
    """Why the disk does not take the state; null while it does."""
    sketch: list[float] | None = None
    closed: ClosedRound | None = None
    classes: list[int] | None = None
    """The classes in the node's own data: once, for a launcher on the same machine."""
    privacy: PrivacyStatus | None = None
    """Null where nothing is promised."""


class NeighborStatus(msgspec.Struct, kw_only=True):
    """What a node knows of one neighbor. A simulated run fills in the first fields only, p2pfl 0.1.0 had fewer."""

    name: str
    compressor: str | None = None
    bytes_sent: int | None = None
    messages_sent: int | None = None
    standing: float | None = None
    """1 where nothing is proven against it, 0 in quarantine."""
    faults: dict[str, int] = {}
    """How many faults were proven since this process started, by kind."""
    quarantines: int = 0
    latest_fault: str | None = None
    quarantined_s: float | None = None
    """The rest of its quarantine."""
    probation: bool | None = None
    bytes_received: int | None = None
    messages_received: int | None = None
    live: bool | None = None
    """Whether it has an open session."""
    done: bool | None = None
    version: int | None = None
    exchanges: int | None = None
    staleness: int | None = None
    """The staleness of the latest exchange, in turns of the edge."""
    exchange_s: float | None = None
    """How long an exchange with it usually takes."""
    waited_s: float | None = None
    """How long rounds have waited for it alone in the last minute."""
    resyncs: int | None = None
    kept: float | None = None
    """The share of its pull that came through the robust rule."""


class NodeStatus(NodeLine, kw_only=True):
    """Everything that `GET /status` says."""

    federation: str
    rounds_to_do: int | None
    durability: str
    samples: int | float
    alarms: dict[str, int]
    """How many alarms were raised, by kind."""
    failed_rounds: int
    through: bool
    """Whether the node has trained all that it had to."""
    ended_by: str | None
    """Why training has ended."""
    unfinished: list[str] = []
    """The members that were not through when training ended."""
    pace_set_by: str | None
    """The neighbor for which rounds have waited most in the last minute, and much more than for any other."""
    rule: str
    liars: int
    """How many lying neighbors the rule is set to tolerate."""
    liars_borne: int
    """How many of this node's neighbors may lie."""
    neighbors_needed: int
    rounds_mixed: int | None
    rounds_alone: int | None
    too_few_neighbors: bool | None
    standing_alarms: list[str] = []
    """The kinds of alarms that stand."""
    software: str | None = None
    """The version of p2pfl."""
    neighbors: list[NeighborStatus]
    members_version: int | None = None
    features: dict[str, dict[str, Any]] = {}
    """What each feature says beside, by its name."""
    """The version of the newest charter that the node has; null in a federation without admin keys."""
    through_by: str | None = None
    """Why the node has trained all that it had to; null: it has not."""
    device: str | None = None
    """Where it trains, and in which precision if that is not float32."""

    def to_bytes(self) -> bytes:
        """As `GET /status` says it. Infinity and NaN become null."""
        return msgspec.json.encode(self)


class NodeResult(NodeStatus, kw_only=True):
    """What a node leaves in `<state_dir>/result.json`."""

    finished: bool
    resigned: bool
    """Whether it gave way to another process with its key."""
    removed: bool
    """Whether it stopped because it was removed from the federation."""
    pid: int
    local_accuracy: float | None
    local_loss: float | None
    local_metrics: dict[str, float | None] = {}
    """The task's own metrics on the node's own training data."""
    steps: int
    wall_time_s: float
    cpu_time_s: float | None
    """The whole process's; null where it has other nodes too."""
    cpu_time_running_s: float | None
    """From the core's start to its end; null where the process has other nodes too."""
    cpu_time_training_s: float
