"""Real nodes in this process, with real sockets, and a spy next to the engine of each neighbor of one of them."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from p2pfl.config.model import FederationConfig
from p2pfl.core.effects import Operation
from p2pfl.engine.engine import Engine, Outcome
from p2pfl.engine.state import NodeState
from p2pfl.features import FEATURES
from p2pfl.features.status.feature import Shown
from p2pfl.fleet.fleet import STOPPED, Child
from p2pfl.fleet.one_process import InProcessFleet, _with_keys
from p2pfl.node.application import Application, OneProcess
from p2pfl.node.assembly import Setup
from p2pfl.node.driver import Driver
from p2pfl.reporting.status import NodeResult
from p2pfl.reporting.vitals import Vitals
from sim.audits.observation import Eye, Observation, is_lossless


class Spied(Application):
    """The shipped application, with a spy that only watches what its engine does and what it sends."""

    eye: Eye
    vitals: list[Vitals]

    def _engine_of(self, recovered: NodeState | None) -> Engine:
        engine = super()._engine_of(recovered)
        run = engine.run

        def watched(operation: Operation) -> Outcome:
            outcome = run(operation)
            self.eye.look(engine.index, engine.state, operation)
            return outcome

        engine.run = watched  # type: ignore[method-assign]
        self.last_engine = engine
        return engine

    async def _conclude(self, engine: Engine, driver: Driver) -> NodeResult:
        """Ask the victim for its latest vitals: a short run may be over before any has reached a spy."""
        shown = self.attached.of(Shown)
        if self.setup.member.index == self.eye.victim and shown.display.tells:
            self.vitals.append(shown.display.own_row.vitals())
        return await super()._conclude(engine, driver)


@dataclass(slots=True)
class SpiedFleet(InProcessFleet):
    """All nodes with spies. `applications` are by member index."""

    eye: Eye | None = None
    vitals: list[Vitals] = field(default_factory=list)
    applications: dict[int, Spied] = field(default_factory=dict)

    async def _run_one(self, child: Child, setup: Setup, shared: OneProcess) -> None:
        application = Spied(setup, on_line=child.lines.append, sketched=True, shared=shared, features=FEATURES)
        if self.eye is None:
            raise AssertionError("nobody watches")
        application.eye, application.vitals = self.eye, self.vitals
        self.applications[setup.member.index] = application
        result = await application.run()
        child.exit_code = 0 if result is not None and result.finished else STOPPED


def observe_real(federation: FederationConfig, victim: int) -> Observation:
    """Run all nodes of `federation` in this process, over loopback, and watch `victim` from all its neighbors.

    Raises UserError if the task or its data are wrong, LearningError if the task failed.
    """
    with tempfile.TemporaryDirectory(prefix="p2pfl-audit-") as folder:
        together = SpiedFleet(*_with_keys(federation), Path(folder))
        setups = together.prepare()
        eye = together.eye = Eye(victim, federation.neighbors(victim), setups[victim].learner.samples)
        asyncio.run(together.run(setups))
        return _observed(together, eye, setups)


def _observed(together: SpiedFleet, eye: Eye, setups: Sequence[Setup]) -> Observation:
    engines = [together.applications[setup.member.index].last_engine for setup in setups]
    models = np.stack([engine.state.model for engine in engines])
    return Observation(
        victim=eye.victim,
        initial=setups[0].learner.initial(),
        sightings=eye.sightings,
        models=models,
        lossless=is_lossless(together.federation),
        vitals=tuple(together.vitals),
    )
