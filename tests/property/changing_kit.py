"""Worlds in which members come and go, and edges with them: charters, and who hears of each when."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial

import numpy as np
from hypothesis import strategies as st
from world_kit import D, OpenPlan, OpenWorld, StillLearner, core_settings

from p2pfl.compress import make_compressor
from p2pfl.config import Edges
from p2pfl.core import Conservative, turns_of
from p2pfl.methods import Method
from sim import LinkSpec

SHAPES = ("ring", "path", "star", "complete", "turning")
FIRST = 3
"""Members at the start."""

OPERATIONS = st.lists(
    st.tuples(
        st.floats(0.2, 3.0),
        st.sampled_from(["join", "leave", "edges", "edges"]),
        st.sampled_from(SHAPES),
        st.integers(0, 1000),
        st.lists(st.floats(0.0, 0.6), min_size=3, max_size=3),
    ),
    min_size=1,
    max_size=5,
)
"""When, what, the graph from then on, whom it is about, and how long until who hears of it."""


@dataclass(frozen=True, kw_only=True)
class Charter:
    """`rounds_of_edges` are those of each round of a period."""

    at_s: float
    members: tuple[int, ...]
    retired: frozenset[int]
    ever: int
    rounds_of_edges: tuple[Edges, ...]
    rounds: int
    delays: tuple[float, ...] = (0.0,)

    @property
    def edges(self) -> Edges:
        return tuple(sorted({edge for edges in self.rounds_of_edges for edge in edges}))

    def neighbors(self, index: int) -> tuple[int, ...]:
        return tuple(sorted(b if a == index else a for a, b in self.edges if index in (a, b)))

    def delay_s(self, index: int) -> float:
        return self.delays[index % len(self.delays)]


def graph(shape: str, members: tuple[int, ...]) -> tuple[Edges, ...]:
    """The edges of each round."""
    count = len(members)
    ring = {(members[k], members[(k + 1) % count]) for k in range(count)} if count > 1 else set()
    match shape:
        case "path":
            found = [{(members[k], members[k + 1]) for k in range(count - 1)}]
        case "star":
            found = [{(members[0], other) for other in members[1:]}]
        case "complete":
            found = [{(a, b) for a in members for b in members if a < b}]
        case "turning":
            found = [{edge} for edge in sorted(ring)] or [set()]
        case _:
            found = [ring]
    return tuple(tuple(sorted({(min(edge), max(edge)) for edge in edges})) for edges in found)


def charters(shape, operations, *, rounds=10**6, first=FIRST):
    """The one at the start, then one for each operation; of the last two members none leaves."""
    members = tuple(range(first))
    found = [
        Charter(
            at_s=0.0,
            members=members,
            retired=frozenset(),
            ever=first,
            rounds_of_edges=graph(shape, members),
            rounds=rounds,
        )
    ]
    for at_s, kind, shape_then, which, delays in sorted(operations, key=lambda operation: operation[0]):
        last = found[-1]
        members, retired, ever = last.members, last.retired, last.ever
        if kind == "join":
            members, ever = (*members, ever), ever + 1
        elif kind == "leave" and len(members) > 2:
            gone = members[which % len(members)]
            members, retired = tuple(one for one in members if one != gone), retired | {gone}
        found.append(
            Charter(
                at_s=at_s,
                members=members,
                retired=retired,
                ever=ever,
                rounds_of_edges=graph(shape_then, members),
                rounds=which if kind == "rounds" else last.rounds,
                delays=tuple(delays),
            )
        )
    return found


class ChangingWorld(OpenWorld):
    """Who is up hears of each charter with its delay, and who is not when it starts; newcomers start when they join.

    `hasty`: rounds are short, and exchanges take most of the time.
    """

    def __init__(self, found, *, seed, link=None, learners=None, hasty=False, method=None, **changes):
        self.charters = found
        chance, ever = np.random.default_rng(seed), found[-1].ever
        counts = [int(n) for n in chance.integers(1, 200, ever)]
        joins = {
            index: next(1e-6 + charter.at_s + charter.delay_s(index) for charter in found if index in charter.members)
            for index in range(found[0].ever, ever)
        }
        later = {edge for charter in found for edge in charter.edges}
        super().__init__(
            OpenPlan(
                edges=found[0].edges,
                later_edges=tuple(sorted(later)),
                schedule=_schedule(found[0]),
                learners=learners or tuple(StillLearner(chance.normal(size=D) * 3, n) for n in counts),
                settings=core_settings(
                    **({"rounds": found[0].rounds, "linger_s": 1e6, "members": found[0].ever} | changes)
                ),
                compressor=make_compressor("q8"),
                dtype=np.float64,
                links=link or LinkSpec(),
                seed=seed,
                round_s={0: 0.001 if hasty else 0.02, 1: 0.05 if hasty else 0.3},
                default_round_s=0.002 if hasty else 0.05,
                engine_s=0.01 if hasty else 0.0005,
                start_s=joins,
                method=method or Method(),
                members=found[0].ever,
            )
        )
        self.heard = dict.fromkeys(range(ever), 0)
        """The latest charter that each node has heard of."""
        for number, charter in enumerate(found[1:], start=1):
            for index in range(ever):
                self.kernel.at(charter.at_s + charter.delay_s(index), partial(self.hear, index, number))

    def hear(self, index, number):
        """A charter, of which the newest counts."""
        if number <= self.heard[index]:
            return
        self.heard[index] = number
        if index >= self.charters[number].ever:
            return
        charter, host = self.charters[number], self.hosts[index]
        gammas = self.plan.gammas_of(index, charter.neighbors(index))
        settings = replace(
            self.plan.settings,
            rounds=charter.rounds,
            members=charter.ever,
            retired=charter.retired,
            profile=Conservative(gammas=gammas),
        )
        turns = turns_of(index, _schedule(charter))
        self.amend(index, replace(host.plan, neighbors=charter.neighbors(index), turns=turns, settings=settings))

    def start(self, index):
        """From the disk or from nothing, by the newest charter that is known there; who was removed stays off."""
        host, oracle = self.hosts[index], self.oracle
        if index in host.plan.settings.retired:
            return
        if index not in oracle.members:
            oracle.book(lambda: oracle.members.add(index))
        gone = [peer for peer in host.engine.state.edges if peer not in host.plan.neighbors]
        oracle.drops(index, gone)
        before = oracle.total()
        super().start(index)
        moved = oracle.total() - before
        oracle.booked, oracle.lost = oracle.booked + moved, oracle.lost + moved

    def part(self):
        """Those who were removed do not count any more once all have heard so and nobody has an edge to them."""
        oracle = self.oracle
        heard = self.charters[min(self.heard.values())]
        for index in sorted(heard.retired & oracle.members):
            if not any(index in self.hosts[other].engine.state.edges for other in oracle.members - {index}):
                oracle.book(partial(oracle.members.discard, index))

    def step(self):
        """One event; False where there is none."""
        went = self.kernel.step()
        self.part()
        return went

    @property
    def members(self):
        """The hosts of those who are members by the newest charter."""
        return [self.hosts[index] for index in self.charters[-1].members]

    @property
    def in_force(self):
        """Whether everybody goes by the newest charter."""
        last = self.charters[-1]
        return all(
            host.alive
            and host.core.amending.pending_change is None
            and tuple(host.core.edges) == last.neighbors(host.index)
            and all(edge.is_open for edge in host.core.edges.values())
            for host in self.members
        )

    @property
    def settled(self):
        """Whether nothing is on its way besides."""
        edges = [edge.exchange for host in self.members if host.alive for edge in host.core.edges.values()]
        return self.in_force and all(edge.record.pending is None and not edge.busy for edge in edges)


def _schedule(charter: Charter) -> tuple[Edges, ...]:
    return charter.rounds_of_edges if len(charter.rounds_of_edges) > 1 else ()
