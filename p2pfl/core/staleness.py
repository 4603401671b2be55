"""The turns of an edge (the rounds in which a node uses it), and the weight of an exchange by its staleness.

If the graph is a repeating schedule of P graphs, a node's own round selects the edges: in version v it uses the edges
of graph v mod P, and in closing round t those of graph t mod P. On a static graph it is every edge's turn in every
round. Both ends of an edge know the same turns, but count them by their own rounds, so at any one time the two may be
in different rounds of the schedule.

s(tau) is the weight if the peer's copy of our model was `tau` turns old, by one of the functions in `STALENESS`. All
but `none` are 0 above 64. Staleness is not a defence: a liar chooses what it echoes.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache

from p2pfl.core.facts import Facts
from p2pfl.specs import Catalog, Entry, Parameter, number

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
        """Return the number of turns after version `since`, up to version `now`. On a static graph this is `now -
        known`.
        """
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


def most_at_once(turns: Mapping[int, Turns]) -> int:
    """Return the largest number of these edges that are active in the same round."""
    period = max((each.period for each in turns.values()), default=0)
    return max((sum(each.is_active(phase) for each in turns.values()) for phase in range(period)), default=0)


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
    """Return the function s: rounds -> [0, 1] named by `spec`. Raises ValueError for an unknown name or bad
    parameters.
    """
    entry, values = STALENESS.read_by_place(spec)
    staleness: Staleness = entry.made(*values)
    return staleness


LONGEST_PACE_S = 3600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class NeighborReport:
    """The neighbor's latest report: a_j, seconds per local step, and the version of this node's model in its
    replica.
    """

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
