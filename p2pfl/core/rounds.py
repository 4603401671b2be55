"""The life of a node: wait for a neighbor, (join,) train and mix, mix without training, linger, finish.

A tick is a new version of the own model. After each, the node waits until every live edge has completed an exchange
with it, or until that edge's patience ends: a dead neighbor costs nothing, a slow one next to nothing. A node that
starts with no memory in a federation that has moved on joins first: it lets its neighbors fill its replicas and
starts from their coordinate median, at the round where they are. When training ends stands in `ending`.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import assert_never

from p2pfl.core.edge import Edge
from p2pfl.core.effects import Alarm, Bootstrap, CommitRound, Effect, Finish, Mix, StartRound
from p2pfl.core.ending import Ending, Reason
from p2pfl.core.events import Bootstrapped, Mixed, RoundCommitted, RoundTrained, Started, StopRequested
from p2pfl.core.facts import Facts
from p2pfl.core.hearsay import Hearsay
from p2pfl.core.joining import JOIN_WAIT_S, LEAST_JOIN_TICK_S, LONGEST_JOIN_S, Joining
from p2pfl.core.limits import PATIENCE_MULTIPLE, Repeats, UsualTime
from p2pfl.core.messages import Done
from p2pfl.core.mixing import Mixing
from p2pfl.core.pace import Pace
from p2pfl.core.session import NEVER
from p2pfl.core.settings import Settings

RESUME_WAIT_S = 3.0
IDLE_S = 0.5
"""How often a node that is through and trains no longer looks whether the federation has ended."""
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
        ending: Ending,
        hearsay: Hearsay,
        fresh: bool,
        elapsed_before_s: float,
    ) -> None:
        self.edges = edges
        self.ending = ending
        self.hearsay = hearsay
        self.usual = usual
        self.facts = facts
        self.settings = settings
        self.mixing = Mixing(edges, facts, settings)
        self.pace = Pace(edges, facts, settings)
        self.phase = Phase.WAITING
        self.joining = Joining(edges, facts, settings, fresh=fresh)
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
        self.accompanied = True
        """Whether a neighbor was there when the round under way began."""
        self.ended_by: Reason | None = None
        """Why training has ended; None: it has not."""
        self.resigned = False
        """Whether this node must not go on, because another process has its key."""
        self._not_own = 0
        """How many of its rounds it took over from others."""
        self._is_told_alone = False

    # -- events -----------------------------------------------------------------------------------------------------

    def take(self, event: RoundEvent, now: float) -> list[Effect]:
        match event:
            case RoundTrained(steps=steps):
                return self._trained(steps, now)
            case RoundCommitted():
                return self._committed(event, now)
            case Started():
                self.started_at = self.facts.started_at = now
                self._enter(Phase.LINGERING if self.facts.done else Phase.WAITING, now)
                if self.facts.done:
                    return self._let_go(now)
                if self.facts.rounds:
                    known = [
                        edge.peer
                        for edge in self.edges.values()
                        if edge.exchange.record.seq or edge.exchange.record.incarnation
                    ]
                    self.ending.remember(known, now)
                return []
            case Bootstrapped():
                self.working = False
                self._take_over()
                if self.phase is Phase.JOINING:
                    self._enter(Phase.TRAINING, now)
                return []
            case Mixed(failed=failed):
                self.working = False
                return self.mixing.end(failed=failed)
            case StopRequested():
                return self._finish(now)
        assert_never(event)

    def _let_go(self, now: float) -> list[Effect]:
        """What a node still asks of its neighbors when its federation has ended is from before the end.

        The answer, worked out with a model of then, would move it from what has been found since.
        """
        text = "the federation has ended, and a request of its time was open"
        asking = [edge.exchange for edge in self.edges.values() if edge.exchange.record.pending is not None]
        return [each for one in asking for each in one.resync(one.record.incarnation + 1, text, now, notice=True)]

    def _trained(self, steps: int, now: float) -> list[Effect]:
        if self.phase is Phase.FINISHED:
            return []
        self.training_s = now - self.training_from
        self.facts.alone += bool(self.edges) and not self.accompanied
        return [self._commit(trained=True, rho=self.pace.correction(steps, now), now=now)]

    def _committed(self, event: RoundCommitted, now: float) -> list[Effect]:
        self.working = False
        self.facts.version = event.version
        self.facts.rounds = event.rounds
        self._note_trained(now)
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
            ends_at = self.phase_from + self._start_wait_s(now)
            return self.told.next_at if now >= ends_at else min(ends_at, self.told.next_at)
        if self.phase is Phase.JOINING:
            late_at = self.phase_from + JOIN_WAIT_S
            return late_at if now < late_at else self.phase_from + LONGEST_JOIN_S
        if self.phase in (Phase.CLOSING, Phase.LINGERING):
            return min(self.phase_from + self.settings.linger_s, self.told.next_at)
        if self.ending.is_through and not self.settings.overtime:
            return now + IDLE_S
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
            self._book_wait(now)
            self.due = self._rest_end()
            return now >= self.due
        self.due, last = max((self._patience_end(edge), edge.peer) for edge in late)
        self.awaited = self.edges[last]
        if now < self.due:
            return False
        for edge in late:
            edge.service.patience.missed()
        self._book_wait(self.due)
        return True

    def _book_wait(self, end: float) -> None:
        """The one that the tick waited for last has cost the time since the others were through.

        Where several are late to the end, one of them has cost it all; when it can afford no more, the next.
        """
        awaited, self.awaited = self.awaited, None
        if awaited is None or self.phase is not Phase.TRAINING:
            return
        others_at = (
            edge.service.served_at for edge in self.edges.values() if edge is not awaited and edge.service.served
        )
        alone_from = max(self.tick_from, max(others_at, default=self.tick_from))
        if end > alone_from:
            awaited.service.patience.cost(end - alone_from, end - self.tick_from, self._median_s, end)

    def _patience_end(self, edge: Edge) -> float:
        wait_s = edge.service.patience.wait_s()
        if wait_s > self.training_s:  # the usual wait is never shorter than that
            wait_s = min(wait_s, self._usual_wait_s())
        if self.phase is Phase.JOINING:
            return self.tick_from + max(wait_s, LEAST_JOIN_TICK_S)
        if (
            edge.progress.keeps_step
        ):  # the exchange begins when both ends are there; `_close` waits for the other end as long
            both_from = max(self.tick_from, edge.progress.closing_heard_at)
            return self.phase_from + self.settings.linger_s if edge.progress.is_awaited else both_from + wait_s
        if self.phase is Phase.TRAINING:  # the other phases are short, and end for all nodes alike
            wait_s = min(wait_s, edge.service.patience.afford_s(self._median_s, self.tick_from))
        return self.tick_from + wait_s

    @property
    def _median_s(self) -> float:
        """What an exchange usually takes; with one neighbor alone, what it takes with that one."""
        return self.usual.median_s(self.settings.max_wait_s)

    def _usual_wait_s(self) -> float:
        """One edge that is much slower than the others must not set the pace of all.

        It is waited for as long as a round trains, as the (lower) median edge would be, or a quarter of a second.
        """
        return max(self.training_s, PATIENCE_MULTIPLE * self._median_s, LEAST_USUAL_WAIT_S)

    def _rest_end(self) -> float:
        """Where a schedule has no edge for this node's round, the round rests for as long as an exchange takes.

        Otherwise the nodes that rest most would be done with training first, and what the others learn later would
        weigh most.
        """
        rests = not any(edge.service.has_turn for edge in self.edges.values())
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
        if self.facts.rounds == 0:
            return short_s if self.joining.moved_on() else wait_s
        # Where all that are there have finished, another neighbor may yet come that has not, and who finished lingers.
        return min(wait_s, max(short_s, self.settings.linger_s / 2)) if self.joining.moved_on() else short_s

    def _wait(self, now: float) -> list[Effect]:
        """Begin when everybody is there, as far as the graph reaches, or when patience ends and somebody is.

        Nobody there yet and nobody there any more look alike: a node for which the federation has not ended waits for
        ever.

        The level is 0 until all own neighbors are connected, then one more than the least level among them: at level h
        everyone within h - 1 hops has all neighbors. Without this a node whose neighbors came early would be many
        rounds ahead of the others before they start.
        """
        if now >= self.phase_from + self._start_wait_s(now):
            return self._begin(now) if self._is_accompanied else self._wait_alone(now)
        if self._is_held_back():
            return self._announce() if self.told.due(now) else []
        levels = (edge.progress.level for edge in self.edges.values() if not edge.line.is_shut)
        level = 1 + min(levels, default=self.settings.hops)
        if level >= self.settings.hops:
            return self._begin(now)
        self.facts.level = int(level)
        self.told.said(now)
        return self._announce()

    def _wait_alone(self, now: float) -> list[Effect]:
        self.told.due(now)
        if self._is_told_alone:
            return []
        self._is_told_alone = True
        text = "no neighbor is there: nothing is trained until one is, and dialing goes on"
        return [Alarm(kind="waiting-alone", peer=None, text=text)]

    @property
    def _is_accompanied(self) -> bool:
        return any(edge.is_open for edge in self.edges.values())

    def _is_held_back(self) -> bool:
        """Whether a neighbor keeps this node on its level. One is answer enough: it is asked first the next time."""
        level = self.facts.level or 0
        if self.awaited is not None and is_behind(self.awaited, level):
            return True
        self.awaited = next((edge for edge in self.edges.values() if is_behind(edge, level)), None)
        return self.awaited is not None

    def _announce(self) -> list[Effect]:
        return [effect for edge in self.edges.values() for effect in edge.announce()]

    def _begin(self, now: float) -> list[Effect]:
        self.facts.level = None
        self.awaited = None
        self.told.said(now)
        effects = self._announce()
        if self.joining.moved_on():
            effects += self._claim_new_life()
            self.facts.joining = True
            self._enter(Phase.JOINING, now)
            return effects + self._join(now)
        self.facts.joining = False
        self._enter(Phase.TRAINING, now)
        return effects + self._train(now)

    def _claim_new_life(self) -> list[Effect]:
        """A node without memory where others have moved on may have had an earlier life: all must hear of this one."""
        return [] if self.facts.rounds else self.hearsay.claim_another()

    def _join(self, now: float) -> list[Effect]:
        """Tick without training until the replicas are filled; then start from the neighbors' median."""
        late = now >= self.phase_from + JOIN_WAIT_S
        sources = self.joining.sources(late=late)
        if sources:
            self.working = True
            rounds, elapsed_s = self.joining.place(sources)
            text = f"starting from the coordinate median of {len(sources)} neighbors"
            text += "" if rounds is None else f", at round {rounds}"
            bootstrap = Bootstrap(peers=sources, rounds=rounds, elapsed_s=elapsed_s)
            return [Alarm(kind="joined", peer=None, text=text), bootstrap]
        if late and not self._is_accompanied:
            self._enter(Phase.WAITING, now)
            return []
        if now >= self.phase_from + LONGEST_JOIN_S:
            self.facts.joining = False
            self._enter(Phase.TRAINING, now)
            return self._train(now)
        self.joining.ticks += 1
        return [self._commit(trained=False, rho=0.0, now=now)] if self._is_accompanied else []

    def _take_over(self) -> None:
        """The model is the neighbors' now, and where they are this node goes on counting."""
        self.facts.joining = False
        rounds, elapsed_s = self.joining.taken
        if rounds is not None:
            self._not_own = rounds - self.facts.rounds
            self.facts.rounds = self.facts.trained = rounds
        if elapsed_s is not None:
            self.elapsed_before_s, self.facts.trained = elapsed_s, int(elapsed_s)

    def _train(self, now: float) -> list[Effect]:
        if self.trained_from is None:
            self.trained_from = now
            self.ending.begin(now)
        if self._trained_enough(now):
            self.ending.complete(now)
        there = [edge for edge in self.edges.values() if edge.is_open]
        linger_s = self.settings.linger_s
        around = [edge for edge in self.edges.values() if edge.line.was_there(now, linger_s)]
        training = sum(1 << edge.peer for edge in around if not edge.progress.has_stopped)
        out = sum(1 << edge.peer for edge in self.edges.values() if edge.line.standing.is_out)
        stopped = not training and len(there) >= self.settings.profile.words_needed
        trained_s = self._elapsed_s(now)
        reason = self.ending.over(now, trained_s=trained_s, training=training, out=out, stopped=stopped)
        if reason is not None:
            return self._start_closing(reason, now)
        if self.ending.is_through and not self.settings.overtime:
            return []
        self.pace.begin(now)
        self.working = True
        self.training_from = now
        self.accompanied = self._is_accompanied
        return [StartRound(index=self.facts.rounds, accompanied=self.accompanied)]

    def _trained_enough(self, now: float) -> bool:
        if self.settings.rounds is not None:
            return self.facts.rounds >= self.settings.rounds
        return self._elapsed_s(now) >= (self.settings.time_s or 0.0)

    def _elapsed_s(self, now: float) -> float:
        """Of training; where rounds were taken over, they are taken to have been as long as the own ones."""
        elapsed_s = self.elapsed_before_s + (0.0 if self.trained_from is None else now - self.trained_from)
        if not self._not_own:
            return elapsed_s
        return elapsed_s * self.facts.rounds / max(1, self.facts.rounds - self._not_own)

    def _note_trained(self, now: float) -> None:
        in_rounds = self.settings.rounds is not None
        self.facts.trained = self.facts.rounds if in_rounds else int(self._elapsed_s(now))

    def _start_closing(self, reason: Reason, now: float) -> list[Effect]:
        self._enter(Phase.CLOSING, now)
        self.ended_by = reason
        self.facts.closing = 0
        self.told.said(now)
        effects: list[Effect] = []
        if not self.ending.is_through:
            text = f"training ended with the others' after round {self.facts.rounds}: {reason}"
            effects.append(Alarm(kind="stopped-early", peer=None, text=text))
        return effects + self._announce() + self._close(now)

    def _close(self, now: float) -> list[Effect]:
        """Mixing rounds without training take out what disagreement training has left.

        Each waits until the live neighbors are no more than one behind: so the first waits until they have stopped
        training, the second until theirs have, and what the last one learned still reaches everybody.
        """
        closed = self.closed
        if closed >= self.settings.closing_rounds:
            return self._start_lingering(now)
        behind = any(edge.is_open and not edge.progress.has_closed(closed) for edge in self.edges.values())
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
        if waited or all(edge.progress.done or edge.line.is_shut for edge in self.edges.values()):
            return self._finish(now)
        return self._say_done() if self.told.due(now) else []

    def _say_done(self) -> list[Effect]:
        done = Done(version=self.facts.version)
        return [effect for edge in self.edges.values() for effect in edge.line.send(done)]

    def _finish(self, now: float) -> list[Effect]:
        if self.phase is Phase.FINISHED:
            return []
        self._enter(Phase.FINISHED, now)
        return [Finish(resigned=self.resigned)]

    def resign(self, now: float) -> list[Effect]:
        """Another process has this node's key and was there before: both must not train."""
        if self.phase is Phase.FINISHED:
            return []
        self.resigned = True
        text = "one key speaks from two places: another process has this node's key and began earlier; this one stops"
        return [Alarm(kind="two-places", peer=None, text=text), *self._finish(now)]

    def _commit(self, *, trained: bool, rho: float, now: float) -> CommitRound:
        self.working = True
        frozen = [
            edge.exchange.record.pending.weight
            for edge in self.edges.values()
            if edge.exchange.record.pending is not None
        ]
        # What is on its way to the engine was weighed with the n of now, which is no more than halved either.
        least = max([self.facts.weight, *frozen]) * (self.facts.degree + 1) / 2
        return CommitRound(
            version=self.facts.version + 1,
            trained=trained,
            rho=rho,
            elapsed_s=self._elapsed_s(now),
            least_samples=least,
            alone=self.facts.alone,
        )


def is_behind(edge: Edge, level: int) -> bool:
    """Whether the neighbor is not there, or has not told of that level."""
    return not edge.line.is_shut and (not edge.is_open or edge.progress.level < level)
