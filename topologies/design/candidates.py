"""Candidates for a design: members of the known families, their costs, and whether they meet the goal.

Parameters are chosen to suit a number of nodes and a degree; a family without an entry in the table of choices is tried
without parameters.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations
from random import Random

import numpy as np

from topologies.building import build, build_schedule, parse
from topologies.design.goal import DENSE_LIMIT, LAMBDA_2, Goal, Key, Over, never, rate_between, rate_of
from topologies.eigen.extremes import Tell, silent
from topologies.errors import TopologyError
from topologies.families import FAMILIES, GraphKind, GraphRequest
from topologies.graph import Topology, component_count
from topologies.laplacian import Laplacian
from topologies.metrics import degree_range
from topologies.metrics.cuts import cut_points
from topologies.metrics.describe import describe_schedule
from topologies.metrics.robustness import Robustness, robustness
from topologies.spectral import EPSILON, plain_extremes

SEEDS = 5
DRAWN = 200
"""Up to this many nodes each random family is drawn `SEEDS` times, if not asked otherwise; on larger graphs once."""
SMALL = 500
DEGREES = 12
"""How many values are tried for a parameter that sets the degree; half as many above `SMALL` nodes."""
CIRCULANTS = 2_000
"""The maximum number of offset sets tried for each number of offsets."""
OFFSETS_LIMIT = 8
CIRCULANT_NODES = 2_000


def static_choices(goal: Goal) -> Iterator[tuple[str, int]]:
    """Yield specs with seeds, in family order. Some have no graph of this size: building them raises an error."""
    for name, family in FAMILIES.items():
        if family.kind is not GraphKind.STATIC:
            continue
        settings = CHOICES[name](goal) if name in CHOICES else [""]
        seeds = range(goal.seed, goal.seed + (SEEDS if goal.nodes <= DRAWN else 1)) if family.random else [0]
        for setting in settings:
            for seed in seeds:
                yield (f"{name}:{setting}" if setting else name), seed


def schedule_choices(goal: Goal) -> Iterator[tuple[str, int]]:
    """Yield specs with seeds of the undirected schedules."""
    for name, family in FAMILIES.items():
        if family.kind is GraphKind.SCHEDULE:
            several = "k" in family.parameters
            for setting in [f"k={k}" for k in range(1, min(5, goal.highest) + 1)] if several else [""]:
                yield (f"{name}:{setting}" if setting else name), goal.seed


def _spread(low: int, high: int, step: int, most: int) -> list[int]:
    """Return at most `most` values from `low` to `high`, both included."""
    values = list(range(low, high + 1, step))
    if len(values) <= most:
        return values
    return sorted({values[round(i * (len(values) - 1) / (most - 1))] for i in range(most)})


def _degrees(goal: Goal, low: int, step: int = 1) -> list[int]:
    if goal.nodes <= SMALL:
        return _spread(low, goal.highest, step, DEGREES)
    return _spread(low, min(goal.highest, 32), step, DEGREES // 2)


def circulants(goal: Goal) -> Iterator[str]:
    """Yield the fastest set of offsets found for each degree."""
    n = goal.nodes
    if not 3 <= n <= CIRCULANT_NODES:
        return
    half = (n - 1) // 2
    waves = np.outer(np.arange(1, n // 2 + 1), np.arange(n // 2 + 1)) % n
    gaps = 4.0 * np.sin(np.pi * waves / n) ** 2
    if n % 2 == 0:
        gaps[:, -1] /= 2.0
    for count in range(1, min(OFFSETS_LIMIT, half, goal.highest // 2) + 1):
        drawn = np.array(list(_offset_sets(half, count, Random(goal.seed))))
        for extra in (), (n // 2,):
            degree = 2 * count + len(extra)
            if degree <= goal.highest and (not extra or n % 2 == 0):
                best = _fastest(gaps, drawn, extra, goal.matrix)
                yield "offsets=" + "-".join(map(str, sorted((*drawn[best].tolist(), *extra))))


def _offset_sets(half: int, count: int, rng: Random) -> Iterable[tuple[int, ...]]:
    if math.comb(half, count) <= CIRCULANTS:
        return combinations(range(1, half + 1), count)
    return (tuple(sorted(rng.sample(range(1, half + 1), count))) for _ in range(CIRCULANTS))


def _fastest(
    gaps: np.ndarray[tuple[int, ...], np.dtype[np.float64]],
    drawn: np.ndarray[tuple[int, ...], np.dtype[np.int64]],
    extra: tuple[int, ...],
    weights: str,
) -> int:
    """Return the row of the fastest set in `drawn` (sets, count); eigenvalues are the sums of `gaps` over
    its offsets.
    """
    scale = 1.0 if weights in {"best-constant", LAMBDA_2} else 1.0 / (2 * drawn.shape[1] + len(extra) + 1)
    rates = []
    for offsets in drawn:
        values = gaps[:, [*offsets.tolist(), *extra]].sum(axis=1)
        rates.append(rate_between(scale * float(values.min()), scale * float(values.max()), weights))
    return int(np.argmin(np.round(rates, 12)))


CHOICES: Mapping[str, Callable[[Goal], Iterable[str]]] = {
    "random-regular": lambda goal: [f"degree={degree}" for degree in _degrees(goal, 2)],
    "circulant": circulants,
    "watts-strogatz": lambda goal: [f"k={k},p={p}" for k in _degrees(goal, 2, 2) for p in (0.1, 0.5)],
    "keyed-rings": lambda goal: [f"r={degree // 2}" for degree in _degrees(goal, 2, 2)],
    "barabasi-albert": lambda goal: [f"m={m}" for m in _degrees(goal, 1)[:4]],
    "d-cliques": lambda goal: [f"size={size}" for size in _degrees(goal, 3)[:6]],
}


SEARCHED = "searched"
"""The first word of the spec of a graph that belongs to no family."""

DENSE = 40
"""Edges per node: above `SMALL` nodes, a denser graph is judged by its formulas or not at all."""


@dataclass(eq=False, kw_only=True)
class GraphCandidate:
    """A graph with its costs. For a schedule `topology` is the union of its rounds, which needs sessions.

    `rate` is the mixing rate; for a schedule, that of a static graph that would need as many rounds.
    """

    goal: Goal
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
        return self.goal.key_of(self.measure, self.topology.edge_count, self.sent)

    @property
    def measure(self) -> float:
        """The rate, or the seconds, or where lambda_2 is the criterion what stands for it; lower is better."""
        if self.goal.by_time:
            return math.inf if self.seconds is None else self.seconds
        return rate_between(self.lambda_2 or 0.0, 0.0, LAMBDA_2) if self.goal.maximize else self.rate

    @cached_property
    def seconds(self) -> float | None:
        """The seconds to consensus; None where nothing says how far nodes are, and for a schedule."""
        if self.goal.distances is None or self.schedule or self.topology.implicit:
            return None
        return self.goal.seconds(self.topology.ends)

    @cached_property
    def lambda_2(self) -> float | None:
        """The algebraic connectivity; None for a schedule, which never has all its edges at once."""
        if self.schedule:
            return None
        if self.topology.formula is not None or self.topology.nodes > DENSE_LIMIT:
            return plain_extremes(self.topology).low
        if component_count(self.topology) > 1:
            return 0.0
        return float(np.linalg.eigvalsh(Laplacian.plain(self.topology).dense())[1])

    @property
    def named(self) -> bool:
        """True if a federation file can name it by its spec; a graph that depends on the members' names differs."""
        if self.goal.given is not None or self.spec.startswith(SEARCHED):
            return False
        return not FAMILIES[parse(self.spec).name].by_name

    @property
    def random(self) -> bool:
        """True if the federation's seed determines the graph of the spec."""
        return self.named and FAMILIES[parse(self.spec).name].random

    @cached_property
    def robust(self) -> Robustness | None:
        return None if self.schedule else robustness(self.topology)

    @cached_property
    def failures(self) -> tuple[str, ...]:
        """Describe violated requirements that are cheap to check, in plain words; without robustness."""
        goal, found = self.goal, []
        if component_count(self.topology) > 1:
            return ("it is not connected",)
        least, most = degree_range(self.topology)
        if most > goal.highest:
            found.append(f"a node has {most} neighbors, and max-degree allows {goal.highest}")
        if goal.byzantine and self.schedule:
            found.append("a node of a schedule hears too few neighbors in a round to discard a liar")
        elif least < goal.lowest:
            found.append(f"a node has {least} neighbors where byzantine asks for {goal.lowest}")
        elif goal.byzantine and (points := cut_points(self.topology)) is not None and points.bridges:
            found.append("one edge holds two parts together")
        return tuple(found)

    @property
    def fragile(self) -> str:
        """Say why it is not robust enough; empty if it is, or if that is unknown."""
        asked = self.goal.robustness
        if not asked or self.robust is None or self.robust.upper >= asked:
            return ""
        return f"it is only {self.robust.upper}-robust where byzantine asks for {asked}"

    @property
    def proven(self) -> bool:
        """True if it is known to be robust enough."""
        return not self.goal.byzantine or (self.robust is not None and self.robust.lower >= self.goal.robustness)


def candidate(goal: Goal, topology: Topology) -> GraphCandidate:
    rate = rate_of(topology, goal.weights)
    sent = goal.bytes_sent(rate, topology.edge_count)
    return GraphCandidate(goal=goal, topology=topology, rate=rate, rounds=goal.rounds(rate), sent=sent)


def known_graphs(goal: Goal, tell: Tell = silent, over: Over = never, draws: int = SEEDS) -> Iterator[GraphCandidate]:
    """Yield the best of the `draws` of each family and choice of parameters that has a connected graph of this size.

    A graph with wrong degrees is yielded only where a formula gives its rate: it is not worth an eigensolver.
    """
    best: dict[str, GraphCandidate] = {}
    choices = [(spec, seed) for spec, seed in static_choices(goal) if seed < goal.seed + draws]
    for done, (spec, seed) in enumerate(choices):
        tell(f"looked at {done} of {len(choices)} graphs")
        if best and over():
            break
        try:
            topology = _build_connected(goal, spec, seed)
            if topology is None:
                continue
            least, most = degree_range(topology)
            if topology.formula is None and not goal.lowest <= least <= most <= goal.highest:
                continue
            if not topology.implicit and component_count(topology) > 1:
                continue
            found = candidate(goal, topology)
        except TopologyError:
            continue  # no such graph of this size
        if spec not in best or (bool(found.failures), found.key) < (bool(best[spec].failures), best[spec].key):
            best[spec] = found
    yield from best.values()


def _build_connected(goal: Goal, spec: str, seed: int) -> Topology | None:
    """Build the graph, or its formulas alone if it is large and unfit; None if these are unknown or disconnected."""
    if goal.nodes <= SMALL:
        return build(spec, goal.nodes, seed)
    parsed = parse(spec)
    family = FAMILIES[parsed.name]
    request = GraphRequest(spec=spec, nodes=goal.nodes, parameters=parsed.parameters, seed=seed)
    most = min(DENSE, goal.highest) * goal.nodes
    if family.closed and (form := family.closed(request)) is not None:
        if form.edges > most or not goal.lowest <= form.degrees[0] <= form.degrees[1] <= goal.highest:
            return Topology(spec, goal.nodes, None, seed, formula=form) if form.low > 0.0 else None
    elif family.expected and family.expected(request) > most:
        return None
    return build(spec, goal.nodes, seed)


def known_schedules(goal: Goal) -> Iterator[GraphCandidate]:
    """Yield undirected schedules that reach consensus."""
    for spec, seed in schedule_choices(goal):
        try:
            schedule = build_schedule(spec, goal.nodes, seed)
            facts = describe_schedule(schedule)
        except TopologyError:
            continue  # no such schedule of this size
        rounds, messages = facts["rounds_to_consensus"], facts["messages_to_consensus"]
        if rounds:
            yield GraphCandidate(
                goal=goal,
                topology=schedule.union(),
                rate=EPSILON ** (1.0 / rounds),
                rounds=rounds,
                sent=messages * goal.model_bytes,
                schedule=True,
            )
