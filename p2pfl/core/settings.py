"""The figures and the settings that all parts of a core share. The federation may change settings between two rounds.

**Turns** of an edge are the rounds in which a node uses it. If the graph is a repeating schedule of P graphs, a node's
own round selects the edges: in version v it uses the edges of graph v mod P, and in closing round t those of graph t
mod P. On a static graph it is every edge's turn in every round. Both ends of an edge know the same turns, but count
them by their own rounds, so at any one time the two may be in different rounds of the schedule.

**Staleness**: s(tau) is the weight of an exchange if the peer's copy of our model was `tau` turns old, by one of the
functions in `STALENESS`. All but `none` are 0 above 64. Staleness is not a defence: a liar chooses what it echoes.

**Early stopping**: training ends when a figure no longer improves, or when time is up. A node decides from its own
figure for each round alone. It has then completed training, as after all its rounds; `termination` says when
all nodes stop. The best figure and its round are on disk beside the round count.

**Profiles** say how far a node may trust its neighbors, and what follows from that. The conservative profile assumes
that no neighbor lies: each exchange moves both models. In the robust profile up to b neighbors of a node may lie.
Exchanges then move no model, because clipping a liar's model is incompatible with conserving the sum; a rule mixes
once per round. No other part of the core asks which profile it has.

Both have the same attributes and methods; `Conservative` says what they mean.
"""

from __future__ import annotations

import enum
import math
from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import cache
from statistics import median
from typing import ClassVar, NamedTuple

from p2pfl.limits import LONGEST_PACE_S
from p2pfl.specs import Catalog, Entry, Parameter, number

NEVER = float("inf")
"""A time that never comes."""


class Phase(enum.Enum):
    """The phase that a node is in."""

    WAITING = "waiting"
    JOINING = "joining"
    TRAINING = "training"
    CLOSING = "closing"
    LINGERING = "lingering"
    FINISHED = "finished"


@dataclass(slots=True, kw_only=True)
class Facts:
    """The figures of one node.

    `version` counts local and mixing rounds, `rounds` only local training rounds. `samples` is n, `degree` the largest
    number of edges that one round uses (on a static graph, all of them), `pace_s` the mixed estimate of seconds per
    local step. `trained` is the progress that others see: `rounds`, or whole seconds if training is bounded by time.
    `alone` counts the rounds trained without a neighbor. Near the end, `settled` is the number of hops within which all
    active members have completed, None before. `closing` counts the mixing rounds since training ended, None before; if
    `out_of_step`, the remaining ones wait for no neighbor. Before the first round, `level` is the number of hops within
    which all nodes are connected, None afterwards. `started_at` is when this process began, by its own clock.
    `joining`: no neighbor should mix with this model, because the node has not begun or will start from its neighbors'
    models. `repeat_s` is how long a word about where the node stands waits for its first repeat: a second, or the time
    of an exchange once messages were seen to vanish.
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
    settled: int | None = None
    joining: bool = False
    started_at: float = 0.0
    done: bool = False
    halted: bool = False
    repeat_s: float = 1.0

    @property
    def weight(self) -> float:
        """The weight a_i = n_i/(deg_i+1), so that two nodes with equal n that meet alone average half and half.

        A node keeps a positive share of its own model however many exchanges run at once, and k <= min(a_i, a_j) bounds
        each pair's step: k/n_i + k/n_j <= 1, so no exchange makes two models swap places.
        """
        return self.samples / (self.degree + 1)

    @property
    def closing_rounds_done(self) -> int:
        """The number of mixing rounds done since training ended."""
        return self.closing or 0


LIMIT = 64

Staleness = Callable[[int], float]

STALENESS: Catalog[Entry] = Catalog("staleness", Entry)
FEDASYNC = "FedAsync: Xie, Koyejo, Gupta 2019, arXiv 1903.03934, section 5"
A = Parameter("A", number(0, 1e6, above=True, below=True), "how fast the weight falls")
B = Parameter("B", number(0, 1e6, below=True), "how many turns late still count in full")


@dataclass(frozen=True, slots=True)
class Turns:
    """The turns of an edge.

    `phases` are the versions below `period` in which the edge is active, ascending; the pattern then repeats.
    """

    period: int = 1
    phases: tuple[int, ...] = (0,)

    def is_active(self, version: int) -> bool:
        if len(self.phases) == self.period:
            return True
        phase = version % self.period
        place = bisect_right(self.phases, phase)
        return place > 0 and self.phases[place - 1] == phase

    def turns_between(self, since: int, now: int) -> int:
        """Return the number of turns after version `since`, up to version `now`: on a static graph all of them."""
        if len(self.phases) == self.period:
            return max(0, now - since)
        return max(0, self._until(now) - self._until(since))

    def _until(self, version: int) -> int:
        whole, phase = divmod(version, self.period)
        return whole * len(self.phases) + bisect_right(self.phases, phase)


ALWAYS = Turns()


def schedule_index(version: int, closing: int | None) -> int:
    """Return the number that selects a round's graph.

    Nodes that joined late, or whose training is bounded by time, share only the closing rounds with others.
    """
    return closing or version


def turns_of(index: int, schedule: Sequence[Iterable[tuple[int, int]]]) -> dict[int, Turns]:
    """Return the turns of each neighbor of node `index`; `schedule` has the edges of each round in a period."""
    phases: dict[int, list[int]] = {}
    for phase, edges in enumerate(schedule):
        for a, b in edges:
            if index in (a, b):
                phases.setdefault(b if a == index else a, []).append(phase)
    return {peer: Turns(len(schedule), tuple(sorted(phases[peer]))) for peer in sorted(phases)}


@STALENESS.add(name="none", means="an exchange counts in full however late it is")
def _none() -> Staleness:
    return lambda _tau: 1.0


@STALENESS.add(
    name="constant",
    means="every exchange counts C",
    parameters=(Parameter("C", number(0, 1, above=True), "the weight"),),
    source=FEDASYNC,
)
def _constant(c: float = 1.0) -> Staleness:
    return _limited(lambda _tau: c)


@STALENESS.add(name="hinge", means="1 for tau <= B, then 1 / (A (tau - B) + 1)", parameters=(A, B), source=FEDASYNC)
def _hinge(a: float, b: float) -> Staleness:
    return _limited(lambda tau: 1.0 if tau <= b else 1.0 / (a * (tau - b) + 1.0))


@STALENESS.add(name="polynomial", means="(tau + 1)^-A", parameters=(A,), source=FEDASYNC)
def _polynomial(a: float) -> Staleness:
    return _limited(lambda tau: (tau + 1.0) ** -a)


@STALENESS.add(
    name="hinge-polynomial",
    means="1 for tau <= B, then (tau - B + 1)^-A; the default",
    parameters=(B, A),
    source=f"after {FEDASYNC}",
)
def _hinge_polynomial(b: float, a: float) -> Staleness:
    return _limited(lambda tau: 1.0 if tau <= b else (tau - b + 1.0) ** -a)


@cache
def parse_staleness(spec: str) -> Staleness:
    """Return the function s: rounds -> [0, 1] named by `spec`. Raises ValueError if there is none such."""
    entry, values = STALENESS.read_by_place(spec)
    staleness: Staleness = entry.made(*values)
    return staleness


@dataclass(frozen=True, slots=True, kw_only=True)
class NeighborReport:
    """The neighbor's latest report: a_j, seconds per local step, and our model's version in its replica."""

    weight: float
    pace_s: float
    echo: int


@dataclass(slots=True, kw_only=True)
class Weighing:
    """The weights of one edge's exchanges. Staleness is counted in turns of the edge."""

    facts: Facts = field(repr=False, compare=False)
    turns: Turns
    weigh: Staleness = field(repr=False, compare=False)
    report: NeighborReport | None = None
    """The neighbor's latest report since the edge began; None before the first exchange."""
    staleness: int = 0
    """The staleness used for the latest weight."""
    weighed: int = 0
    """How many exchanges have been weighed."""
    staleness_sum: int = 0
    staleness_max: int = 0

    def staleness_weight(self, echoed: int | None, *, fell_to_zero: bool) -> float:
        """Return s(tau), where tau counts the turns since the version that the peer's replica held when it last sent.

        On a static graph that is the number of rounds. In a schedule, an edge that rests for P rounds is not late.
        """
        if echoed is None or self.facts.joining:
            return 0.0
        self.staleness = self.turns.turns_between(echoed, self.facts.version)
        self.weighed += 1
        self.staleness_sum += self.staleness
        self.staleness_max = max(self.staleness_max, self.staleness)
        weight = self.weigh(self.staleness)
        # An edge whose weight once fell to zero must be able to come back.
        return max(weight, self.weigh(LIMIT)) if fell_to_zero else weight

    def share(self) -> float:
        """Return a_ij s_j for a rule, min(a_i, a_j) s(tau) / n_i: at most 1/(deg_i+1) whatever the neighbor claims.

        It is 0 if there is nothing to mix. tau is the neighbor's, as above, from its report in the latest exchange.
        Beyond the limit the weight is 0 under any staleness; otherwise a replica from long ago would count forever.
        """
        report = self.report
        if report is None:
            return 0.0
        tau = self.turns.turns_between(report.echo, self.facts.version)
        if tau > LIMIT:
            return 0.0
        return min(self.facts.weight, report.weight) / self.facts.samples * self.weigh(tau)

    def hear(self, factor: float, weight: float, pace_s: float, echo: int | None) -> None:
        """Store the neighbor's report. Pace estimates move toward each other as models do, but are not conserved."""
        facts, pace_s = self.facts, min(pace_s, LONGEST_PACE_S)
        self.report = (
            None if echo is None else NeighborReport(weight=weight, pace_s=pace_s, echo=min(echo, facts.version))
        )
        share = min(1.0, factor / facts.samples)
        facts.pace_s += share * (pace_s - facts.pace_s)


def _limited(weight: Staleness) -> Staleness:
    table = [min(1.0, max(0.0, weight(tau))) for tau in range(LIMIT + 1)]
    return lambda tau: 0.0 if tau > LIMIT else table[max(0, tau)]


class Best(NamedTuple):
    """The best figure so far (lower is better), and the round count at which the node reached it."""

    figure: float
    rounds: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Stop:
    """The conditions of `training.stop`; `str` gives their canonical spelling."""

    patience: int | None = None
    """Stop after this many of the node's own rounds without an improvement; None for no limit."""
    of: str = "loss"
    """The figure that must improve: "loss" is of this node's local rounds, all others of the common test set."""
    least: float = 0.0
    """The smallest gain that counts as an improvement."""
    after_s: float | None = None
    """Stop after this many seconds of training; None for no limit."""

    def __str__(self) -> str:
        clauses = []
        if self.patience is not None:
            by = f" by {self.least!r}" if self.least else ""
            clauses.append(f"no improvement of {self.of}{by} in {self.patience} rounds")
        if self.after_s is not None:
            clauses.append(f"after {self.after_s!r} s")
        return " or ".join(clauses)

    def is_better(self, figure: float, best: Best | None) -> bool:
        """Return True if `figure` improves on `best`; a figure that is not finite never does."""
        return math.isfinite(figure) and (best is None or figure < best.figure - self.least)

    def is_out(self, best: Best | None, rounds: int) -> bool:
        """Return True if the patience has run out after `rounds` rounds; it never runs out before the first figure."""
        return self.patience is not None and best is not None and rounds - best.rounds >= self.patience

    def why(self, best: Best | None, rounds: int, elapsed_s: float) -> str | None:
        """Return the condition that says this node has trained enough; None if none does."""
        if self.is_out(best, rounds) and best is not None:
            return f"no improvement of {self.of} since round {best.rounds}"
        if self.after_s is not None and elapsed_s >= self.after_s:
            return f"it has trained for {self.after_s:g} s"
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Conservative:
    """The default: every exchange conserves `sum n_i x_i`."""

    mixes_by_rule: ClassVar = False
    """True if a rule mixes after the exchanges of a round; otherwise each exchange mixes by itself."""
    keeps_flows: ClassVar = True
    """True if edges keep flows, so that all members must learn who has lost its memory and begun a new lifetime."""
    words_needed: ClassVar = 1
    """How many neighbors must say something before a node believes it."""
    neighbors_needed: ClassVar = 0
    """How many neighbors a median or a rule needs so that liars cannot choose the result."""
    condition: ClassVar = ""
    """The condition that keeps a rule from mixing, worded for the user."""

    gamma: float = 1.0
    gammas: Mapping[int, float] = field(default_factory=dict)
    """The gamma of each neighbor whose value differs from `gamma`."""
    shares: Mapping[int, float] = field(default_factory=dict)
    """The mixing weight of each neighbor's edge, if the graph's file has them: at most 1/2, and 1 for all of a node."""

    def weight_of(self, peer: int, facts: Facts) -> float:
        """Return a_i for an exchange with this neighbor, in samples: n_i w_ij, or n_i/(deg_i+1) without weights.

        Both ends take the smaller of a_i and a_j, so k = min(n_i, n_j) w_ij is the same at both, k/n_i + k/n_j <= 1,
        and the exchanges of one round move a node by at most the sum of its weights.
        """
        share = self.shares.get(peer)
        return facts.weight if share is None else facts.samples * share

    def samples_behind(self, weight: float, peer: int, facts: Facts) -> float:
        """Return the number of samples with which `weight_of` was computed."""
        share = self.shares.get(peer)
        return weight * (facts.degree + 1) if share is None else weight / share

    def gamma_of(self, peer: int) -> float:
        """Return the factor that damps an exchange with this neighbor; at 0 the exchange moves no model."""
        return self.gammas.get(peer, self.gamma)

    def degree(self, turns: Mapping[int, Turns]) -> int:
        """Return the largest number of edges that one round uses and that share the node's weight in it."""
        period = max((each.period for each in turns.values()), default=0)
        return max((sum(each.is_active(phase) for each in turns.values()) for phase in range(period)), default=0)

    def whole(self, begun: int, members: int) -> int:
        """Return the number of members of which half must have completed, if `begun` are known to have begun."""
        return begun

    def told_pace_s(self, own_s: float, gained_s: float, mixed_s: float) -> float:
        """Return the pace to send to neighbors, in seconds per local step; the own one was `gained_s` lower before.

        By dynamic average consensus it is the mixed estimate, plus what the node's own figure has gained.
        """
        return max(0.0, mixed_s + gained_s)

    def usual_pace_s(self, own_s: float, mixed_s: float, neighbors_s: Iterable[float]) -> float:
        """Return the pace with which to compare the node's own, in seconds per local step.

        A value of 0 in `neighbors_s` means that a neighbor's pace is not known yet.
        """
        return mixed_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Robust:
    """Up to b = `liars` neighbors of a node may lie. With 2 b neighbors or fewer, the liars could be half of them."""

    mixes_by_rule: ClassVar = True
    keeps_flows: ClassVar = False

    liars: int
    least: int = 0
    """How many neighbors the rule itself needs, if more than 2 b + 1."""

    @property
    def words_needed(self) -> int:
        return self.liars + 1

    @property
    def neighbors_needed(self) -> int:
        return max(2 * self.liars + 1, self.least)

    @property
    def condition(self) -> str:
        liars = "1 liar" if self.liars == 1 else f"{self.liars} liars"
        return f"with {liars} among them nothing is mixed below {self.neighbors_needed}"

    def weight_of(self, peer: int, facts: Facts) -> float:
        return facts.weight

    def samples_behind(self, weight: float, peer: int, facts: Facts) -> float:
        return weight * (facts.degree + 1)

    def gamma_of(self, peer: int) -> float:
        return 0.0

    def degree(self, turns: Mapping[int, Turns]) -> int:
        """Return the number of all neighbors: the rule mixes with all, with weights that add up to at most 1."""
        return len(turns)

    def whole(self, begun: int, members: int) -> int:
        return members

    def told_pace_s(self, own_s: float, gained_s: float, mixed_s: float) -> float:
        return own_s

    def usual_pace_s(self, own_s: float, mixed_s: float, neighbors_s: Iterable[float]) -> float:
        """Return the median of the node's own pace and its neighbors', which b of 2 b + 1 cannot move far.

        It is the node's own pace if too few neighbors' paces are known.
        """
        known_s = [pace_s for pace_s in neighbors_s if pace_s > 0]
        return median([own_s, *known_s]) if len(known_s) >= self.neighbors_needed else own_s


Profile = Conservative | Robust


def turn_of(count: int, member: int, other: int, seq: int) -> int:
    """Return which of `count` fragments transaction `seq` of the edge between two members exchanges: all in turn, and
    not the same one on all edges of a node at a time.
    """
    return (seq + member + other) % count


def degree_of(profile: Profile, turns: Mapping[int, Turns], fragments: Mapping[int, int]) -> int:
    """Return how many edges share the node's weight in one round.

    `turns` has the turns of each neighbor, `fragments` the number of fragments on each edge without replicas. Such
    edges exchange a value in one of that many rounds, so fewer of them meet at it: each exchange may move it further.
    """
    if not fragments:
        return profile.degree(turns)
    whole = profile.degree({peer: each for peer, each in turns.items() if peer not in fragments})
    counts = [fragments[peer] for peer in turns if peer in fragments]
    if not counts:
        return whole
    return whole - (-profile.degree({peer: each for peer, each in turns.items() if peer in fragments}) // min(counts))


@dataclass(slots=True, kw_only=True)
class Settings:
    """The settings of a core. Times are in seconds. Either `rounds` or `time_s` bounds training; the other is None.

    A core has its own copy, shared by its parts; only `adopt` changes it.
    """

    rounds: int | None
    time_s: float | None
    closing_rounds: int
    profile: Profile = field(default_factory=Conservative)
    """The profile, which says how far the neighbors are trusted."""
    staleness: Staleness
    """The weight of an exchange as a function of the rounds since the neighbor last received this node's model."""
    speed_limit: float
    """The largest factor by which a slow node's step is scaled up, kmax; 1 turns that correction off."""
    start_wait_s: float
    linger_s: float
    max_wait_s: float
    exchanges_per_s: float
    members: int = 1 << 20
    """The number of members that the federation has or had: one more than the largest index."""
    retired: frozenset[int] = frozenset()
    """The members that were removed."""
    hops: int = 1
    """The number of hops to the farthest node; all within it should be connected before the first round."""
    fragments: Mapping[int, int] = field(default_factory=dict)
    """The neighbors whose edges have no replicas, and the number of exchanges in which they show a whole model."""
    audit_every: int
    """One in this many exchanges compares the replicas at both ends."""
    stop: Stop | None = None
    """The conditions under which this node's training may end early."""
    closing_trains: bool = False
    """True if closing rounds train, too."""
    when_through: str = "train"
    """The behavior of a node that has completed training before others: `mix`, `train` a few more or `train-on`."""

    def adopt(self, other: Settings) -> None:
        """Take over all values of another instance."""
        for each in fields(self):
            setattr(self, each.name, getattr(other, each.name))
