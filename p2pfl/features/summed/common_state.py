"""The state that all nodes have alike, at one node: it tells where it stands, and takes over that of others."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import replace
from typing import TypeVar

from p2pfl.core.effects import Bootstrap, CommitRound
from p2pfl.core.events import RoundCommitted
from p2pfl.core.facts import Phase
from p2pfl.engine.engine import Engine
from p2pfl.errors import PeerFault
from p2pfl.features.summed.following import Following
from p2pfl.features.summed.standings import Place, Standings, state_digest
from p2pfl.features.summed.standings_talk import StandingsTalk
from p2pfl.features.summed.summed_rounds import SummedRounds
from p2pfl.learn.interface import LocalRound, Vector
from p2pfl.node.engine_thread import Look
from p2pfl.node.feature import NodeView

T = TypeVar("T")

PAUSE_S = 0.2
"""The pause before a state is asked for again."""
SERIALS = 2**24
"""The serials of one life of a node: those of the next one are larger."""


class AlikeState:
    """What all nodes have alike after the same sums, as one course has it. `most_bytes` bounds what packs it."""

    most_bytes: int

    def recall(self) -> None:
        """Read what is kept beside the node's state."""

    def sums_after(self, rounds: int) -> int:
        """Return the sums that have ended well after so many rounds."""
        raise NotImplementedError

    def packed(self, model: Vector, rounds: int) -> bytes:
        """Return the state after so many rounds, the same bytes at all nodes."""
        raise NotImplementedError

    def unpack(self, state: bytes) -> tuple[int, Vector, Callable[[], None]]:
        """Return the rounds and the model of a packed state, and what adopts the rest of it.

        Raises ValueError: it is no state of such a model.
        """
        raise NotImplementedError


class CommonState:
    """`life` is the number of this start of the node."""

    def __init__(
        self, node: NodeView, course: SummedRounds, alike: AlikeState, standings: Standings, *, life: int
    ) -> None:
        self._node, self.course, self._alike, self.standings, self._life = node, course, alike, standings, life
        self.talk = StandingsTalk(standings, node.say, alike.most_bytes)
        self.following = Following(standings)
        self.fetched = 0
        """How often a state of others was taken over."""
        self.slowest_s, self._told_at = 0.0, 0.0
        """The longest time from one state of this node to the next."""

    @property
    def place(self) -> Place:
        return self.following.place

    async def know(self) -> None:
        """Recall what is kept, and tell where this node stands."""
        self._alike.recall()
        await self.tell()

    async def tell(self) -> None:
        """Tell all where this node stands."""
        model = await self.look(lambda engine: engine.state.model.copy())
        state = self._alike.packed(model, self.course.facts.rounds)
        self.following.moved(Place(self._alike.sums_after(self.course.facts.rounds), state_digest(state)))
        now = time.monotonic()
        self.slowest_s, self._told_at = max(self.slowest_s, now - (self._told_at or now)), now
        self.talk.fetching.keep(state, self.following.place.digest)
        self.talk.spread(self.standings.state(self.following.place, self._life * SERIALS))

    async def take_over(self, place: Place) -> bool:
        """Fetch the state of the others, and go on from it. False: nobody gives it now."""
        self.course.stage = Phase.JOINING
        state = await self.talk.fetch(place)
        if state is None:
            if self.talk.has_peers:
                self.following.asked_in_vain(place, time.monotonic())
            await asyncio.sleep(PAUSE_S)
            return False
        try:
            rounds, model, adopt = self._alike.unpack(state)
        except ValueError as error:
            raise PeerFault(f"more than {self.standings.needed - 1} members have signed for {error}") from error
        adopt()
        await self.settle(model, rounds)
        self.fetched += 1
        self._node.feed.tell("state-fetched", None, f"this node goes on after round {rounds}, with the others' state")
        await self.tell()
        return True

    async def settle(self, model: Vector, rounds: int) -> None:
        """Make a model this node's own after so many rounds, and durable with all that belongs to it."""
        local = LocalRound(
            vector=model, steps=0, learning_rate=0.0, samples=int(self.course.facts.samples), loss=float("nan")
        )
        await self.look(lambda engine: engine.outcomes.put((model, local)))
        answer = self.course.answer()
        self._node.carry_out([Bootstrap(peers=(), rounds=max(0, rounds - 1))])
        await answer
        self.course.facts.rounds = self.course.facts.trained = max(0, rounds - 1)
        if rounds > 0:  # before the first round nothing is kept besides the model
            await self.commit(model.copy(), local)

    async def commit(self, start: Vector, local: LocalRound) -> bool:
        """Commit a round; False: its model is too large, and nodes keep the one before."""
        facts = self.course.facts
        learner = self._node.setup().learner
        whole = replace(local, local=learner.local_state())
        await self.look(lambda engine: engine.outcomes.put((start, whole)))
        answer = self.course.answer()
        commit = CommitRound(
            version=facts.version + 1, trained=True, rho=1.0, elapsed_s=0.0, least_samples=facts.samples, at_once=True
        )
        self._node.carry_out([commit])
        event = await answer
        return isinstance(event, RoundCommitted) and not event.failed

    def is_behind(self) -> bool:
        return self.next_place() is not None

    def next_place(self) -> Place | None:
        """Return the state of the others that this node should have in place of its own, None if there is none."""
        return self.following.next_place(time.monotonic())

    async def look(self, use: Callable[[Engine], T]) -> T:
        """Use the engine between two operations, and return what came of it."""
        loop = asyncio.get_running_loop()
        found: asyncio.Future[T] = loop.create_future()

        def look(engine: Engine) -> None:
            result = use(engine)
            loop.call_soon_threadsafe(lambda: None if found.done() else found.set_result(result))

        self._node.thread.jobs.put(Look(look))
        return await found
