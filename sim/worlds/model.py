"""What a world file says, after validation: plain frozen values. A default that stands here is the default of the file.

Times are in virtual seconds, sizes in bytes, rates in bytes per second, probabilities per message. Nodes are member
indices. Everything random that the file asks for is drawn later, from the run's seed: where `count` stands beside
`nodes`, so many nodes are chosen by `choices.settle`, and `nodes` names all of them afterwards. When each node is up
(`UpTimes`) is counted in integer nanoseconds.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

NANOSECONDS = 1_000_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """A random quantity: `constant` (low), `uniform` or `log-uniform` between low and high."""

    kind: str = "constant"
    low: float = 1.0
    high: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ComputeSpec:
    """A local step takes `step_s` divided by the node's speed; `round_s`, where given, is a whole round at speed 1."""

    step_s: float = 0.0025
    round_s: float | None = None
    speed: Spread = field(default_factory=Spread)
    """Speed of a node, drawn once."""
    trace: Path | None = None
    """CSV with the columns node, time_s, speed: instead of `speed`."""
    jitter: float = 0.02
    """Each round takes up to this share longer, drawn per round."""
    engine_s: float = 0.0005
    """Duration of one exchange operation (encode, apply)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkSpec:
    latency_s: Spread = field(default_factory=lambda: Spread(low=0.002, high=0.002))
    """Latency of a link, drawn once."""
    jitter_s: float = 0.0
    """Each message takes up to this much longer, so that messages overtake each other."""
    bandwidth: float | None = None
    """Bytes per second in each direction of a link; None: unlimited."""
    loss: float = 0.0
    duplication: float = 0.0
    redial_s: float = 0.05
    """Delay before a dead session's link is dialed again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SlowNodes:
    """Messages to and from these nodes take `far_s` longer, at `bandwidth` at most; their speed is times `speed`."""

    nodes: tuple[int, ...] = ()
    count: int = 0
    far_s: float = 0.0
    bandwidth: float | None = None
    speed: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionSpec:
    """From `at_s` to `until_s` no message passes between nodes of different groups; who is in none forms one more."""

    groups: tuple[tuple[int, ...], ...]
    at_s: float
    until_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class CrashSpec:
    """Power off at `at_s`; on again after `down_s`, None for never. With `amnesia` the disk is lost too."""

    nodes: tuple[int, ...] = ()
    count: int = 0
    at_s: float
    down_s: float | None = None
    amnesia: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ChurnSpec:
    """Crashes at random: up for an exponential time of mean `up_s`, down for one of mean `down_s`, until `until_s`.

    Each crash loses the disk with probability `amnesia`. Neither `nodes` nor `count`: all honest nodes.
    """

    nodes: tuple[int, ...] | None = None
    count: int | None = None
    up_s: float
    down_s: float
    until_s: float
    amnesia: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinSpec:
    """These nodes first start at `at_s`."""

    nodes: tuple[int, ...] = ()
    count: int = 0
    at_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class LiarSpec:
    """`attack` names what these nodes show instead of their model: see `attacks`."""

    nodes: tuple[int, ...] = ()
    count: int = 0
    attack: str


@dataclass(frozen=True, slots=True, kw_only=True)
class WorldSpec:
    """`path` is the file it came from, None for the default world."""

    path: Path | None = None
    compute: ComputeSpec = field(default_factory=ComputeSpec)
    links: LinkSpec = field(default_factory=LinkSpec)
    slow: tuple[SlowNodes, ...] = ()
    partitions: tuple[PartitionSpec, ...] = ()
    crashes: tuple[CrashSpec, ...] = ()
    churn: ChurnSpec | None = None
    joins: tuple[JoinSpec, ...] = ()
    liars: LiarSpec | None = None
    evaluate_every_s: float | None = None
    """Virtual time between two evaluations; None: about forty in a run."""
    limit_s: float = 86_400.0
    """Virtual time at which a run ends at the latest."""


def nanoseconds(time_s: float) -> int:
    return round(time_s * NANOSECONDS)


class UpTimes:
    """When each node is up, as far as that is known: born at its join, down between a crash and the restart.

    Nothing in it contradicts itself.
    """

    def __init__(self, joins: Iterable[JoinSpec] = ()) -> None:
        self.born = {node: nanoseconds(join.at_s) for join in joins for node in join.nodes}
        self._down: dict[int, list[tuple[int, int | None]]] = {}

    def objection(self, node: int, begin_ns: int, end_ns: int | None) -> str | None:
        """Why the node cannot be down from `begin_ns` to `end_ns` (None: for good), or None if it can."""
        if begin_ns <= self.born.get(node, 0):
            return "would crash before it has started"
        for begin, end in self._down.get(node, ()):
            if (end_ns is None or begin <= end_ns) and (end is None or begin_ns <= end):
                return "would crash while it is down" if end is not None else "would crash though it never comes back"
        return None

    def add(self, node: int, begin_ns: int, end_ns: int | None) -> None:
        self._down.setdefault(node, []).append((begin_ns, end_ns))


def ends(crash: CrashSpec) -> tuple[int, int | None]:
    """When the nodes of a crash go down and when they are up again."""
    begin = nanoseconds(crash.at_s)
    return begin, None if crash.down_s is None else begin + max(1, nanoseconds(crash.down_s))
