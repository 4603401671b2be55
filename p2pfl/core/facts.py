"""What all parts of one core know in common: the settings it was built with and the few figures that change."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from p2pfl.core.staleness import Staleness


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Times in seconds. `rounds` or `time_s` bounds training; the other is None."""

    rounds: int | None
    time_s: float | None
    closing_rounds: int
    gamma: float
    gammas: Mapping[int, float] = field(default_factory=dict)
    """by neighbor, where it is not `gamma`."""
    staleness: Staleness
    speed_limit: float
    """kmax of rho; 1 turns the correction off."""
    start_wait_s: float
    linger_s: float
    max_wait_s: float
    exchanges_per_s: float
    members: int = 1 << 20
    """How many members the federation has."""
    hops: int = 1
    """how far the farthest node is: before the first round all of them should be there."""
    audit_every: int
    liars: int | None = None
    """b of the robust profile; None in the conservative one."""
    least: int = 0
    """neighbors that its rule needs, where they are more than 2 b + 1."""
    overtime: bool = True
    """Whether a node that is through trains on until the federation ends; else it only mixes."""
    durable: bool = True
    """whether what leaves must be on disk first (exchange durability)."""

    def gamma_of(self, peer: int) -> float:
        """0 in the robust profile, where no exchange moves a model."""
        if self.liars is not None:
            return 0.0
        return self.gammas.get(peer, self.gamma)


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """What a neighbor told of itself in the latest exchange: a_j, seconds per local step, and the version of this end
    that its replica held when it sent.
    """

    weight: float
    pace_s: float
    echo: int


@dataclass(slots=True, kw_only=True)
class Facts:
    """`version` counts ticks (own rounds and mixing rounds), `rounds` local training rounds only.

    `samples` is n, `degree` the largest number of edges that one round uses (on a static graph: all of them),
    `pace_s` the mixed estimate of seconds per local step.
    `trained` is what is told of it to others: `rounds`, or whole seconds where time bounds training. `alone` counts the
    rounds that were trained without a neighbor.
    `closing` counts mixing rounds since training ended, None before; `out_of_step` says that those which are left wait
    for nobody. `level` says before the first round how many hops around everybody is there, None from then on.
    `started_at` is when this process began, by its own clock.
    `joining`: the model is not one to mix with, because this node has not begun yet, or starts from its neighbors'.
    """

    degree: int
    samples: float
    version: int = 0
    rounds: int = 0
    trained: int = 0
    alone: int = 0
    pace_s: float = 0.0
    closing: int | None = None
    out_of_step: bool = False
    level: int | None = 0
    joining: bool = False
    started_at: float = 0.0
    done: bool = False
    halted: bool = False

    @property
    def weight(self) -> float:
        """a_i = n_i/(deg_i+1), so that a pair that meets alone averages half and half where n is equal.

        Whoever exchanges on deg_i edges at once keeps a positive share of its own model, and k <= min(a_i, a_j) keeps
        each pair's step k/n_i + k/n_j <= 1: no exchange makes two models change places.
        """
        return self.samples / (self.degree + 1)
