"""A liar as an application: the shipped node with another engine, other data, or a flood on every session.

A flood sends messages and exchanges as fast as the links accept them, beyond the limits that an honest node observes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from p2pfl.config.load import find_member
from p2pfl.config.model import FederationConfig
from p2pfl.core.edge import Edge
from p2pfl.core.limits import ResyncLimit
from p2pfl.core.messages import Message, Ready
from p2pfl.engine.engine import Engine, Forgery, Occasion
from p2pfl.engine.state import NodeState
from p2pfl.learn.interface import Vector
from p2pfl.net.links import Links
from p2pfl.net.outbox import Outbox
from p2pfl.node import assembly
from p2pfl.node.application import Application
from p2pfl.node.assembly import Setup
from p2pfl.node.driver import Driver
from sim.attacks import Attack, Sight, boast, passable
from sim.attacks.attack import Climb
from sim.attacks.lies import slope_for
from sim.attacks.poison import poisoned

PAUSE_S = 0.001
WAITING = 64
"""Messages kept in a session's queue, which is never empty but has room for what the node itself sends."""


class Deceiver:
    """The lies that turn an `engine` into a liar's. `league` contains all liars, including this one.

    `initial` (d,) is the model that every node starts from. `slope` is the loss on the liar's own data, for attacks
    that climb it. In the robust profile the liar also claims more samples than any other node.
    """

    def __init__(
        self,
        engine: Engine,
        *,
        attack: Attack,
        federation: FederationConfig,
        league: frozenset[int],
        initial: Vector,
        slope: Climb | None = None,
    ) -> None:
        self.engine, self.attack, self.federation = engine, attack, federation
        self.league, self.initial, self.slope = league, initial, slope
        self.count = 0
        engine.show, engine.claim = self.show, self.claim

    def show(self, model: Vector, peer: int, occasion: Occasion) -> Vector | Forgery:
        del occasion
        shown = self.attack.tell(self.sight(model, peer))
        self.count += 1
        return passable(shown, model.size, self.engine.codecs.of(peer))

    def claim(self, weight: float) -> float:
        return weight if self.engine.mixer is None else boast(weight)

    def sight(self, model: Vector, peer: int) -> Sight:
        """Return what a real neighbor sees: the latest replicas on its own edges, and the federation's file."""
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
            slope=self.slope,
        )


class Tireless(ResyncLimit):
    """A liar's retries. An honest node rests if an edge keeps failing; a refused liar tries again."""

    def count(self, now: float) -> bool:  # noqa: ARG002 - what it stands for asks
        return False


class Liar(Application):
    """The application of a liar; `league` names the other liars.

    Its log is not kept: what it has sent need not be readable, and a restarted liar restarts its edges. Raises
    UserError if the liar is not a member, or its data cannot be poisoned.
    """

    def __init__(self, setup: Setup, *, attack: Attack, league: Sequence[str] = (), **rest: Any) -> None:
        self.attack = attack
        self.league = frozenset(find_member(setup.federation, other).index for other in league) | {setup.member.index}
        learner = setup.learner if attack.poison is None else poisoned(setup.learner, attack.poison)
        super().__init__(replace(setup, learner=learner, durability="snapshot"), **rest)

    def _engine_of(self, recovered: NodeState | None) -> Engine:
        engine = assembly.make_engine(self.setup, recovered)
        Deceiver(
            engine,
            attack=self.attack,
            federation=self.setup.federation,
            league=self.league,
            initial=self.setup.learner.initial(),
            slope=slope_for(self.attack, self.setup.learner),
        )
        return engine

    def _begin(self, driver: Driver, links: Links) -> None:
        for edge in driver.core.edges.values():
            edge.line.resync_limit = Tireless()
        super()._begin(driver, links)
        if self.attack.flood:
            self.flood = asyncio.create_task(Flood(driver, links).run())


class Flood:
    """A flood of messages; `run` never returns.

    It says Ready over and over, each time with a newer version, repeats the pending request, and begins the next
    exchange as soon as one is over, whether or not there is anything new to send.
    """

    def __init__(self, driver: Driver, links: Links) -> None:
        self.driver, self.links = driver, links
        self.said = 0

    async def run(self) -> None:
        while True:
            for edge in self.driver.core.edges.values():
                number = edge.line.session
                if not edge.is_open or number is None:
                    continue
                link = self.links._table.find(edge.peer, number)
                if link is not None:
                    self._fill(link._outbox, edge)
                    self._begin(edge)
            await asyncio.sleep(PAUSE_S)

    def _fill(self, outbox: Outbox, edge: Edge) -> None:
        missing = WAITING - len(outbox)
        if missing <= 0 or outbox._closed:
            return
        pending = edge.exchange.record.pending
        outbox._waiting.extend([self._ready(edge) for _ in range(missing)])
        if pending is not None:
            outbox._waiting.append(pending)
        outbox.idle.clear()
        outbox._filled.set()

    def _ready(self, edge: Edge) -> Message:
        self.said += 1
        facts = edge.common.facts
        return Ready(version=facts.version + self.said, closing=facts.closing, level=facts.level)

    def _begin(self, edge: Edge) -> None:
        """Begin an exchange as if the node's own version had never been exchanged."""
        service = edge.service
        exchanged, service.exchanged = service.exchanged, None
        self.driver.carry_out(edge.exchange.begin_if_due(self.driver.loop.time()))
        service.exchanged = exchanged
