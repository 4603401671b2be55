"""Rounds that are sums, in step with all other nodes: sum, take the sum, tell where one stands, and so on to the end.

All nodes take the same step from the same state, so a sum names the state that it begins from: who has another one is
left out, and fetches that of the others. Each algorithm, shared noise and trees, says what a part and a sum do.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections.abc import Callable, Collection, Container, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol, TypeVar

from p2pfl.config.charter import federation_id
from p2pfl.core import events
from p2pfl.core.core import REMOVED, Algorithm
from p2pfl.core.settings import Facts, Phase, Settings
from p2pfl.engine.engine import Engine
from p2pfl.engine.state import NodeState
from p2pfl.errors import PeerFault
from p2pfl.features.sums.arithmetic import WORD_BYTES, Words
from p2pfl.features.sums.messages import Refused, SumDone
from p2pfl.features.sums.sessions import SHARE_S, KeptSums, next_life, settings_of, sum_talk
from p2pfl.features.sums.setup import FIRST_S
from p2pfl.features.sums.standings import CHANNEL, Buffer, Place, Standings, StandingsTalk, state_digest
from p2pfl.features.sums.talk import CHANNEL as SUMS
from p2pfl.features.sums.talk import THIN, WIDE, Beside
from p2pfl.learn.interface import LocalRound, Vector
from p2pfl.net.extensions import HandledChannel, Handler
from p2pfl.node.assembly import Setup, settings_for
from p2pfl.node.engine_thread import Look
from p2pfl.node.feature import Attached, Feature, NodeView
from p2pfl.reporting.alarms import AlarmText

notice = logging.getLogger("p2pfl.notice")

ALARMS: Mapping[str, AlarmText] = {
    "sum-refused": AlarmText(
        means="A round's secure sum did not come about; the text says why. Mostly too few members are there.",
        does="Keeps its part and tries again; nothing is learned meanwhile.",
        advice="Start the members that are missing. Trees need all of them; shared noise needs privacy.least of them.",
        ended_by="sum-done",
    ),
    "sum-held-up": AlarmText(
        means="A member holds secure sums up, by what it signed or failed to sign in time; the text says how.",
        does="Gives it its turn to open and lead sums last, and after three times leaves it out where others suffice.",
        advice="Look at that member: it may be slow or cut off. If it does so again and again, remove it.",
    ),
    "sum-spoiled": AlarmText(
        means="A sum is larger than right parts can make it: some member's part was wrong. Nobody knows whose.",
        does="Leaves that sum out, and gives a part again; with shared noise another one, which is paid for.",
        advice="If it happens again, look for the member whose software or files differ.",
        ended_by="sum-done",
    ),
    "no-part": AlarmText(
        means="This node gives no part to a round: its training failed, or its budget does not allow it.",
        does="Follows the others' model.",
        advice="Read the text; `p2pfl privacy show` says what is spent.",
        ended_by="sum-done",
    ),
    "change-clipped": AlarmText(
        means="More than half the numbers of this node's change were beyond the range in which a sum takes them.",
        does="Gives its part clipped. The range widens when more than a quarter of the nodes clip.",
        advice="If it stays, lower the learning rate, or look at this node's data.",
        ended_by="sum-done",
    ),
    "left-out": AlarmText(
        means="Members are in none of the latest sums: what they learn does not count.",
        does="Goes on without them, and waits for them longer now and then.",
        advice="Look for the one that is away, or more than twice as slow: with groups, its group is left out with it.",
        ended_by="all-in",
    ),
    "members-changed": AlarmText(
        means="The federation's members have changed while nodes run whose rounds are sums.",
        does="Goes on with the members that it began with.",
        advice="Start all nodes again.",
    ),
}


VECTORS = 2.0
"""The masked vectors that a member sends for a sum, on average: up the tree, and down again."""
STATEMENT_BYTES = 1000
"""The bytes that a member sends for a sum for each other member, besides vectors: `python benchmarks/sums.py`.

The sum itself takes 250; the rest is its share of a set-up, frames, and where members stand."""


def bytes_each(entries: int, members: int) -> int:
    """Return the bytes that each of so many members sends for a sum of so many entries."""
    return round(VECTORS * WORD_BYTES * entries + STATEMENT_BYTES * members)


class SummedFeature(Feature):
    name = "sums"
    alarms = ALARMS


Answer = events.RoundTrained | events.RoundRefused | events.RoundCommitted | events.Bootstrapped
ALL_DONE = "every round was done"


class SummedRounds(Algorithm):
    """Hands the driver's answers to whoever waits for them. `halted_by` is why this node gives no part any more."""

    mixes = False
    phase = Phase.WAITING
    index = -1
    exchanges = 0
    """The sums that ended well in this life of the node."""
    failed_rounds = 0
    peers: Collection[int] = ()

    def __init__(self, settings: Settings, facts: Facts, neighbors: tuple[int, ...]) -> None:
        self.settings, self.facts, self.peers = settings, facts, neighbors
        self.halted_by = ""
        self.done_by = ALL_DONE
        """Why there is nothing more to sum, once that is so."""
        self._open: dict[int, int] = {}
        self._answer: asyncio.Future[Answer] | None = None

    @classmethod
    def of(cls, setup: Setup, state: NodeState) -> SummedRounds:
        """Return the algorithm of a node, from its state."""
        facts = Facts(
            degree=len(setup.peers),
            samples=setup.learner.samples,
            version=state.version,
            rounds=state.rounds,
            trained=state.rounds,
        )
        made = cls(settings_for(setup), facts, setup.peers)
        made.index = setup.member.index
        return made

    @property
    def connected(self) -> Collection[int]:
        return self._open.keys()

    def may_miss(self, peer: int) -> bool:  # noqa: ARG002 - none is missed once this node has done its rounds
        return self.facts.done

    @property
    def ended_by(self) -> str | None:
        return (self.halted_by or self.done_by) if self.facts.done else None

    @property
    def is_over(self) -> bool:
        return self.phase is Phase.FINISHED

    def answer(self) -> asyncio.Future[Answer]:
        """Return the next answer of the driver, to be awaited. It is asked for before the effect that it answers."""
        self._answer = asyncio.get_running_loop().create_future()
        return self._answer

    def handle(self, event: events.Event, now: float) -> list[events.Effect]:  # noqa: ARG002 - it keeps no time
        facts = self.facts
        match event:
            case events.RoundCommitted():
                facts.version, facts.rounds, facts.samples = event.version, event.rounds, event.samples
                facts.trained = event.rounds
                self.failed_rounds += event.failed
                self._give(event)
            case events.RoundTrained() | events.RoundRefused() | events.Bootstrapped():
                self._give(event)
            case events.SessionOpened():
                self._open[event.peer] = event.session
            case events.SessionClosed():
                if self._open.get(event.peer) == event.session:
                    del self._open[event.peer]
            case events.Amended() if self.index in event.settings.retired:
                self.retired = True
                return [REMOVED, *self.finish()]
            case events.Amended():
                text = "the members have changed: nodes whose rounds are sums follow once they are started again"
                return [events.Alarm(kind="members-changed", peer=None, text=text, notice=True)]
            case events.StopRequested():
                return self.finish()
            case _:
                pass  # of gossip nothing is done
        return []

    def finish(self) -> list[events.Effect]:
        self.phase = Phase.FINISHED
        return [events.Finish()]

    def _give(self, event: Answer) -> None:
        waiting, self._answer = self._answer, None
        if waiting is not None and not waiting.done():
            waiting.set_result(event)


T = TypeVar("T")

PAUSE_S = 0.2
"""The pause before a state is asked for again."""
SERIALS = 2**24
"""The serials of one life of a node: those of the next one are larger."""


class AlikeState(Protocol):
    """The state that all nodes have alike after the same sums, for one algorithm. `most_bytes` bounds what packs it."""

    most_bytes: int

    def recall(self) -> None:
        """Read what is kept beside the node's state."""
        return

    def sums_after(self, rounds: int) -> int:
        """Return the sums that have ended well after so many rounds."""

    def packed(self, model: Vector, rounds: int) -> Sequence[Buffer]:
        """Return the state after so many rounds, the same bytes at all nodes, in pieces that may be the state's own."""

    def unpack(self, state: Buffer) -> tuple[int, Vector, Callable[[], None]]:
        """Return rounds, model, and what adopts the rest of a packed state. Raises ValueError: of another model."""


REST_S, MOST_REST_S = 0.5, 30.0
"""The rest after a refused sum: at first, and at most."""
TELL_S = 15.0
"""The time of a wait before it is logged, and logged again."""


class CommonState:
    """The state that this node has in common with others, and what it waits for: in words `whom`, empty: for nothing.

    `life` numbers this start of the node. `tried_s`, the time of the latest refused sum, bounds rests: so nodes meet.
    """

    def __init__(
        self, node: NodeView, algorithm: SummedRounds, alike: AlikeState, standings: Standings, *, life: int
    ) -> None:
        self._node, self.algorithm, self.alike, self.standings, self._life = node, algorithm, alike, standings, life
        self.talk = StandingsTalk(standings, node.say, alike.most_bytes)
        self.fetched = 0
        """The number of times that a state of others was taken over."""
        self.slowest_s, self._told_at = 0.0, 0.0
        """The longest time from one state of this node to the next."""
        self._rest_s = REST_S
        self.whom, self.tried_s = "", 0.0

    @property
    def place(self) -> Place:
        return self.standings.place

    async def tell(self) -> None:
        """Tell all where this node stands."""
        rounds = self.algorithm.facts.rounds

        def pack(engine: Engine) -> tuple[Sequence[Buffer], bytes]:
            state = self.alike.packed(engine.state.model, rounds)
            return state, state_digest(state)

        state, digest = await self.look(pack)
        place = Place(self.alike.sums_after(rounds), digest)
        now = self._node.clock()
        self.slowest_s, self._told_at = max(self.slowest_s, now - (self._told_at or now)), now
        self.talk.keep(state, digest)
        self.talk.spread(self.standings.state(place, self._life * SERIALS))

    async def take_over(self, place: Place) -> bool:
        """Fetch the state of the others, and go on from it. False: nobody gives it now."""
        self.algorithm.phase = Phase.JOINING
        state = await self.talk.fetch(place)
        if state is None:
            if self.talk.peers:
                self.standings.asked_in_vain(place, self._node.clock())
            await asyncio.sleep(PAUSE_S)
            return False
        try:
            rounds, model, adopt = self.alike.unpack(state)
        except ValueError as error:
            raise PeerFault(f"more than {self.standings.needed - 1} members have signed for {error}") from error
        adopt()
        behind = rounds - self.algorithm.facts.rounds
        await self.settle(model, rounds)
        self.fetched += 1
        if behind > 1 or self.fetched == 1:  # one that waits for the next set-up follows round by round
            text = f"this node goes on after round {rounds}, with the others' state"
            self._node.feed.tell("state-fetched", None, text)
        await self.tell()
        return True

    async def settle(self, model: Vector, rounds: int) -> None:
        """Make a model this node's own after so many rounds, and durable with all that belongs to it."""
        self.talk.release()
        local = LocalRound(
            vector=model, steps=0, learning_rate=0.0, samples=int(self.algorithm.facts.samples), loss=float("nan")
        )
        await self.look(lambda engine: engine.outcomes.put((model, local)))
        answer = self.algorithm.answer()
        self._node.carry_out([events.Bootstrap(peers=(), rounds=max(0, rounds - 1))])
        await answer
        self.algorithm.facts.rounds = self.algorithm.facts.trained = max(0, rounds - 1)
        if rounds > 0:  # before the first round nothing is kept besides the model
            await self.commit(lambda _: local)

    async def commit(self, make: Callable[[Vector], LocalRound]) -> bool:
        """Commit a round, made in the engine's thread from the model (d,), which it reads, or writes to and returns.

        False: its own model is too large, and nodes keep the one before.
        """
        facts = self.algorithm.facts
        learner = self._node.setup().learner

        def whole(model: Vector) -> LocalRound:
            return replace(make(model), local=learner.local_state())

        self.talk.release()
        await self.look(lambda engine: engine.outcomes.put(whole))
        answer = self.algorithm.answer()
        commit = events.CommitRound(
            version=facts.version + 1, trained=True, rho=1.0, elapsed_s=0.0, least_samples=facts.samples, at_once=True
        )
        self._node.carry_out([commit])
        event = await answer
        return isinstance(event, events.RoundCommitted) and not event.failed

    def is_behind(self) -> bool:
        return self.next_place() is not None

    def next_place(self) -> Place | None:
        """Return the state of the others that this node should have in place of its own, None if there is none."""
        return self.standings.next_place(self._node.clock())

    async def look(self, use: Callable[[Engine], T]) -> T:
        """Use the engine between two operations, and return what came of it."""
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[T] = loop.create_future()

        def look(engine: Engine) -> None:
            result = use(engine)
            loop.call_soon_threadsafe(lambda: None if answer.done() else answer.set_result(result))

        self._node.thread.jobs.put(Look(look))
        return await answer

    def names(self, members: Iterable[int], without: Container[int] = ()) -> str:
        there = {member.index: member.name for member in self._node.setup().federation.present}
        return ", ".join(there[member] for member in members if member in there and member not in without)

    @property
    def has_rested_long(self) -> bool:
        return self._rest_s > REST_S

    async def rest(self) -> None:
        """Wait a little, longer each time; not once the others are ahead."""
        rest_s, self._rest_s = self._rest_s, min(2 * self._rest_s, MOST_REST_S)
        await self.until(self.is_behind, lambda: "others", max(REST_S, min(rest_s, self.tried_s)))

    def rested(self) -> None:
        """The next rest is a short one again."""
        self._rest_s = REST_S

    async def until(self, holds: Callable[[], bool], for_whom: Callable[[], str], limit_s: float | None = None) -> bool:
        """Wait for news until something holds; tell now and then for whom. False: it did not within `limit_s`."""
        began = told_at = self._node.clock()
        while not holds():
            now = self._node.clock()
            left = TELL_S if limit_s is None else began + limit_s - now
            if left <= 0:
                return False
            if limit_s is None:
                self.algorithm.phase, self.whom = Phase.WAITING, for_whom()
                if now >= told_at + TELL_S:
                    told_at = now
                    notice.info("waiting for %s", self.whom)
            self.talk.news.clear()
            try:
                await asyncio.wait_for(self.talk.news.wait(), min(left, 1.0))
            except TimeoutError:
                continue
        self.whom = ""
        return True


PATIENT_TIMES = 4.0
MISSED = 8
"""A member that is in none of so many sums in a row is named."""


class FirstMembers:
    """Keeps those from a handler who became members after this node's start: they sum once all are started again."""

    def __init__(self, handler: Handler, count: int) -> None:
        self._handler, self._count = handler, count

    def opened(self, peer: int) -> None:
        if peer < self._count:
            self._handler.opened(peer)

    def closed(self, peer: int) -> None:
        if peer < self._count:
            self._handler.closed(peer)

    def hear(self, peer: int, message: Any) -> None:
        """Raises PeerFault."""
        if peer < self._count:
            self._handler.hear(peer, message)


class RoundsInStep(Attached):
    """The rounds of one node. More members than `colluders` must have signed for a state that is taken over."""

    least = 3
    """The members that must be there before the first sum."""

    def __init__(
        self, node: NodeView, algorithm: SummedRounds, alike: AlikeState, *, colluders: int, **numbers: Any
    ) -> None:
        """`numbers` are further ones of `SumSettings`."""
        self._node, self.algorithm = node, algorithm
        setup = node.setup()
        folder, self.members = setup.node.state_dir, len(setup.federation.members)
        settings = settings_of(
            setup.federation, setup.member.index, life=next_life(folder), colluders=colluders, is_plain=True, **numbers
        )
        kept, wait_s = KeptSums(folder, settings.members), FIRST_S + SHARE_S * self.members
        how: dict[str, Any] = {"alarm": node.alarm, "draw": node.draw, "meter": node.meter}
        self.talk = sum_talk(settings, setup.identity, kept, node.say, first_wait_s=wait_s, **how)
        self._id = federation_id(setup.federation)
        standings = Standings(setup.federation, self._id, setup.identity, setup.member.index, colluders + 1)
        self.state = CommonState(node, algorithm, alike, standings, life=settings.life)
        self._refused = 0
        self._latest: tuple[int, ...] = ()
        self._missed: dict[int, int] = {}
        """The members that were not in the latest sum, and how many in a row have been without them."""

    @property
    def is_done(self) -> bool:
        """True once there is nothing more to sum."""
        return self.algorithm.facts.rounds >= (self.algorithm.settings.rounds or 0)

    @property
    def sums_in_all(self) -> int:
        """The sums after which a member is through."""
        raise NotImplementedError

    async def step(self) -> None:
        """Sum once, and take the sum."""
        raise NotImplementedError

    def was_refused(self, ended: Refused) -> None:
        """Look at a refusal; the node will try again."""

    def was_taken_over(self) -> None:
        """Forget what belongs to the state that others' has replaced."""

    def channels(self) -> tuple[HandledChannel, ...]:
        return tuple(
            HandledChannel(channel=channel, handler=FirstMembers(handler, self.members), guards=True)
            for channel, handler in (
                (SUMS, self.talk),
                (THIN, Beside(self.talk, self.talk.thin_opened)),
                (WIDE, Beside(self.talk, self.talk.wide.add)),
                (CHANNEL, self.state.talk),
            )
        )

    def status(self) -> Mapping[str, Any]:
        figures = {"members_in_the_latest_sum": len(self._latest), "members_needed": self.least}
        figures |= {"sums": self.algorithm.exchanges, "refused": self._refused}
        return figures | {"fetched": self.state.fetched, "waits_for": self.state.whom or None}

    async def run(self) -> None:
        self.state.alike.recall()
        await self.state.tell()
        if not self.is_done:
            await self.state.until(self._are_enough, self._missing_in_words)
        while not self.algorithm.is_over and not self.is_done:
            place = self.state.next_place()
            if place is not None:
                if await self.state.take_over(place):
                    self.was_taken_over()
            elif self.algorithm.halted_by:
                wait_s = max(self.algorithm.settings.linger_s, PATIENT_TIMES * self.state.slowest_s)
                if not await self.state.until(self.state.is_behind, lambda: "the others, as it gives no part", wait_s):
                    break
            elif not self.talk.is_member:
                # What it gave now would be given in vain.
                await self.state.until(lambda: self.state.is_behind() or self.talk.is_member, self._setup_in_words)
            else:
                await self.step()
        await self._end()

    async def farewell(self, *, hasty: bool) -> None:  # noqa: ARG002 - there is nothing to wait for
        self.talk.close()

    async def train(self) -> LocalRound | None:
        """Let the learner begin its round; None if that is not possible now."""
        algorithm = self.algorithm
        algorithm.phase = Phase.TRAINING
        answer = algorithm.answer()
        self._node.carry_out([events.StartRound(index=algorithm.facts.rounds, accompanied=True, in_place=True)])
        event = await answer
        if isinstance(event, events.RoundRefused):
            if event.for_good:
                algorithm.halted_by = event.why
                self._node.alarm("budget-spent" if event.planned else "no-part", None, event.why)
            return None
        outcome = await self.state.look(lambda engine: engine.outcomes.get_nowait())
        if not isinstance(event, events.RoundTrained) or not isinstance(outcome, tuple):
            self._node.alarm("no-part", None, "its training failed, so that it has no part of this round")
            return None
        return outcome[1]

    def terms_from(self, place: Place, start: int = 0) -> bytes:
        """The terms of a sum that begins from this state, of vectors from `start` on."""
        named = self._id + place.digest + (start.to_bytes(8, "little") if start else b"")
        return hashlib.blake2b(named, digest_size=32, person=b"p2pfl-sum-round").digest()

    async def sum(self, label: str, words: Words, terms: bytes, **asked: Any) -> SumDone | None:
        """Sum with the others; None if that was refused. `asked` as of `SumTalk.sum`."""
        self.state.whom, self.talk.was_signed = f"the sum of {label}", False
        began = self._node.clock()
        ended = await self.talk.sum(label, words, terms, **asked)
        self.state.whom = ""
        if isinstance(ended, Refused):
            self.state.tried_s = self._node.clock() - began
            self._refused += 1
            self.algorithm.phase = Phase.WAITING
            self.was_refused(ended)
            self.state.standings.was_refused = True
            if not self.state.is_behind():
                missing = self.state.names(ended.missing)
                text = f"{label}: {ended.reason}; missing: {missing}" if missing else f"{label}: {ended.reason}"
                self._node.alarm("sum-refused", None, text)
            return None
        self.algorithm.exchanges += 1
        self._latest = ended.members
        self._node.feed.settle("sum-done", None)
        self._name_missing()
        return ended

    def _name_missing(self) -> None:
        there = {each.index for each in self._node.setup().federation.present if each.index < self.members}
        missing = there - {*self._latest}
        self._missed = {member: self._missed.get(member, 0) + 1 for member in sorted(missing)}
        if not missing:
            self._node.feed.settle("all-in", None)
        if MISSED in self._missed.values():
            names = self.state.names(member for member, sums in self._missed.items() if sums >= MISSED)
            self._node.alarm("left-out", None, f"in none of the last {MISSED} sums: {names}")

    async def refuse_spoiled(self, label: str) -> None:
        """Leave a sum out that no right parts can have; all who got it do."""
        self._node.alarm("sum-spoiled", None, f"{label}: no right parts have such a sum, so a member's part was wrong")
        await self.state.rest()

    def _are_enough(self) -> bool:
        return len(self.state.standings.latest) >= self.least

    def _missing_in_words(self) -> str:
        missing = self.state.names(range(self.members), without=self.state.standings.latest)
        return f"{self.least - len(self.state.standings.latest)} more of {missing}: {self.least} must give their parts"

    def _setup_in_words(self) -> str:
        missing = self.state.names(range(self.members), without=self.talk.came)
        return f"a set-up of sums; without keys yet: {missing}" if missing else "a set-up of sums"

    async def _end(self) -> None:
        """Go on answering until all who are there are through, or have been waited for long enough."""
        algorithm = self.algorithm
        if algorithm.is_over:
            return
        algorithm.facts.done, algorithm.phase = True, Phase.LINGERING
        members = {member.index for member in self._node.setup().federation.present}

        def are_through() -> bool:
            return members <= self.state.standings.who(lambda place: place.sums >= self.sums_in_all)

        await self.state.until(are_through, lambda: "the others", algorithm.settings.linger_s)
        self._node.carry_out(algorithm.finish())
