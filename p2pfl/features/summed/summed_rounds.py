"""The course of rounds that are sums: what the driver sees of it. `SumRounds` decides, and asks through it."""

from __future__ import annotations

import asyncio
from collections.abc import Collection

from p2pfl.core.course import Course
from p2pfl.core.effects import Alarm, Effect, Finish
from p2pfl.core.events import (
    Amended,
    Bootstrapped,
    Event,
    RoundCommitted,
    RoundRefused,
    RoundTrained,
    SessionClosed,
    SessionOpened,
    StopRequested,
)
from p2pfl.core.facts import Facts, Phase
from p2pfl.core.settings import Settings
from p2pfl.engine.state import NodeState
from p2pfl.node.assembly import Setup, settings_for

Answer = RoundTrained | RoundRefused | RoundCommitted | Bootstrapped
ALL_DONE = "every round was done"


class SummedRounds(Course):
    """Hands the driver's answers to whoever waits for them.

    `halted_by` is why this node gives no more parts, if it gives none; it then follows the others.
    """

    mixes = False

    def __init__(self, settings: Settings, facts: Facts, neighbors: tuple[int, ...]) -> None:
        self.settings, self.facts, self._neighbors = settings, facts, neighbors
        self.sums = 0
        """The sums that ended well in this life of the node."""
        self.failures = 0
        self.halted_by = ""
        self.done_by = ALL_DONE
        """Why there is nothing more to sum, once that is so."""
        self.stage = Phase.WAITING
        self._open: dict[int, int] = {}
        self._answer: asyncio.Future[Answer] | None = None

    @classmethod
    def of(cls, setup: Setup, state: NodeState) -> SummedRounds:
        """Return the course of a node, from its state."""
        facts = Facts(
            degree=len(setup.peers),
            samples=setup.learner.samples,
            version=state.version,
            rounds=state.rounds,
            trained=state.rounds,
        )
        return cls(settings_for(setup), facts, setup.peers)

    @property
    def phase(self) -> Phase:
        return self.stage

    @property
    def peers(self) -> Collection[int]:
        return self._neighbors

    @property
    def connected(self) -> Collection[int]:
        return self._open.keys()

    def may_miss(self, peer: int) -> bool:  # noqa: ARG002 - none is missed once this node has done its rounds
        return self.facts.done

    @property
    def exchanges(self) -> int:
        return self.sums

    @property
    def failed_rounds(self) -> int:
        return self.failures

    @property
    def ended_by(self) -> str | None:
        return (self.halted_by or self.done_by) if self.facts.done else None

    @property
    def is_over(self) -> bool:
        return self.stage is Phase.FINISHED

    def answer(self) -> asyncio.Future[Answer]:
        """Return the next answer of the driver, to be awaited. It is asked for before the effect that it answers."""
        self._answer = asyncio.get_running_loop().create_future()
        return self._answer

    def handle(self, event: Event, now: float) -> list[Effect]:  # noqa: ARG002 - it keeps no time
        facts = self.facts
        match event:
            case RoundCommitted():
                facts.version, facts.rounds, facts.samples = event.version, event.rounds, event.samples
                facts.trained = event.rounds
                self.failures += event.failed
                self._give(event)
            case RoundTrained() | RoundRefused() | Bootstrapped():
                self._give(event)
            case SessionOpened():
                self._open[event.peer] = event.session
            case SessionClosed():
                if self._open.get(event.peer) == event.session:
                    del self._open[event.peer]
            case Amended():
                text = "the members have changed: nodes whose rounds are sums follow once they are started again"
                return [Alarm(kind="members-changed", peer=None, text=text, notice=True)]
            case StopRequested():
                return self.finish()
            case _:
                pass  # of gossip nothing is done
        return []

    def finish(self) -> list[Effect]:
        self.stage = Phase.FINISHED
        return [Finish()]

    def _give(self, event: Answer) -> None:
        waiting, self._answer = self._answer, None
        if waiting is not None and not waiting.done():
            waiting.set_result(event)
