"""A federation in the simulator in which all neighbors of one node collude: the shipped engines, one at a time."""

from __future__ import annotations

from collections.abc import Sequence

from p2pfl.config.model import FederationConfig
from p2pfl.core.effects import Operation
from p2pfl.learn.interface import Learner
from p2pfl.learn.methods import method_of
from sim.audits.observation import Eye, Observation, is_lossless
from sim.exact import ExactEngine
from sim.kernel import NS
from sim.learning.nodes import Learners
from sim.machine import Watch
from sim.prepared_run import PreparedRun, script
from sim.worlds.drawn import settle
from sim.worlds.model import ComputeSpec, LinkSpec, Spread, WorldSpec

AT_ONCE = WorldSpec(
    links=LinkSpec(latency_s=Spread(low=0.0, high=0.0)), compute=ComputeSpec(engine_s=0.0), limit_s=10_000.0
)
"""A world in which colluding neighbors answer at once, so that every exchange is over before a local round ends."""


class _Watching(Watch):
    """Shows an eye what each host has done."""

    def __init__(self, eye: Eye, engines: Sequence[ExactEngine]) -> None:
        self.eye, self.engines = eye, engines

    def after(self, index: int, operation: Operation) -> None:
        self.eye.look(index, self.engines[index].state, operation)


def observe_simulated(
    federation: FederationConfig, learners: Sequence[Learner], victim: int, world: WorldSpec = AT_ONCE
) -> Observation:
    """Run `federation` in virtual time with these `learners`, one for each member, and watch `victim` from all its
    neighbors. Raises LearningError if the task failed.
    """
    spec = settle(world, len(federation.members), federation.seed)
    everyone = Learners(learners, method_of(federation))
    stage = PreparedRun(script(federation, spec, everyone))
    hosts = stage.world.hosts
    eye = Eye(victim, federation.neighbors(victim), learners[victim].samples)
    stage.watch_by(_Watching(eye, [host.engine for host in hosts]))
    stage.world.run(until_ns=round(spec.limit_s * NS))
    return Observation(
        victim=victim,
        initial=everyone.initial(),
        sightings=eye.sightings,
        models=stage.models(),
        lossless=is_lossless(federation),
    )
