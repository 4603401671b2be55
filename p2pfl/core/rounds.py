"""The phases of a node: wait for a neighbor, (join,) train and mix, mix without training, linger, finish.

Each round, local or mixing, makes a new version of this node's model. The *round barrier* then waits until every live
edge has completed an exchange with it, or until that edge's patience ends: a dead neighbor costs nothing, a slow one
next to nothing. In the robust profile exchanges only send each end the other's model; after each round's exchanges one
rule is applied to this node's model and the replicas of the connected neighbors. With 2 b or fewer of them, the b liars
could be half, so nothing is mixed.

A node that starts with no memory in a federation that has moved on joins first: it lets its neighbors fill its
replicas, and starts from their coordinate median, at their round. `termination` decides when training is complete, and
when it ends.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import assert_never

from p2pfl.core.edge import Amending, Edge, announce, is_accompanied, say_done
from p2pfl.core.events import (
    Alarm,
    Bootstrap,
    Bootstrapped,
    CommitRound,
    Effect,
    Finish,
    Mix,
    Mixed,
    RoundCommitted,
    RoundEvent,
    RoundRefused,
    RoundTrained,
    Started,
    StartRound,
    StopRequested,
)
from p2pfl.core.limits import Repeats, UsualTime
from p2pfl.core.members import Memory
from p2pfl.core.settings import NEVER, Facts, Phase, Settings
from p2pfl.core.termination import Reason, Termination
from p2pfl.core.training import JOIN_WAIT_S, LEAST_JOIN_ROUND_S, Beginning, Training
from p2pfl.limits import LONGEST_JOIN_S, PATIENCE_MULTIPLE

LEAST_USUAL_WAIT_S = 0.25


@dataclass(slots=True, eq=False, repr=False)
class RoundBarrier:
    """The wait after a node's latest round. `usual` is the usual exchange time on its live edges."""

    edges: Mapping[int, Edge]
    usual: UsualTime
    settings: Settings
    is_waiting: bool = False
    """True while exchanges of the latest version are neither completed nor given up."""
    began_at: float = 0.0
    training_s: float = 0.0
    """How long the latest local round trained, in seconds."""
    awaited: Edge | None = None
    """The edge that the barrier waits for longest."""

    def begin(self, now: float) -> list[Effect]:
        """Begin to wait: the node has a new version."""
        self.is_waiting = True
        self.began_at = now
        effects: list[Effect] = []
        for edge in self.edges.values():
            effects += edge.begin_round(now)
        return effects

    def ends_at(self, now: float, phase: Phase, phase_from: float) -> float:
        """Return when the wait ends, as far as is known now; a value up to `now` means it is over.

        One late edge with patience left is enough to keep waiting; the others are checked when it is served.
        """
        median_s, awaited = self.usual.median_s(self.settings.max_wait_s), self.awaited
        if awaited is not None and self._is_late(awaited, now):
            end = self._patience_end(awaited, phase, phase_from, median_s)
            if now < end:
                return end
        late = [edge for edge in self.edges.values() if self._is_late(edge, now)]
        if not late:
            self._book(now, phase, median_s)
            return self._rest_end(phase)
        end, last = max((self._patience_end(edge, phase, phase_from, median_s), edge.peer) for edge in late)
        self.awaited = self.edges[last]
        if now >= end:
            for edge in late:
                edge.service.miss(self.began_at)
            self._book(end, phase, median_s)
        return end

    def _is_late(self, edge: Edge, now: float) -> bool:
        """Return True if the barrier waits for the edge; not for a neighbor that must itself wait for the engine."""
        if not edge.line.is_open or edge.service.is_served or edge.exchange.leaves:
            return False
        return edge.exchange.engine_time.wait_s(edge.peer, now) == 0.0

    def complain(self, now: float) -> list[Effect]:
        """Return the alarms about neighbors that never answer, or never answer a greeting."""
        effects: list[Effect] = []
        for edge in self.edges.values():
            if edge.line.session is None:
                continue
            if not edge.is_open and edge.service.has_turn:
                edge.service.go_without(self.began_at)
            effects += edge.service.complain(now)
        return effects

    def _book(self, end: float, phase: Phase, median_s: float) -> None:
        """Charge the last neighbor that the barrier waited for with the time since the others finished.

        If several are late to the end, one of them is charged with it all; when its budget is used up, the next one is.
        """
        awaited, self.awaited = self.awaited, None
        if awaited is None or phase is not Phase.TRAINING:
            return
        others = (edge.service for edge in self.edges.values() if edge is not awaited)
        others_at = (service.served_at for service in others if service.is_served)
        alone_from = max(self.began_at, max(others_at, default=self.began_at))
        if end > alone_from:
            awaited.service.patience.book_wait(end - alone_from, end - self.began_at, median_s, end)

    def _patience_end(self, edge: Edge, phase: Phase, phase_from: float, median_s: float) -> float:
        """Return when the wait for this edge ends. `median_s` is the usual exchange time on all live edges."""
        patience = edge.service.patience
        wait_s = patience.wait_s()
        if wait_s > self.training_s:  # the usual wait is never shorter than the training time
            wait_s = min(wait_s, self._usual_wait_s(median_s))
        if phase is Phase.TRAINING:  # the other phases are short, and end in the same way for all nodes
            return self.began_at + min(wait_s, patience.afford_s(median_s, self.began_at))
        if phase is Phase.JOINING:
            return self.began_at + max(wait_s, LEAST_JOIN_ROUND_S)
        progress = edge.progress
        if progress.keeps_step:  # the exchange begins when both ends are there; `Rounds` waits for the other as long
            both_from = max(self.began_at, progress.closing_heard_at)
            return phase_from + self.settings.linger_s if progress.is_awaited else both_from + wait_s
        return self.began_at + wait_s

    def _usual_wait_s(self, median_s: float) -> float:
        """Return the usual wait, in seconds: one edge that is much slower than the others must not set the pace.

        The barrier waits as long as a round trains, as the (lower) median edge needs, or for a quarter of a second.
        """
        return max(self.training_s, PATIENCE_MULTIPLE * median_s, LEAST_USUAL_WAIT_S)

    def _rest_end(self, phase: Phase) -> float:
        """Return the end of a round in which the schedule has no edge of this node: it rests as an exchange takes.

        Otherwise nodes that rest most would finish first, and what the others learn later would have the most weight.
        """
        rests = not any(edge.service.has_turn for edge in self.edges.values())
        if phase is not Phase.TRAINING or not rests:
            return self.began_at
        return self.began_at + min(self.usual.median_s(0.0), self.settings.max_wait_s)


GRACE = 4
"""A lack of replicas is reported after so many rounds in a row: a new edge takes two exchanges to fill its own."""
UNMOVED_ROUNDS = 10
"""Mixes without an effect are reported after so many in a row. Where nobody lies there were up to 3, measured with two
digits per node; under the attack `mirror`, no mix has one.
"""


@dataclass(slots=True, eq=False, repr=False)
class Mixing:
    """The mixing of rounds: by a rule, and whether there was anybody to mix with.

    `alone` counts the rounds mixed with no neighbor, `mixed` the others: with the mean, the local rounds at whose end a
    neighbor was connected. `too_few`, `nothing_kept` and `hardly_mixes` are the states that were last reported.
    """

    edges: Mapping[int, Edge]
    facts: Facts
    settings: Settings
    mixed: int = 0
    alone: int = 0
    too_few: bool = False
    nothing_kept: bool = False
    hardly_mixes: bool = False
    _exchanges: int = 0
    _in_a_row: int = 0
    _unmoved: int = 0

    def begin(self) -> list[Effect]:
        """Return the effects once a round's exchanges are done, including `Mix` if there is something to mix."""
        if not self.settings.profile.mixes_by_rule:
            return self._count_exchanged()
        shares = {peer: edge.exchange.share() for peer, edge in self.edges.items()}
        present = tuple(peer for peer, part in shares.items() if part > 0.0)
        if not self.is_safe(len(present)):
            self.alone += 1
            self._in_a_row += 1
            return [*self._miss(len(present)), *self._judge()]
        self._in_a_row = 0
        weights = tuple(shares[peer] for peer in present)
        effects = self._judge()
        if self.too_few:
            self.too_few = False
            text = f"there are fresh models of {len(present)} neighbors again: mixing continues"
            effects.append(Alarm(kind="enough-neighbors", peer=None, text=text))
        return [*effects, Mix(peers=present, weights=weights)]

    def _count_exchanged(self) -> list[Effect]:
        """Count a local round by whether any exchange was completed since the one before."""
        exchanges, before = sum(edge.service.exchanges for edge in self.edges.values()), self._exchanges
        self._exchanges = exchanges
        could = any(edge.is_open and edge.service.has_turn for edge in self.edges.values())
        if self.facts.closing is not None or not (could or exchanges != before):
            return []
        self.mixed += exchanges != before
        self.alone += exchanges == before
        return self._judge()

    def _judge(self) -> list[Effect]:
        """Report once that most rounds mixed with nobody; too few neighbors for a rule are reported as such."""
        if self.hardly_mixes or self.too_few or self.alone <= self.mixed or self.alone + self.mixed < UNMOVED_ROUNDS:
            return []
        self.hardly_mixes = True
        text = f"{self.alone} of {self.alone + self.mixed} rounds mixed with no neighbor's model"
        return [Alarm(kind="hardly-mixes", peer=None, text=text)]

    def end(self, *, failed: bool, moved: bool) -> list[Effect]:
        """Record the end of a mix, `failed` if there is no model; report once that it keeps nothing, or does again."""
        self.mixed += not failed
        self.alone += failed
        if failed:
            text = "the rule raised, or gave no finite model: nothing was mixed"
            return [Alarm(kind="mixing-failed", peer=None, text=text)]
        self._unmoved = 0 if moved else self._unmoved + 1
        nothing = self._unmoved >= UNMOVED_ROUNDS
        if self.nothing_kept == nothing:
            return []
        self.nothing_kept = nothing
        text = f"in {UNMOVED_ROUNDS} rounds in a row the rule kept next to nothing of any neighbor's model"
        if nothing:
            return [Alarm(kind="nothing-kept", peer=None, text=text)]
        return [Alarm(kind="kept-again", peer=None, text="the rule keeps something of the neighbors' models again")]

    def is_safe(self, neighbors: int) -> bool:
        """Return True if, among this many neighbors, the liars cannot choose the result."""
        return neighbors >= self.settings.profile.neighbors_needed

    def _miss(self, present: int) -> list[Effect]:
        """Report once that there are too few neighbors."""
        there = sum(edge.is_open for edge in self.edges.values())
        if self.too_few or (self.is_safe(there) and self._in_a_row < GRACE):
            return []
        self.too_few = True
        text = f"{there} neighbors are connected, with fresh models of {present}: {self.settings.profile.condition}"
        return [Alarm(kind="too-few-neighbors", peer=None, text=text)]


IDLE_S = 0.5
"""How often a node that no longer trains checks whether the federation has ended, in seconds."""


class Rounds:
    """The phases of one node, in sequence."""

    def __init__(self, amending: Amending, memory: Memory) -> None:
        common = amending.neighbors
        edges, facts, settings = common.edges, common.facts, common.settings
        self.edges: Mapping[int, Edge] = edges
        self.facts = facts
        self.settings = settings
        self.amending = amending
        self.repeats = Repeats(facts)
        """When to repeat where this node stands, in the phases in which its neighbors wait for it."""
        self.beginning = Beginning(edges, facts, settings, common.told_lifetimes, self.repeats, memory.fresh)
        self.training = Training(edges, facts, settings, memory.elapsed_s, best=memory.best)
        self.barrier = RoundBarrier(edges, common.usual, settings)
        self.mixing = Mixing(edges, facts, settings)
        self.termination = Termination(edges, facts, settings, common.members, self.training)
        self.phase = Phase.WAITING
        self.phase_from = 0.0
        self.working = True
        """True while the engine or the trainer owes an answer, and until the node starts."""
        self.due = NEVER
        """When `advance` must be called next."""

    # -- events -----------------------------------------------------------------------------------------------------

    def take(self, event: RoundEvent, now: float) -> list[Effect]:
        match event:
            case RoundTrained():
                return self._handle_trained(event, now)
            case RoundCommitted():
                return self._handle_committed(event, now)
            case RoundRefused():
                return self._handle_refused(event, now)
            case Started():
                return self._handle_started(now) + self.beginning.told_lifetimes.forget_removed()
            case Bootstrapped():
                self.working = False
                self.facts.joining = False
                self.training.take_over(*self.beginning.resume_point)
                if self.phase is Phase.JOINING:
                    self._enter(Phase.TRAINING, now)
                return []
            case Mixed(failed=failed, moved=moved):
                self.working = False
                return self.mixing.end(failed=failed, moved=moved)
            case StopRequested():
                return self._finish(now)
        assert_never(event)

    def _handle_started(self, now: float) -> list[Effect]:
        self.working = False
        self.facts.started_at = now
        self._enter(Phase.LINGERING if self.facts.done else Phase.WAITING, now)
        exchanges = {peer: edge.exchange for peer, edge in self.edges.items()}
        if self.facts.done:
            # A request that is still open when the federation has ended dates from before the end. Its answer was
            # computed with an old model and would move this node away from the final one.
            text = "the federation has ended, and a request from before its end was open"
            asking = [each for each in exchanges.values() if each.record.pending is not None]
            return [
                effect
                for exchange in asking
                for effect in exchange.resync(exchange.record.incarnation + 1, text, now, notice=True)
            ]
        if self.facts.rounds:
            known = [peer for peer, exchange in exchanges.items() if exchange.record.seq or exchange.record.incarnation]
            self.termination.members.remember(known, now)
        return []

    def _handle_trained(self, event: RoundTrained, now: float) -> list[Effect]:
        if self.phase is Phase.FINISHED:
            return []
        training, waited_s = self.training, event.waited_s
        self.barrier.training_s = now - training.round_from - waited_s
        self.facts.alone += bool(self.edges) and not training.accompanied
        if self.phase is Phase.CLOSING:  # all do equally many, and no figure of them ends training
            return [self._commit(trained=True, rho=1.0, now=now)]
        training.look_at(event.figure)
        return [self._commit(trained=True, rho=training.correction(event.steps, waited_s, now), now=now)]

    def _handle_refused(self, event: RoundRefused, now: float) -> list[Effect]:
        """Handle a round that may not begin. If no later one may either, the node has trained enough and only mixes."""
        if self.phase is Phase.FINISHED:
            return []
        self.working = False
        self.training.refused_until = now + IDLE_S
        effects = self.termination.handle_refusal(event, now)
        if self.phase is Phase.CLOSING:
            effects.append(self._commit(trained=False, rho=0.0, now=now))
        return effects

    def _handle_committed(self, event: RoundCommitted, now: float) -> list[Effect]:
        self.working = False
        self.facts.version = event.version
        self.facts.rounds = event.rounds
        self.training.note(now)
        self.facts.samples = float(event.samples)
        if self.phase is Phase.CLOSING:
            self.facts.closing = self.facts.closing_rounds_done + 1
            if self.settings.closing_trains:  # each round is long, and so is a neighbor's: the wait begins anew
                self.phase_from = now
        effects: list[Effect] = []
        if event.failed:
            self.training.failed_rounds += 1
            text = f"round {event.rounds} was dropped: it raised, or ended in no finite model (learning_rate too high?)"
            effects.append(Alarm(kind="round-failed", peer=None, text=text))
        self.repeats.restart(now)
        return effects + self.barrier.begin(now)

    # -- the next step ------------------------------------------------------------------------------------------------

    def advance(self, now: float) -> list[Effect]:
        """Advance as far as the state of the edges and the time allow."""
        self.due = NEVER
        if self.working:
            return []
        effects: list[Effect] = []
        if self.barrier.is_waiting:
            self.due = self.barrier.ends_at(now, self.phase, self.phase_from)
            if now < self.due:
                return []
            self.barrier.is_waiting = False
            effects = self.barrier.complain(now)
            if self.phase in (Phase.TRAINING, Phase.CLOSING):
                effects += self.mixing.begin()
                self.working = any(isinstance(effect, Mix) for effect in effects)
        if not self.working:
            if self.amending.pending_change is not None and self.phase is not Phase.FINISHED:
                self.due = self.amending.due_at(now)
                if now < self.due:
                    return effects
                self.barrier.awaited = self.beginning.awaited = None
                effects += self.amending.take_effect(self.phase, now)
            effects += self._go_on(now)
            self.due = self._deadline(now)
        return effects

    def _go_on(self, now: float) -> list[Effect]:
        match self.phase:
            case Phase.WAITING:
                effects = self.beginning.wait(now, self.phase_from)
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
        """Return when `advance` must be called next, once the latest round has settled."""
        if self.working or self.phase is Phase.FINISHED:
            return NEVER
        if self.phase is Phase.WAITING:
            return self.beginning.due_at(now, self.phase_from)
        if self.phase is Phase.JOINING:
            late_at = self.phase_from + JOIN_WAIT_S
            return late_at if now < late_at else self.phase_from + LONGEST_JOIN_S
        if self.phase in (Phase.CLOSING, Phase.LINGERING):
            return min(self.phase_from + self.settings.linger_s, self.repeats.next_at)
        if (next_at := self.termination.next_round_at(now)) > now:
            return min(next_at, now + IDLE_S)
        return max(self.barrier.began_at, self.training.refused_until)

    # -- phases -----------------------------------------------------------------------------------------------------

    def _enter(self, phase: Phase, now: float) -> None:
        self.phase = phase
        self.phase_from = now

    def _begin(self, now: float) -> list[Effect]:
        self.beginning.end()
        self.repeats.restart(now)
        effects = announce(self.edges)
        if self.beginning.moved_on():
            effects += self.beginning.join()
            self._enter(Phase.JOINING, now)
            return effects + self._join(now)
        self.facts.joining = False
        self._enter(Phase.TRAINING, now)
        return effects + self._train(now)

    def _join(self, now: float) -> list[Effect]:
        """Tick without training until the replicas are filled; then start from the neighbors' median."""
        late = now >= self.phase_from + JOIN_WAIT_S
        sources = self.beginning.sources(late=late)
        if sources:
            self.working = True
            rounds, elapsed_s = self.beginning.find_resume_point(sources)
            bare = not self.settings.fragments.keys().isdisjoint(sources)
            text = f"starting from the {'mean' if bare else 'coordinate median'} of {len(sources)} neighbors"
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
        self.beginning.rounds += 1
        return [self._commit(trained=False, rho=0.0, now=now)] if accompanied else []

    def _train(self, now: float) -> list[Effect]:
        training, termination = self.training, self.termination
        if training.begin(now):
            termination.members.begin(now)
        effects = termination.note_if_enough(now)
        reason, news = termination.reason_to_end(now)
        effects += news
        if reason is not None:
            return effects + self._start_closing(reason, now)
        effects += termination.say_wait(now)
        if termination.next_round_at(now) > now or now < training.refused_until:
            return effects
        return [*effects, self._start_round(now)]

    def _start_round(self, now: float, closing: int = 0) -> StartRound:
        self.working = True
        away = self.termination.absent_neighbors(now)
        accompanied = len(away) < len(self.edges)
        self.training.begin_round(now, accompanied=accompanied)
        away = away if accompanied else ()
        return StartRound(index=self.facts.rounds, accompanied=accompanied, closing=closing, away=away)

    def _start_closing(self, reason: Reason, now: float) -> list[Effect]:
        self._enter(Phase.CLOSING, now)
        self.termination.ended_by = reason
        self.facts.closing = 0
        self.repeats.restart(now)
        effects: list[Effect] = []
        if not self.termination.has_completed:
            text = f"training ended with the others' after round {self.facts.rounds}: {reason}"
            effects.append(Alarm(kind="stopped-early", peer=None, text=text))
        return effects + announce(self.edges) + self._close(now)

    def _close(self, now: float) -> list[Effect]:
        """Run the closing rounds, to remove the disagreement left by training: without training, or with less and less,
        for liars move what only mixes round by round, and nothing pulls it back.

        Each round waits until no live neighbor is more than one round behind: the first until the neighbors have
        stopped training, the second until their neighbors have. So what the last node learned still reaches every node.
        """
        closed = self.facts.closing_rounds_done
        if closed >= self.settings.closing_rounds:
            self._enter(Phase.LINGERING, now)
            self.facts.done = True
            self.repeats.restart(now)
            return say_done(self.edges) + self._linger(now)
        there = [edge for edge in self.edges.values() if edge.is_open and not self.termination.is_mute(edge, now)]
        behind = any(not edge.progress.has_closed(closed) for edge in there)
        self.facts.out_of_step = now >= self.phase_from + self.settings.linger_s
        if behind and not self.facts.out_of_step:
            return announce(self.edges) if self.repeats.due(now) else []
        if self.settings.closing_trains and not self.training.out_of_budget:
            return [self._start_round(now, closed + 1)]
        return [self._commit(trained=False, rho=0.0, now=now)]

    def _linger(self, now: float) -> list[Effect]:
        waited = now >= self.phase_from + self.settings.linger_s
        late = [edge for edge in self.edges.values() if not (edge.progress.done or edge.line.is_shut)]
        if waited or all(self.termination.is_mute(edge, now) for edge in late):
            return self._finish(now)
        return say_done(self.edges) if self.repeats.due(now) else []

    def _finish(self, now: float, *, resigned: bool = False, retired: bool = False) -> list[Effect]:
        if self.phase is Phase.FINISHED:
            return []
        self._enter(Phase.FINISHED, now)
        return [Finish(resigned=resigned, retired=retired)]

    def leave(self, alarm: Alarm, now: float, *, resigned: bool = False, retired: bool = False) -> list[Effect]:
        """Stop for good, and raise the alarm that says why."""
        if self.phase is Phase.FINISHED:
            return []
        return [alarm, *self._finish(now, resigned=resigned, retired=retired)]

    def _commit(self, *, trained: bool, rho: float, now: float) -> CommitRound:
        self.working = True
        facts, behind = self.facts, self.settings.profile.samples_behind
        pending = {peer: edge.exchange.record.pending for peer, edge in self.edges.items()}
        frozen = [behind(request.weight, peer, facts) for peer, request in pending.items() if request is not None]
        # Operations queued at the engine were weighed with the current n, and n may not fall below half of that.
        least = max([facts.weight * (facts.degree + 1), *frozen]) / 2
        # After a change of the graph some were weighed with another degree; the bound is still at most n.
        return CommitRound(
            version=self.facts.version + 1,
            trained=trained,
            rho=rho,
            elapsed_s=self.training.elapsed_s(now),
            least_samples=min(least, self.facts.samples),
            alone=self.facts.alone,
            best=self.training.best,
        )
