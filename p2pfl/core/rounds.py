"""The life of a node: wait for a neighbor, (join,) train and mix, mix without training, linger, finish.

A tick is a new version of the own model. After each, the node waits until every live edge has completed an exchange
with it, or until that edge's patience ends (`tick`). A node that starts with no memory in a federation that has moved
on joins first: it lets its neighbors fill its replicas and starts from their coordinate median, at the round where they
are. When training ends stands in `ending`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import assert_never

from p2pfl.core.amending import Amending
from p2pfl.core.company import Company
from p2pfl.core.edge import Edge, announce, is_accompanied, say_done
from p2pfl.core.effects import Alarm, Bootstrap, CommitRound, Effect, Finish, Mix, StartRound
from p2pfl.core.ending import Ending, Reason
from p2pfl.core.events import (
    Bootstrapped,
    Mixed,
    RoundCommitted,
    RoundRefused,
    RoundTrained,
    Started,
    StopRequested,
)
from p2pfl.core.facts import NEVER, Facts, Phase
from p2pfl.core.hearsay import Hearsay
from p2pfl.core.joining import JOIN_WAIT_S, LONGEST_JOIN_S, Gathering, Joining
from p2pfl.core.limits import Repeats, UsualTime
from p2pfl.core.settings import Settings
from p2pfl.core.tick import Mixing, Tick
from p2pfl.core.training import Pace, Training

IDLE_S = 0.5
"""How often a node that is through and trains no longer looks whether the federation has ended."""

RoundEvent = Started | RoundTrained | RoundRefused | RoundCommitted | Bootstrapped | Mixed | StopRequested


class Rounds:
    """The phases of one node, one after the other."""

    def __init__(
        self,
        *,
        edges: Mapping[int, Edge],
        usual: UsualTime,
        facts: Facts,
        settings: Settings,
        ending: Ending,
        hearsay: Hearsay,
        amending: Amending,
        fresh: bool,
        elapsed_before_s: float,
    ) -> None:
        self.edges = edges
        self.facts = facts
        self.settings = settings
        self.ending = ending
        self.amending = amending
        self.repeats = Repeats()
        """When to say again where this node stands, in the phases in which its neighbors wait for it."""
        self.joining = Joining(edges, facts, settings, hearsay, fresh)
        self.gathering = Gathering(edges, facts, settings, self.joining, self.repeats)
        self.training = Training(facts, settings, Pace(edges, facts, settings), elapsed_before_s)
        self.tick = Tick(edges, usual, settings)
        self.mixing = Mixing(edges, facts, settings)
        self.company = Company(edges, facts, settings, ending.census)
        self.phase = Phase.WAITING
        self.phase_from = 0.0
        self.working = True
        """Whether an answer of the engine or the trainer is owed, or the node has not been started."""
        self.due = NEVER
        """When `advance` must be called next."""
        self.refused_until = 0.0
        """A round that could not begin is not tried again before."""

    # -- events -----------------------------------------------------------------------------------------------------

    def take(self, event: RoundEvent, now: float) -> list[Effect]:
        match event:
            case RoundTrained():
                return self._trained(event, now)
            case RoundCommitted():
                return self._committed(event, now)
            case RoundRefused():
                return self._refused(event, now)
            case Started():
                return self._started(now)
            case Bootstrapped():
                self.working = False
                self.facts.joining = False
                self.training.take_over(*self.joining.taken)
                if self.phase is Phase.JOINING:
                    self._enter(Phase.TRAINING, now)
                return []
            case Mixed(failed=failed, moved=moved):
                self.working = False
                return self.mixing.end(failed=failed, moved=moved)
            case StopRequested():
                return self._finish(now)
        assert_never(event)

    def _started(self, now: float) -> list[Effect]:
        self.working = False
        self.facts.started_at = now
        self._enter(Phase.LINGERING if self.facts.done else Phase.WAITING, now)
        exchanges = {peer: edge.exchange for peer, edge in self.edges.items()}
        if self.facts.done:
            # What a node still asks of its neighbors when its federation has ended is from before the end. The answer,
            # worked out with a model of then, would move it from what has been found since.
            text = "the federation has ended, and a request of its time was open"
            asking = [one for one in exchanges.values() if one.record.pending is not None]
            return [each for one in asking for each in one.resync(one.record.incarnation + 1, text, now, notice=True)]
        if self.facts.rounds:
            known = [peer for peer, one in exchanges.items() if one.record.seq or one.record.incarnation]
            self.ending.census.remember(known, now)
        return []

    def _trained(self, event: RoundTrained, now: float) -> list[Effect]:
        if self.phase is Phase.FINISHED:
            return []
        training, waited_s = self.training, event.waited_s
        self.tick.training_s = now - training.round_from - waited_s
        training.look_at(event.figure)
        self.facts.alone += bool(self.edges) and not training.accompanied
        return [self._commit(trained=True, rho=training.pace.correction(event.steps, waited_s, now), now=now)]

    def _refused(self, event: RoundRefused, now: float) -> list[Effect]:
        """No round begins. Where none ever will, the node is through, and only mixes."""
        if self.phase is Phase.FINISHED:
            return []
        self.working = False
        self.refused_until = now + IDLE_S
        training = self.training
        if not event.for_good or training.out_of_budget:
            return []
        training.out_of_budget = event.why
        self.ending.census.complete(now)
        text = f"nothing more is trained after round {self.facts.rounds}: {event.why}"
        if event.planned:
            return [Alarm(kind="budget-spent", peer=None, text=text, notice=True)]
        return [Alarm(kind="no-budget", peer=None, text=text)]

    def _committed(self, event: RoundCommitted, now: float) -> list[Effect]:
        self.working = False
        self.facts.version = event.version
        self.facts.rounds = event.rounds
        self.training.note(now)
        self.facts.samples = event.samples
        if self.phase is Phase.CLOSING:
            self.facts.closing = self.facts.closed + 1
        effects: list[Effect] = []
        if event.failed:
            self.training.failed_rounds += 1
            text = f"round {event.rounds} was dropped: it raised, or ended in no finite model (learning_rate too high?)"
            effects.append(Alarm(kind="round-failed", peer=None, text=text))
        self.repeats.said(now)
        return effects + self.tick.begin(now)

    # -- what to do next --------------------------------------------------------------------------------------------

    def advance(self, now: float) -> list[Effect]:
        """Move on as far as the state of the edges and the time allow."""
        self.due = NEVER
        if self.working:
            return []
        effects: list[Effect] = []
        if self.tick.is_waiting:
            self.due = self.tick.ends_at(now, self.phase, self.phase_from)
            if now < self.due:
                return []
            self.tick.is_waiting = False
            effects = self.tick.complain(now)
            if self.phase in (Phase.TRAINING, Phase.CLOSING):
                effects += self.mixing.begin(self.training.elapsed_s(now))
                self.working = any(isinstance(effect, Mix) for effect in effects)
        if not self.working:
            if self.amending.asked is not None and self.phase is not Phase.FINISHED:
                self.due = self.amending.due_at(now)
                if now < self.due:
                    return effects
                effects += self._amend(now)
            effects += self._go_on(now)
            self.due = self._deadline(now)
        return effects

    def _amend(self, now: float) -> list[Effect]:
        """The federation is another one from here on."""
        self.tick.awaited = self.gathering.awaited = None
        return self.amending.take_effect(self.phase, now)

    def _go_on(self, now: float) -> list[Effect]:
        match self.phase:
            case Phase.WAITING:
                effects = self.gathering.wait(now, self.phase_from)
                return self._begin(now) if effects is None else effects
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
            return self.gathering.due_at(now, self.phase_from)
        if self.phase is Phase.JOINING:
            late_at = self.phase_from + JOIN_WAIT_S
            return late_at if now < late_at else self.phase_from + LONGEST_JOIN_S
        if self.phase in (Phase.CLOSING, Phase.LINGERING):
            return min(self.phase_from + self.settings.linger_s, self.repeats.next_at)
        if self._mixes_only:
            return now + IDLE_S
        return max(self.tick.began_at, self.refused_until)

    # -- phases -----------------------------------------------------------------------------------------------------

    @property
    def unfinished(self) -> list[int]:
        """The other members that were not through when training ended; none before."""
        bits = 0 if self.ending.ended_by is None else self.company.unfinished & ~self.ending.census.own
        return [member for member in range(bits.bit_length()) if bits >> member & 1]

    def _enter(self, phase: Phase, now: float) -> None:
        self.phase = phase
        self.phase_from = now

    def _begin(self, now: float) -> list[Effect]:
        self.gathering.end()
        self.repeats.said(now)
        effects = announce(self.edges)
        if self.joining.moved_on():
            effects += self.joining.begin()
            self._enter(Phase.JOINING, now)
            return effects + self._join(now)
        self.facts.joining = False
        self._enter(Phase.TRAINING, now)
        return effects + self._train(now)

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
        accompanied = is_accompanied(self.edges)
        if late and not accompanied:
            self._enter(Phase.WAITING, now)
            return []
        if now >= self.phase_from + LONGEST_JOIN_S:
            self.facts.joining = False
            self._enter(Phase.TRAINING, now)
            return self._train(now)
        self.joining.ticks += 1
        return [self._commit(trained=False, rho=0.0, now=now)] if accompanied else []

    def _train(self, now: float) -> list[Effect]:
        training, ending = self.training, self.ending
        if training.begin(now):
            ending.census.begin(now)
        effects = self._look_whether_enough(now)
        reason, news = self._reason_to_end(now)
        effects += news
        if reason is not None:
            return effects + self._start_closing(reason, now)
        if self._mixes_only or now < self.refused_until:
            return effects
        self.working = True
        away = self.company.absent(now)
        accompanied = len(away) < len(self.edges)
        training.begin_round(now, accompanied=accompanied)
        away = away if accompanied else ()
        return [*effects, StartRound(index=self.facts.rounds, accompanied=accompanied, away=away)]

    @property
    def _mixes_only(self) -> bool:
        """Whether this node is through and trains no more; what its neighbors ask it answers."""
        return self.ending.is_through and (self.company.rests or not self.training.goes_on)

    def _look_whether_enough(self, now: float) -> list[Effect]:
        """Where `stop` has decided that, the user hears of it once."""
        enough = self.training.enough(now)
        if enough is None:
            return []
        was_through = self.ending.is_through
        self.ending.census.complete(now)
        if was_through or self.settings.stop is None:
            return []
        text = f"this node has trained enough after round {self.facts.rounds}: {enough}"
        return [Alarm(kind="trained-enough", peer=None, text=text, notice=True)]

    def _reason_to_end(self, now: float) -> tuple[Reason | None, list[Effect]]:
        """Why training ends now, or None; and what this look at the others leads to."""
        edges, settings = self.edges.values(), self.settings
        there = sum(edge.is_open for edge in edges)
        around = [edge for edge in edges if edge.line.was_there(now, settings.linger_s)]
        left = () if self.ending.is_through else [edge.peer for edge in around if self.ending.census.lags(edge.peer)]
        training = sum(1 << edge.peer for edge in around if edge.peer in left or not edge.progress.has_stopped)
        out = sum(1 << edge.peer for edge in edges if edge.line.standing.is_out)
        stopped = not training and there >= settings.profile.words_needed
        trained_s, unfinished = self.training.elapsed_s(now), self.ending.unfinished(training, out)
        reason = self.ending.over(now, trained_s=trained_s, unfinished=unfinished, stopped=stopped)
        news = self.company.look(unfinished, now)
        if reason is None and self.company.is_over(self.ending.wait_s(trained_s), now):
            reason = Reason.COMPANY
        return reason, news

    def _start_closing(self, reason: Reason, now: float) -> list[Effect]:
        self._enter(Phase.CLOSING, now)
        self.ending.ended_by = reason
        self.facts.closing = 0
        self.repeats.said(now)
        effects: list[Effect] = []
        if not self.ending.is_through:
            text = f"training ended with the others' after round {self.facts.rounds}: {reason}"
            effects.append(Alarm(kind="stopped-early", peer=None, text=text))
        return effects + announce(self.edges) + self._close(now)

    def _close(self, now: float) -> list[Effect]:
        """Mixing rounds without training remove the disagreement that training has left.

        Each waits until no live neighbor is more than one behind: the first until they have stopped training, the
        second until theirs have. So what the last node learned still reaches everybody.
        """
        closed = self.facts.closed
        if closed >= self.settings.closing_rounds:
            self._enter(Phase.LINGERING, now)
            self.facts.done = True
            self.repeats.said(now)
            return say_done(self.edges) + self._linger(now)
        there = [edge for edge in self.edges.values() if edge.is_open and not self._is_mute(edge, now)]
        behind = any(not edge.progress.has_closed(closed) for edge in there)
        self.facts.out_of_step = now >= self.phase_from + self.settings.linger_s
        if behind and not self.facts.out_of_step:
            return announce(self.edges) if self.repeats.due(now) else []
        return [self._commit(trained=False, rho=0.0, now=now)]

    def _linger(self, now: float) -> list[Effect]:
        waited = now >= self.phase_from + self.settings.linger_s
        late = [edge for edge in self.edges.values() if not (edge.progress.done or edge.line.is_shut)]
        if waited or all(self._is_mute(edge, now) for edge in late):
            return self._finish(now)
        return say_done(self.edges) if self.repeats.due(now) else []

    def _is_mute(self, edge: Edge, now: float) -> bool:
        """Whether this neighbor has taken no part for so long that the end of training has not waited for it."""
        return self.company.is_mute(edge, self.ending.wait_s(self.training.elapsed_s(now)), now)

    def _finish(self, now: float, *, resigned: bool = False, retired: bool = False) -> list[Effect]:
        if self.phase is Phase.FINISHED:
            return []
        self._enter(Phase.FINISHED, now)
        return [Finish(resigned=resigned, retired=retired)]

    def retire(self, now: float) -> list[Effect]:
        """This node is no member any more: nobody would speak to it."""
        if self.phase is Phase.FINISHED:
            return []
        text = "this node was removed from the federation: nobody exchanges with it any more, and it stops"
        return [Alarm(kind="removed", peer=None, text=text), *self._finish(now, retired=True)]

    def resign(self, now: float) -> list[Effect]:
        """Another process has this node's key and was there before: both must not train."""
        if self.phase is Phase.FINISHED:
            return []
        text = "one key speaks from two places: another process has this node's key and began earlier; this one stops"
        return [Alarm(kind="two-places", peer=None, text=text), *self._finish(now, resigned=True)]

    def _commit(self, *, trained: bool, rho: float, now: float) -> CommitRound:
        self.working = True
        pending = [edge.exchange.record.pending for edge in self.edges.values()]
        frozen = [request.weight for request in pending if request is not None]
        # What is on its way to the engine was weighed with the n of now, which is no more than halved either.
        least = max([self.facts.weight, *frozen]) * (self.facts.degree + 1) / 2
        # Where the graph has changed, some were weighed with another degree: that is no reason to claim more than n.
        return CommitRound(
            version=self.facts.version + 1,
            trained=trained,
            rho=rho,
            elapsed_s=self.training.elapsed_s(now),
            least_samples=min(least, self.facts.samples),
            alone=self.facts.alone,
            best=self.training.best,
        )
