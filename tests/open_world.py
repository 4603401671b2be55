"""A world of exact engines in which every vector is known at any time; its oracle watches every event."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from p2pfl.aggregate import Rule
from p2pfl.compress import Compressor
from p2pfl.config import Edges
from p2pfl.core import Conservative, Event, Profile, Robust, Settings
from p2pfl.engine import Codecs, fragments_of
from p2pfl.learn import Learner
from p2pfl.methods import Method
from sim import NS, Cluster, ExactEngine, ExactPlan, LinkSpec, SlowNodes, Surroundings, all_neighbors
from tests.invariants import check_invariants

sys.path.insert(0, str(Path(__file__).parent))
from oracle import Oracle


@dataclass(frozen=True, slots=True)
class ConstantPace:
    """Every round takes as long."""

    ns: int

    def round_ns(self, steps: int) -> int:
        return self.ns

    def estimate_ns(self, steps: int) -> int:
        return self.ns


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenPlan:
    """`round_s` and `start_s` map a node to its round's duration and its start; absent: the default, 0.

    `members`: how many there are at the start; None: as many as there are learners.
    """

    edges: Edges
    later_edges: Edges = ()
    """Those that the graph may have later on."""
    schedule: tuple[Edges, ...] = ()
    learners: tuple[Learner, ...]
    settings: Settings
    compressor: Compressor
    edge_compressors: Mapping[tuple[int, int], Compressor] = field(default_factory=dict)
    shares: Mapping[tuple[int, int], float] = field(default_factory=dict)
    """The mixing weight of each edge, if the graph's file has weights."""
    method: Method = field(default_factory=Method)
    rule: Rule | None = None
    """That of the robust profile, with one liar; None: the conservative one."""
    dtype: type[np.floating] = np.float32
    links: LinkSpec = field(default_factory=LinkSpec)
    slow: tuple[SlowNodes, ...] = ()
    seed: int = 0
    default_round_s: float = 0.05
    round_s: Mapping[int, float] = field(default_factory=dict)
    start_s: Mapping[int, float] = field(default_factory=dict)
    engine_s: float = 0.0005
    members: int | None = None

    @property
    def all_edges(self) -> Edges:
        return tuple(sorted({*self.edges, *self.later_edges}))

    def compressor_of(self, i: int, j: int) -> Compressor:
        return self.edge_compressors.get((min(i, j), max(i, j)), self.compressor)

    def codecs_of(self, index: int, peers: Sequence[int]) -> Codecs:
        return Codecs(self.compressor, {peer: self.compressor_of(index, peer) for peer in peers})

    def gammas_of(self, index: int, peers: Sequence[int]) -> Mapping[int, float]:
        """By neighbor, the step that goes well with the compressor of that edge."""
        size = self.learners[0].size * len(self.method.channels)
        return {peer: self.compressor_of(index, peer).gamma(size) for peer in peers}

    def profile(self, index: int, gammas: Mapping[int, float]) -> Profile:
        if self.rule is not None:
            return Robust(liars=1, least=self.rule.least)
        shares = {i + j - index: share for (i, j), share in self.shares.items() if index in (i, j)}
        return Conservative(gammas=gammas, shares=shares)


class OpenWorld(Cluster):
    """A world of exact engines with its oracle, every invariant checked after every event."""

    def __init__(self, plan: OpenPlan) -> None:
        self.plan = plan
        count, size = len(plan.learners), plan.learners[0].size * len(plan.method.channels)
        neighbors = all_neighbors(count, plan.edges)
        engines = [
            ExactEngine(
                ExactPlan(
                    index=index,
                    neighbors=neighbors[index],
                    learner=learner,
                    codecs=plan.codecs_of(index, neighbors[index]),
                    method=plan.method,
                    rule=plan.rule,
                    dtype=plan.dtype,
                )
            )
            for index, learner in enumerate(plan.learners)
        ]
        around = all_neighbors(count, plan.all_edges)
        gammas = [plan.gammas_of(index, around[index]) for index in range(count)]
        self.oracle = Oracle(engines, plan.all_edges, gammas)
        self.oracle.members = set(range(count if plan.members is None else plan.members))
        super().__init__(
            Surroundings(
                body_bytes={edge: plan.compressor_of(*edge).size_bytes(size) for edge in plan.all_edges},
                edges=plan.edges,
                schedule=plan.schedule,
                links=plan.links,
                slow=plan.slow,
                seed=plan.seed,
                start_ns={index: round(start_s * NS) for index, start_s in plan.start_s.items()},
                engine_ns=round(plan.engine_s * NS),
            ),
            engines,
            settings=[
                replace(
                    plan.settings,
                    profile=plan.profile(index, some),
                    fragments=fragments_of(plan.codecs_of(index, around[index]), around[index]),
                )
                for index, some in enumerate(gammas)
            ],
            paces=[ConstantPace(round(plan.round_s.get(index, plan.default_round_s) * NS)) for index in range(count)],
            steps=[1] * count,
        )
        self.watch_by(self.oracle)

    def deliver(self, index: int, event: Event) -> None:
        super().deliver(index, event)
        if self.hosts[index].alive:
            check_invariants(self.hosts[index].core)

    def go(self, *, until_s: float, finish: bool = True) -> None:
        self.run(until_ns=round(until_s * NS), finish=finish)

    def crash(self, index: int, *, amnesia: bool = False, kept: int = 0) -> None:
        if self.hosts[index].alive:
            self.oracle.crashes(index, kept)
            super().crash(index, kept=kept)
            if amnesia:
                self.oracle.forgets(index, self.forget)
