"""A node's status in three forms: one line in a live view, its status page, and the result that it leaves behind.

Each form has all fields of the one before. Times are in seconds, sizes in bytes; a field that is null is unknown.

A line has a count sketch of the model, which estimates distances between models in different processes from a few
numbers per model (Charikar, Chen, Farach-Colton 2002): with `width` buckets the squared distance is unbiased and its
relative standard deviation is sqrt(2/width), 9% at 256, so 4.4% of the distance itself. It is used for the history of a
run on one machine; the final distance is computed from the models themselves.
"""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from p2pfl.learn.interface import Vector
from p2pfl.learn.metrics import Measure

WAITING_FOR_DISK = "waiting for disk"
"""The phase of a node whose disk refuses its state."""


class MeanAndMax(msgspec.Struct, frozen=True):
    """The staleness over all exchanges in which it was measured, counted in the node's own rounds that use the edge."""

    mean: float
    max: int | float


class ClosedRound(msgspec.Struct, frozen=True):
    """The model's position after closing round `closing_rounds`."""

    closing_rounds: int
    exchanges: int
    """The number of exchanges on all edges from the start of the process to that round."""
    sketch: list[float]
    """A short random projection of the model: distances between sketches estimate distances between models."""


class PrivacyStatus(msgspec.Struct, frozen=True):
    """The spending of a node's privacy budget."""

    unit: str
    """The unit of protection: a "record", or the "member" with all its rows."""
    epsilon: float | None
    """An upper bound on the epsilon spent so far; null if unknown."""
    budget: float
    """The epsilon for the whole run."""
    delta: float
    rounds_left: int
    """The number of further rounds that the budget allows."""
    state: str
    """"open" or "spent"; or "missing" or "unsure", if nothing is left because the spending is unknown."""


class NodeLine(msgspec.Struct, kw_only=True, omit_defaults=True):
    """One line about a node's progress, and one point in its history."""

    node: str
    uptime_s: float
    phase: str
    rounds: int
    rounds_without_neighbor: int
    rounds_beyond: int | None = None
    """The rounds beyond those asked, until word came that all were through; null if time bounds training."""
    version: int
    accuracy: float | None
    """The latest accuracy on the common test set."""
    test_loss: float | None
    metrics: dict[str, float | None] = {}
    """The task's own metrics on the common test set, by name."""
    test_samples: int | None = None
    """The number of rows in that test set."""
    intervals: dict[str, tuple[float, float]] = {}
    """95% intervals of accuracy and metrics, by name, for the choice of test rows."""
    measures: list[Measure] = []
    """The measures of the task, the main one first."""
    tested_round: int | None
    """The round after which the model was tested."""
    tested_version: int | None
    test_is_stale: bool
    """True if the tested model is older than it should be by now."""
    loss: float | None
    """The loss of the latest local round."""
    staleness: MeanAndMax | None
    """The staleness over all exchanges; null if rounds are sums, in which no model is stale."""
    bytes_sent: int
    bytes_received: int
    messages_sent: int
    messages_received: int
    peers: int
    """The number of neighbors with an open session."""
    quarantined: int
    exchanges: int
    closing_rounds: int
    neighbor_distance: float | None
    """The root mean square distance to the models of neighbors in contact, relative to the own model's norm."""
    disk_refuses: str | None
    """The reason why the state cannot be written to disk; null if it can."""
    sketch: list[float] | None = None
    closed: ClosedRound | None = None
    classes: list[int] | None = None
    """The classes in the node's own data, reported once to a launcher on the same machine."""
    privacy: PrivacyStatus | None = None
    """The privacy budget; null if there is no privacy promise."""


class NeighborStatus(msgspec.Struct, kw_only=True):
    """A node's information about a neighbor. A simulated run fills in the first fields; p2pfl 0.1.0 had fewer."""

    name: str
    compressor: str | None = None
    bytes_sent: int | None = None
    messages_sent: int | None = None
    standing: float | None = None
    """The neighbor's standing: 1 if nothing is proven against it, 0 in quarantine."""
    faults: dict[str, int] = {}
    """The number of faults proven since this process started, for each kind."""
    quarantines: int = 0
    latest_fault: str | None = None
    quarantined_s: float | None = None
    """The remaining time in quarantine."""
    probation: bool | None = None
    bytes_received: int | None = None
    messages_received: int | None = None
    live: bool | None = None
    """True if it has an open session."""
    done: bool | None = None
    version: int | None = None
    exchanges: int | None = None
    staleness: int | None = None
    """The staleness in the latest exchange, counted in rounds that use the edge."""
    exchange_s: float | None = None
    """The typical duration of an exchange with it."""
    waited_s: float | None = None
    """The seconds that this neighbor has used of what rounds may wait for it alone."""
    resyncs: int | None = None
    kept: float | None = None
    """The share of its pull on the model that the robust rule let through."""
    unlike: float | None = None
    """How far its models are from the other neighbors', over the last rounds; 1 is usual. Only under a robust rule."""
    moves: float | None = None
    """How far its model moves from round to round; 1 is usual."""


class NodeStatus(NodeLine, kw_only=True):
    """The response to `GET /status`."""

    federation: str
    rounds_to_do: int | None
    durability: str
    samples: int | float
    alarms: dict[str, int]
    """The number of alarms raised, by kind."""
    failed_rounds: int
    through: bool
    """True once the node has finished all its training."""
    ended_by: str | None
    """The reason why training has ended."""
    unfinished: list[str] = []
    """The members for which the node waits, or that had not finished training when it ended here."""
    pace_set_by: str | None
    """The neighbor for which rounds wait longest, if much longer than for any other."""
    rule: str
    liars: int
    """The number of lying neighbors that the rule is set to tolerate."""
    liars_borne: int
    """The number of this node's neighbors that may lie without harm."""
    neighbors_needed: int
    rounds_unmixed: int | None = None
    """The rounds since the node's start that mixed with nobody although a neighbor was connected."""
    rounds_mixed: int | None
    rounds_alone: int | None
    too_few_neighbors: bool | None
    standing_alarms: list[str] = []
    """The kinds of active alarms."""
    software: str | None = None
    """The version of p2pfl."""
    neighbors: list[NeighborStatus]
    members_version: int | None = None
    """The version of the newest charter that the node has; null in a federation without admin keys."""
    features: dict[str, dict[str, Any]] = {}
    """Additional status of each feature, by its name."""
    through_by: str | None = None
    """The reason why the node counts as having done all its training; null if it has not."""
    disk_bytes_written: int | None = None
    """The bytes that the node's process has written to disks."""
    device: str | None = None
    """The device on which it trains, with the precision if that is not float32."""

    def to_bytes(self) -> bytes:
        """Return the response to `GET /status`. Infinity and NaN become null."""
        return msgspec.json.encode(self)


class NodeResult(NodeStatus, kw_only=True):
    """The result that a node writes to `<state_dir>/result.json`."""

    finished: bool
    resigned: bool
    """True if it gave way to another process with the same key."""
    removed: bool
    """True if it stopped because it was removed from the federation."""
    pid: int
    local_accuracy: float | None
    local_loss: float | None
    local_metrics: dict[str, float | None] = {}
    """The task's own metrics on the node's own training data."""
    steps: int
    wall_time_s: float
    cpu_time_s: float | None
    """The CPU time of the whole process; null if the process runs other nodes too."""
    cpu_time_running_s: float | None
    """The CPU time from the core's start to its end; null if the process runs other nodes too."""
    cpu_time_training_s: float


WIDTH = 256
BLOCK = 2**16
"""The number of values processed at a time, so that a large model needs no second copy in memory."""


class Sketch:
    """A sketch that is the same for all nodes of a federation: it depends only on the seed and the model's size.

    It takes two bytes per value.
    """

    def __init__(self, size: int, seed: int) -> None:
        chance = np.random.default_rng([seed, size])
        self.bucket = chance.integers(0, WIDTH, size, dtype=np.uint8)
        self.sign = 2 * chance.integers(0, 2, size, dtype=np.int8) - 1

    def of(self, vector: Vector) -> NDArray[np.float64]:
        """Map (d,) -> (256,)."""
        buckets = np.zeros(WIDTH)
        for start in range(0, vector.size, BLOCK):
            part = slice(start, start + BLOCK)
            signed = np.multiply(self.sign[part], vector[part], dtype=np.float64)
            buckets += np.bincount(self.bucket[part], weights=signed, minlength=WIDTH)
        return buckets


def consensus_distance(rows: NDArray[np.float64]) -> float:
    """Compute the root mean square distance between the rows (k, m) and their mean, divided by that mean's norm. It is
    exactly 0 for equal rows.
    """
    from_first = rows - rows[0]
    center = from_first.mean(axis=0)
    norm = float(np.linalg.norm(rows[0] + center))
    distance = float(np.sqrt(np.mean(np.sum((from_first - center) ** 2, axis=1))))
    return distance / norm if norm > 0 else 0.0
