"""A liar as an application: the shipped runtime with another engine, other data, or a flood on every session."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from p2pfl.config.load import find_member
from p2pfl.config.model import FederationConfig
from p2pfl.core.limits import ResyncBrake
from p2pfl.engine.codecs import Forgery, Occasion
from p2pfl.engine.engine import Engine
from p2pfl.engine.state import NodeState
from p2pfl.learn.interface import Vector
from p2pfl.net.links import Links
from p2pfl.runtime import parts
from p2pfl.runtime.app import Application
from p2pfl.runtime.driver import Driver
from p2pfl.runtime.parts import Setup
from sim.attackers.flood import Flood
from sim.attackers.poisoned import poisoned
from sim.attacks import Attack, Sight, boast, passable


class Deceiver:
    """Makes a liar of an `engine`. `league` are the liars, itself among them; `initial` (d,) is the model that every
    node starts from.

    In the robust profile it also says that it has more samples than anybody.
    """

    def __init__(
        self, engine: Engine, *, attack: Attack, federation: FederationConfig, league: frozenset[int], initial: Vector
    ) -> None:
        self.engine, self.attack, self.federation = engine, attack, federation
        self.league, self.initial = league, initial
        self.count = 0
        engine.show, engine.claim = self.show, self.claim

    def show(self, model: Vector, peer: int, occasion: Occasion) -> Vector | Forgery:
        del occasion
        shown = self.attack.tell(self.sight(model, peer))
        self.count += 1
        return passable(shown, model.size, self.engine.codecs.of(peer))

    def claim(self, weight: float) -> float:
        return weight if self.engine.rule is None else boast(weight)

    def sight(self, model: Vector, peer: int) -> Sight:
        """What a real neighbor sees: the latest replicas on its own edges, and what the federation's file says."""
        state = self.engine.state
        return Sight(
            node=self.engine.index,
            peer=peer,
            own=model,
            initial=self.initial,
            models={other: edge.peer for other, edge in state.edges.items() if edge.record.seq},
            liars=self.league,
            edges=self.federation.edges,
            rule=self.federation.gossip.rule,
            rounds=state.rounds,
            count=self.count,
            seed=self.federation.seed,
        )


class Tireless(ResyncBrake):
    """An honest node rests where an edge keeps falling apart; a liar that is refused tries again."""

    def count(self, now: float) -> bool:  # noqa: ARG002 - what it stands for asks
        return False


class Liar(Application):
    """`league` names the other liars.

    Its log is not kept: what it has sent need not be readable, and a restarted liar begins its edges anew.
    Raises UserError: a liar that is no member, or data that cannot be poisoned.
    """

    def __init__(self, setup: Setup, *, attack: Attack, league: Sequence[str] = (), **rest: Any) -> None:
        self.attack = attack
        self.league = frozenset(find_member(setup.federation, other).index for other in league) | {setup.member.index}
        learner = setup.learner if attack.poison is None else poisoned(setup.learner, attack.poison)
        super().__init__(replace(setup, learner=learner, durability="snapshot"), **rest)

    def _engine_of(self, recovered: NodeState | None) -> Engine:
        engine = parts.make_engine(self.setup, recovered)
        Deceiver(
            engine,
            attack=self.attack,
            federation=self.setup.federation,
            league=self.league,
            initial=self.setup.learner.initial(),
        )
        return engine

    def _begin(self, driver: Driver, links: Links) -> None:
        for edge in driver.core.edges.values():
            edge.line.brake = Tireless()
        super()._begin(driver, links)
        if self.attack.flood:
            self.flood = asyncio.create_task(Flood(driver, links).run())
