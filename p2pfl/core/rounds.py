"""The life of a node: wait for neighbors, (join,) train and mix, mix without training, linger, finish.

A tick is a new version of the own model. After each, the node waits until every live edge has completed an exchange
with it, or until that edge's patience ends: a dead neighbor costs nothing, a slow one next to nothing. A node that
starts with no memory in a federation that has moved on joins first: it lets its neighbors fill its replicas and
starts from their coordinate median.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import assert_never

from p2pfl.core.edge import Edge
from p2pfl.core.effects import Alarm, Bootstrap, CommitRound, Effect, Finish, Mix, StartRound
from p2pfl.core.events import Bootstrapped, Mixed, RoundCommitted, RoundTrained, Started, StopRequested
from p2pfl.core.facts import Facts, Settings
from p2pfl.core.joining import JOIN_WAIT_S, LEAST_JOIN_TICK_S, Joining
from p2pfl.core.limits import PATIENCE_MULTIPLE, Repeats, UsualTime
from p2pfl.core.messages import Done
from p2pfl.core.mixing import Mixing
from p2pfl.core.pace import Pace
from p2pfl.core.session import NEVER

RESUME_WAIT_S = 3.0
LEAST_USUAL_WAIT_S = 0.25


class Phase(enum.Enum):
    WAITING = "waiting"
    JOINING = "joining"
    TRAINING = "training"
    CLOSING = "closing"
    LINGERING = "lingering"
    FINISHED = "finished"


RoundEvent = Started | RoundTrained | RoundCommitted | Bootstrapped | Mixed | StopRequested


class Rounds:
    """`working` while the engine or the trainer owes an answer; `settling` while a tick waits for its exchanges."""

    def __init__(
        self,
        *,
        edges: Mapping[int, Edge],
        usual: UsualTime,
        facts: Facts,
        settings: Settings,
        fresh: bool,
        elapsed_before_s: float,
    ) -> None:
        self.edges = edges
        self.usual = usual
        self.facts = facts
        self.settings = settings
        self.mixing = Mixing(edges, facts, settings)
        self.pace = Pace(facts, settings, self.mixing)
        self.phase = Phase.WAITING
        self.joining = Joining(edges, facts, self.mixing, fresh=fresh)
        self.working = False
        self.settling = False
        self.elapsed_before_s = elapsed_before_s
        self.started_at: float | None = None
        self.trained_from: float | None = None
        self.phase_from = 0.0
        self.told = Repeats()
        """of where this node stands, in the phases in which its neighbors wait for it."""
        self.tick_from = 0.0
        self.training_from = 0.0
        self.training_s = 0.0
        """how long the latest local round has trained."""
        self.due = NEVER
        """when `advance` must be called next."""
        self.awaited: Edge | None = None
        """one of those that the tick, or the start, waits for."""
        self.failed_rounds = 0

    # -- events -----------------------------------------------------------------------------------------------------

    def take(self, event: RoundEvent, now: float) -> list[Effect]:
        match event:
            case RoundTrained(steps=steps):
                return self._trained(steps, now)
            case RoundCommitted():
                return self._committed(event, now)
            case Started():
                self.started_at = now
                self._enter(Phase.WAITING, now)
                return []
            case Bootstrapped():
                self.working = False
                self.facts.joining = False
                if self.phase is Phase.JOINING:
                    self._enter(Phase.TRAINING, now)
                return []
            case Mixed(failed=failed):
                self.working = False
                return self.mixing.end(failed=failed)
            case StopRequested():
                return self._finish(now)
        assert_never(event)

    def _trained(self, steps: int, now: float) -> list[Effect]:
        if self.phase is Phase.FINISHED:
            return []
        self.training_s = now - self.training_from
        return [self._commit(trained=True, rho=self.pace.correction(steps, now), now=now)]

    def _committed(self, event: RoundCommitted, now: float) -> list[Effect]:
        self.working = False
        self.facts.version = event.version
        self.facts.rounds = event.rounds
        self.facts.samples = event.samples
        if self.phase is Phase.CLOSING:
            self.facts.closing = self.closed + 1
        effects: list[Effect] = []
        if event.failed:
            self.failed_rounds += 1
            text = f"round {event.rounds} was dropped: it raised, or ended in no finite model (learning_rate too high?)"
            effects.append(Alarm(kind="round-failed", peer=None, text=text))
        self.settling = True
        self.tick_from = now
        self.told.said(now)
        for edge in self.edges.values():
            effects += edge.tick(now)
        return effects

    # -- what to do next --------------------------------------------------------------------------------------------

    def advance(self, now: float) -> list[Effect]:
        """Move on as far as the state of the edges and the time allow."""
        self.due = NEVER
        if self.started_at is None or self.working:
            return []
        if self.settling and not self._settled(now):
            return []
        effects = self._mix(now) if self.settling else []
        if not self.working:
            effects += self._go_on(now)
            self.due = self._deadline(now)
        return effects

    def _mix(self, now: float) -> list[Effect]:
        """The exchanges of the latest tick are through, or have been waited for: the robust profile mixes now."""
        self.settling = False
        if self.phase not in (Phase.TRAINING, Phase.CLOSING):
            return []
        effects = self.mixing.begin(self._elapsed_s(now))
        self.working = any(isinstance(effect, Mix) for effect in effects)
        return effects

    def _go_on(self, now: float) -> list[Effect]:
        match self.phase:
            case Phase.WAITING:
                return self._wait(now)
            case Phase.JOINING:
                return self._join(now)
            case Phase.TRAINING:
                return self._train(now)
            case Phase.CLOSING:
                return self._close(now)
            case Phase.LINGERING:
                return self._linger(now)
            case Phase.FINISHED:
                return []
        assert_never(self.phase)

    def _deadline(self, now: float) -> float:
        """When `advance` must be called next, once the latest tick has settled."""
        if self.working or self.phase is Phase.FINISHED:
            return NEVER
        if self.phase is Phase.WAITING:
            return min(self.phase_from + self._start_wait_s(now), self.told.next_at)
        if self.phase is Phase.JOINING:
            return self.phase_from + JOIN_WAIT_S
        if self.phase in (Phase.CLOSING, Phase.LINGERING):
            return min(self.phase_from + self.settings.linger_s, self.told.next_at)
        return self.tick_from

    def _settled(self, now: float) -> bool:
        """Whether nobody is waited for any longer; if somebody is, `due` says when to look again.

        One late edge with patience left is answer enough: the others are looked at when it is served.
        """
        awaited = self.awaited
        if awaited is not None and awaited.is_late:
            self.due = self._patience_end(awaited)
            if now < self.due:
                return False
        late = [edge for edge in self.edges.values() if edge.is_late]
        if not late:
            self.due = self._rest_end()
            return now >= self.due
        self.due, last = max((self._patience_end(edge), edge.peer) for edge in late)
        self.awaited = self.edges[last]
        if now < self.due:
            return False
        for edge in late:
            edge.patience.missed()
        return True

    def _patience_end(self, edge: Edge) -> float:
        wait_s = edge.patience.wait_s()
        if wait_s > self.training_s:  # the usual wait is never shorter than that
            wait_s = min(wait_s, self._usual_wait_s())
        if self.phase is Phase.JOINING:
            return self.tick_from + max(wait_s, LEAST_JOIN_TICK_S)
        if edge.keeps_step:  # the exchange begins when both ends are there; `_close` waits for the other end as long
            both_from = max(self.tick_from, edge.closing_heard_at)
            return self.phase_from + self.settings.linger_s if edge.awaits_peer else both_from + wait_s
        return self.tick_from + wait_s

    def _usual_wait_s(self) -> float:
        """One edge that is much slower than the others must not set the pace of all.

        It is waited for as long as a round trains, as the (lower) median edge would be, or a quarter of a second.
        """
        median_s = self.usual.median_s(self.settings.max_wait_s)
        return max(self.training_s, PATIENCE_MULTIPLE * median_s, LEAST_USUAL_WAIT_S)

    def _rest_end(self) -> float:
        """Where a schedule has no edge for this node's round, the round rests for as long as an exchange takes.

        Otherwise the nodes that rest most would be done with training first, and what the others learn later would
        weigh most.
        """
        rests = not any(edge.has_turn for edge in self.edges.values())
        if self.phase is not Phase.TRAINING or not rests:
            return self.tick_from
        return self.tick_from + min(self.usual.median_s(0.0), self.settings.max_wait_s)

    # -- phases -----------------------------------------------------------------------------------------------------

    def _enter(self, phase: Phase, now: float) -> None:
        self.phase = phase
        self.phase_from = now

    def _start_wait_s(self, now: float) -> float:
        """Patience for all neighbors to appear; short where the federation is under way already."""
        wait_s = self.settings.start_wait_s
        short_s = min(wait_s, RESUME_WAIT_S)
        if now < self.phase_from + short_s:
            return short_s
        beginning = self.facts.rounds == 0 and not self.joining.moved_on()
        return wait_s if beginning else short_s

    def _wait(self, now: float) -> list[Effect]:
        """Begin when everybody is there, as far as the graph reaches, or when patience ends.

        The level is 0 until all own neighbors are connected, then one more than the least level among them: at level h
        everyone within h - 1 hops has all neighbors. Without this a node whose neighbors came early would be many
        rounds ahead of the others before they start.
        """
        if now >= self.phase_from + self._start_wait_s(now):
            return self._begin(now)
        if self._is_held_back():
            return self._announce() if self.told.due(now) else []
        levels = (edge.peer_level for edge in self.edges.values() if not edge.is_shut)
        level = 1 + min(levels, default=self.settings.hops)
        if level >= self.settings.hops:
            return self._begin(now)
        self.facts.level = int(level)
        self.told.said(now)
        return self._announce()

    def _is_held_back(self) -> bool:
        """Whether a neighbor keeps this node on its level. One is answer enough: it is asked first the next time."""
        level = self.facts.level or 0
        if self.awaited is not None and self.awaited.is_behind(level):
            return True
        self.awaited = next((edge for edge in self.edges.values() if edge.is_behind(level)), None)
        return self.awaited is not None

    def _announce(self) -> list[Effect]:
        return [effect for edge in self.edges.values() for effect in edge.announce()]

    def _begin(self, now: float) -> list[Effect]:
        self.facts.level = None
        self.awaited = None
        effects = self._announce()
        if self.joining.moved_on():
            self.facts.joining = True
            self._enter(Phase.JOINING, now)
            return effects + self._join(now)
        self._enter(Phase.TRAINING, now)
        return effects + self._train(now)

    def _join(self, now: float) -> list[Effect]:
        """Tick without training until the replicas are filled; then start from the neighbors' median."""
        late = now >= self.phase_from + JOIN_WAIT_S
        sources = self.joining.sources(late=late)
        if sources:
            self.working = True
            text = f"starting from the coordinate median of {len(sources)} neighbors"
            return [Alarm(kind="joined", peer=None, text=text), Bootstrap(peers=sources)]
        if late:
            self.facts.joining = False
            self._enter(Phase.TRAINING, now)
            return self._train(now)
        self.joining.ticks += 1
        accompanied = any(edge.is_open for edge in self.edges.values())
        return [self._commit(trained=False, rho=0.0, now=now)] if accompanied else []

    def _train(self, now: float) -> list[Effect]:
        if self._trained_enough(now):
            return self._start_closing(now)
        if self.trained_from is None:
            self.trained_from = now
        self.pace.begin(now)
        self.working = True
        self.training_from = now
        accompanied = any(edge.is_open for edge in self.edges.values())
        return [StartRound(index=self.facts.rounds, corrected=accompanied)]

    def _trained_enough(self, now: float) -> bool:
        if self.settings.rounds is not None:
            return self.facts.rounds >= self.settings.rounds
        return self._elapsed_s(now) >= (self.settings.time_s or 0.0)

    def _elapsed_s(self, now: float) -> float:
        return self.elapsed_before_s + (0.0 if self.trained_from is None else now - self.trained_from)

    def _start_closing(self, now: float) -> list[Effect]:
        self._enter(Phase.CLOSING, now)
        self.facts.closing = 0
        self.told.said(now)
        return self._announce() + self._close(now)

    def _close(self, now: float) -> list[Effect]:
        """Mixing rounds without training take out what disagreement training has left.

        Each waits until the live neighbors are no more than one behind: so the first waits until they have stopped
        training, the second until theirs have, and what the last one learned still reaches everybody.
        """
        closed = self.closed
        if closed >= self.settings.closing_rounds:
            return self._start_lingering(now)
        behind = any(edge.is_open and not edge.has_closed(closed) for edge in self.edges.values())
        self.facts.out_of_step = now >= self.phase_from + self.settings.linger_s
        if behind and not self.facts.out_of_step:
            return self._announce() if self.told.due(now) else []
        return [self._commit(trained=False, rho=0.0, now=now)]

    @property
    def closed(self) -> int:
        """Mixing rounds done since training ended."""
        return self.facts.closing or 0

    def _start_lingering(self, now: float) -> list[Effect]:
        self._enter(Phase.LINGERING, now)
        self.facts.done = True
        self.told.said(now)
        return self._say_done() + self._linger(now)

    def _linger(self, now: float) -> list[Effect]:
        waited = now >= self.phase_from + self.settings.linger_s
        if waited or all(edge.peer_done or edge.is_shut for edge in self.edges.values()):
            return self._finish(now)
        return self._say_done() if self.told.due(now) else []

    def _say_done(self) -> list[Effect]:
        done = Done(version=self.facts.version)
        return [effect for edge in self.edges.values() for effect in edge.send(done)]

    def _finish(self, now: float) -> list[Effect]:
        if self.phase is Phase.FINISHED:
            return []
        self._enter(Phase.FINISHED, now)
        return [Finish()]

    def _commit(self, *, trained: bool, rho: float, now: float) -> CommitRound:
        self.working = True
        frozen = [edge.record.pending.weight for edge in self.edges.values() if edge.record.pending is not None]
        # What is on its way to the engine was weighed with the n of now, which is no more than halved either.
        least = max([self.facts.weight, *frozen]) * (self.facts.degree + 1) / 2
        return CommitRound(
            version=self.facts.version + 1,
            trained=trained,
            rho=rho,
            elapsed_s=self._elapsed_s(now),
            least_samples=least,
        )
