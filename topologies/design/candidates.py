"""A graph or schedule that was looked at, what it costs, and whether it is what was wanted."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from topologies.building import build, build_schedule
from topologies.design.choices import SMALL, schedule_choices, static_choices
from topologies.design.rates import rate_of
from topologies.design.wanted import Key, Wanted
from topologies.effort import Tell, silent
from topologies.errors import TopologyError
from topologies.families import FAMILIES, Request
from topologies.graph import Topology, component_count
from topologies.metrics.cutpoints import cut_points
from topologies.metrics.known import degree_range
from topologies.metrics.robustness import Robustness, robustness
from topologies.metrics.schedules import describe_schedule
from topologies.specs import parse

SEARCHED = "searched"
"""the spec of a graph that no family has begins with this word."""

DENSE = 40
"""edges for each node: above `SMALL` nodes a graph with more is judged by its formulas, or not at all."""


@dataclass(eq=False, kw_only=True)
class Candidate:
    """`topology` is, of a schedule, the union of its rounds: what nodes hold sessions for. `rate`: the mixing rate, of
    a schedule the one of a static graph that would need as many rounds.
    """

    wanted: Wanted
    topology: Topology
    rate: float
    rounds: int | None
    sent: int | None
    schedule: bool = False

    @property
    def spec(self) -> str:
        return self.topology.spec

    @property
    def key(self) -> Key:
        return self.wanted.key_of(self.rate, self.topology.edge_count, self.sent)

    @property
    def named(self) -> bool:
        """Whether a federation file can ask for it by its spec; a graph that depends on the members' names differs."""
        return not self.spec.startswith(SEARCHED) and not FAMILIES[parse(self.spec).name].by_name

    @property
    def random(self) -> bool:
        """Whether the federation's seed decides what the spec gives."""
        return self.named and FAMILIES[parse(self.spec).name].random

    @cached_property
    def robust(self) -> Robustness | None:
        return None if self.schedule else robustness(self.topology)

    @cached_property
    def failures(self) -> tuple[str, ...]:
        """What it violates of all that is cheap to tell, in plain words; without the robustness."""
        wanted, found = self.wanted, []
        if component_count(self.topology) > 1:
            return ("it is not connected",)
        least, most = degree_range(self.topology)
        if most > wanted.highest:
            found.append(f"a node has {most} neighbors, and max-degree allows {wanted.highest}")
        if self.sent is not None and wanted.budget_bytes is not None and self.sent > wanted.budget_bytes:
            over = 100.0 * (self.sent / wanted.budget_bytes - 1.0)
            found.append(f"it sends {over:.3g} % more than budget-bytes allows")
        if wanted.byzantine and self.schedule:
            found.append("a node of a schedule hears too few neighbors in a round to discard a liar")
        elif least < wanted.lowest:
            found.append(f"a node has {least} neighbors where byzantine asks for {wanted.lowest}")
        elif wanted.byzantine and (points := cut_points(self.topology)) is not None and points.bridges:
            found.append("one edge holds two parts together")
        return tuple(found)

    @property
    def fragile(self) -> str:
        """Why it is not robust enough; empty where it is, or where that is unknown."""
        asked = self.wanted.robustness
        if not asked or self.robust is None or self.robust.upper >= asked:
            return ""
        return f"it is only {self.robust.upper}-robust where byzantine asks for {asked}"

    @property
    def proven(self) -> bool:
        """Whether it is known to be robust enough."""
        return not self.wanted.byzantine or (self.robust is not None and self.robust.lower >= self.wanted.robustness)


def candidate(wanted: Wanted, topology: Topology) -> Candidate:
    rate = rate_of(topology, wanted.weights)
    sent = wanted.bytes_sent(rate, topology.edge_count)
    return Candidate(wanted=wanted, topology=topology, rate=rate, rounds=wanted.rounds(rate), sent=sent)


def known_graphs(wanted: Wanted, tell: Tell = silent) -> Iterator[Candidate]:
    """The best draw of each family and choice of parameters that has a connected graph of this size.

    One whose degrees are wrong is told only where a formula gives its rate: it is not worth an eigensolver.
    """
    best: dict[str, Candidate] = {}
    choices = list(static_choices(wanted))
    for done, (spec, seed) in enumerate(choices):
        tell(f"looked at {done} of {len(choices)} graphs")
        try:
            topology = _made(wanted, spec, seed)
            if topology is None:
                continue
            least, most = degree_range(topology)
            if topology.formula is None and not wanted.lowest <= least <= most <= wanted.highest:
                continue
            if not topology.implicit and component_count(topology) > 1:
                continue
            found = candidate(wanted, topology)
        except TopologyError:
            continue  # no such graph of this size
        if spec not in best or (bool(found.failures), found.key) < (bool(best[spec].failures), best[spec].key):
            best[spec] = found
    yield from best.values()


def _made(wanted: Wanted, spec: str, seed: int) -> Topology | None:
    """The graph, or its formulas alone where it would be large and of no use; None where these are not known, or say
    that it is not connected.
    """
    if wanted.nodes <= SMALL:
        return build(spec, wanted.nodes, seed)
    parsed = parse(spec)
    family = FAMILIES[parsed.name]
    request = Request(spec=spec, nodes=wanted.nodes, parameters=parsed.parameters, seed=seed)
    most = min(DENSE, wanted.highest) * wanted.nodes
    if family.closed and (form := family.closed(request)) is not None:
        if form.edges > most or not wanted.lowest <= form.degrees[0] <= form.degrees[1] <= wanted.highest:
            return Topology(spec, wanted.nodes, None, seed, formula=form) if form.low > 0.0 else None
    elif family.expected and family.expected(request) > most:
        return None
    return build(spec, wanted.nodes, seed)


def known_schedules(wanted: Wanted) -> Iterator[Candidate]:
    """Undirected schedules that reach consensus."""
    for spec, seed in schedule_choices(wanted):
        try:
            schedule = build_schedule(spec, wanted.nodes, seed)
            facts = describe_schedule(schedule, wanted.epsilon)
        except TopologyError:
            continue  # no such schedule of this size
        rounds, messages = facts["rounds_to_consensus"], facts["messages_to_consensus"]
        if rounds:
            yield Candidate(
                wanted=wanted,
                topology=schedule.union(),
                rate=wanted.epsilon ** (1.0 / rounds),
                rounds=rounds,
                sent=messages * wanted.model_bytes,
                schedule=True,
            )
