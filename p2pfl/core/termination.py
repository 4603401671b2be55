"""The end of a federation: all nodes stop together, by a rule that each applies to what it knows of the members.

A node that has *completed* all its own training answers its neighbors and trains a few rounds more, most of them later
(`Training.next_at`); otherwise the nodes still training would pull the common model toward their own data. Every node
stops training, at the end of a round, in any of these cases:
- every member that has begun has completed, and so have the connected neighbors;
- half of the members that have begun completed `linger_s` ago, or a quarter of the node's own training time ago if that
  is longer;
- fewer than half have completed, this node is one of them, and it has seen no progress in others for that long, or has
  gone on for fifty times as long as it trained;
- every connected neighbor has stopped; a node that has not completed ignores neighbors that plan fewer rounds;
- every member that has not completed is in quarantine, or has been absent for that long.

A node stopped by this rule has not completed; otherwise one early end would run around a ring. On a sparse graph a node
knows little about distant members, so with a robust rule *half* means half of all. It waits for no removed member.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from p2pfl.core.edge import Edge, announce
from p2pfl.core.events import Alarm, Effect, RoundRefused
from p2pfl.core.members import MemberProgress
from p2pfl.core.settings import NEVER, Facts, Settings
from p2pfl.core.training import Training
from p2pfl.limits import LONGEST_MULTIPLE

TRAINING_SHARE = 0.25
"""How long a node waits for members that are slower or gone, as a fraction of its own training time."""
ROUNDS_OF_SILENCE = 3.0
"""The number of its own rounds that a neighbor may miss before it counts as silent."""
AWAY_S = 3.0
"""After so many seconds away a neighbor keeps no node training; the end waits longer: `Termination.wait_s`."""


class Reason(enum.StrEnum):
    """Why training ended."""

    ALL = "everybody who had begun was through"
    PRESENT = "everybody who took part was through"
    HALF = "half of those who had begun were through, and had waited for the others"
    SILENCE = "nobody else made progress any longer"
    LONG = "it had gone on for fifty times as long as it had trained"
    NEIGHBORS = "every neighbor that was there had stopped training"


@dataclass(slots=True, eq=False, repr=False)
class Termination:
    """Decides whether this node has done all its own training, and whether training ends now for everyone.

    It judges `training` and what the neighbors say; `Rounds` acts on the verdict.

    A member that is gone or in quarantine, or keeps a session but exchanges nothing, is no reason to keep training.
    Only its neighbors can see that. So a node that has completed sends a *level*, as it does before its first
    round: at level h, every member within h hops has completed or is absent. A neighbor that sees an unfinished
    member at work sends no level, which holds back the level of every node around it. When the level reaches the
    farthest member, this node *rests*: it answers and does not train, until some member takes part again or the
    federation ends.
    """

    edges: Mapping[int, Edge]
    facts: Facts
    settings: Settings
    members: MemberProgress
    training: Training
    unfinished: int = field(default=0, init=False)
    """The bitmap of members that kept the federation from ending at the latest `look`."""
    rests: bool = field(default=False, init=False)
    """True if every member that takes part has completed, as far as this node can tell."""
    _reported: int = field(default=0, init=False)
    """The bitmap of neighbors whose absence has been reported to the user."""
    ended_by: Reason | None = None
    """The reason why this node has stopped training; None if it has not."""
    says_wait_at: float | None = None
    """When to tell the user for whom this node waits; None until it has completed, NEVER once told."""

    @property
    def has_completed(self) -> bool:
        """True if this node has done all its own training."""
        return self.members.has_completed

    @property
    def awaited(self) -> list[int]:
        """The other members for which this node waits, or that had not completed when training ended."""
        shown = self.has_completed or self.ended_by is not None
        bits = self.unfinished & ~self.members.own if shown else 0
        return [member for member in range(bits.bit_length()) if bits >> member & 1]

    def next_round_at(self, now: float) -> float:
        """Return when the next round may begin; until then, this node only answers its neighbors."""
        if not self.has_completed:
            return now
        return NEVER if self.rests else self.training.next_at(now)

    # -- the own training ---------------------------------------------------------------------------------------------

    def handle_refusal(self, event: RoundRefused, now: float) -> list[Effect]:
        """Handle a refused round; if no later round can begin either, this node has completed."""
        training = self.training
        if not event.for_good or training.out_of_budget:
            return []
        training.out_of_budget = event.why
        self.members.complete(now)
        text = f"nothing more is trained after round {training.facts.rounds}: {event.why}"
        kind = "budget-spent" if event.planned else "no-budget"
        return [Alarm(kind=kind, peer=None, text=text, notice=event.planned)]

    def note_if_enough(self, now: float) -> list[Effect]:
        """Record when this node has trained enough; tell the user once if `stop` decided that."""
        enough = self.training.enough(now)
        self.training.note_completed(now, completed=enough is not None)
        if enough is None:
            return []
        had_completed = self.has_completed
        self.members.complete(now)
        if had_completed or self.settings.stop is None:
            return []
        text = f"this node has trained enough after round {self.training.facts.rounds}: {enough}"
        return [Alarm(kind="trained-enough", peer=None, text=text, notice=True)]

    def say_wait(self, now: float) -> list[Effect]:
        """Tell the user once for whom this node waits, if it has completed a while ago."""
        if not self.has_completed:
            self.says_wait_at = None
        elif self.says_wait_at is None:
            self.says_wait_at = now + AWAY_S
        elif now >= self.says_wait_at and (awaited := self.awaited):
            self.says_wait_at = NEVER
            others = f" and {len(awaited) - 1} more" if awaited[1:] else ""
            text = f"after {self.training.facts.rounds} rounds this node is through, and waits for this member{others}"
            return [Alarm(kind="waits-for", peer=awaited[0], text=text, notice=True)]
        return []

    # -- the end for everyone -----------------------------------------------------------------------------------------

    def reason_to_end(self, now: float) -> tuple[Reason | None, list[Effect]]:
        """Return the reason why training ends now, or None, and the effects of judging the other members."""
        edges, settings, members = self.edges.values(), self.settings, self.members
        open_edges = sum(edge.is_open for edge in edges)
        recent = [edge for edge in edges if edge.line.was_open_lately(now, settings.linger_s)]
        claims, bound = members.claims, members.bound
        unaware = [] if members.has_completed else [edge.peer for edge in recent if claims[edge.peer].lags(bound)]
        training = _bits(edge.peer for edge in recent if edge.peer in unaware or not edge.progress.has_stopped)
        training &= members.counted
        stopped = not training and open_edges >= settings.profile.words_needed
        trained_s, unfinished = self.training.elapsed_s(now), (members.begun | training) & members.counted
        unfinished &= ~members.completed
        reason = self.over(now, trained_s=trained_s, unfinished=unfinished, stopped=stopped)
        news = self._look(unfinished, now)
        if reason is None and self._is_over(self.wait_s(trained_s), now):
            reason = Reason.PRESENT
        return reason, news

    def over(self, now: float, *, trained_s: float, unfinished: int, stopped: bool) -> Reason | None:
        """Return the reason to stop now, at the end of a round, after `trained_s` of training; None to go on.

        `stopped` says that there are neighbors and none of them still trains.
        """
        members = self.members
        if members.completed & members.counted and not unfinished:
            return Reason.ALL
        if stopped:
            return Reason.NEIGHBORS
        wait_s = self.wait_s(trained_s)
        if members.half_at is not None and now >= members.half_at + wait_s:
            return Reason.HALF
        if not members.has_completed or members.completed_at is None:
            return None
        if now >= members.new_at + wait_s and not self._is_progress(now, wait_s):
            return Reason.SILENCE
        since_s = now - members.completed_at
        return Reason.LONG if since_s >= max(wait_s, LONGEST_MULTIPLE * (trained_s - since_s)) else None

    def wait_s(self, trained_s: float) -> float:
        return max(self.settings.linger_s, TRAINING_SHARE * trained_s)

    def is_mute(self, edge: Edge, now: float) -> bool:
        """Return True if this neighbor has been inactive for so long that the end of training does not wait for it."""
        return edge.is_open and self._is_absent(edge, self.wait_s(self.training.elapsed_s(now)), now)

    def _is_progress(self, now: float, wait_s: float) -> bool:
        """Return True if enough neighbors progress: a new version within `wait_s`, or within a few of their rounds."""
        moving = sum(
            claims.progress_at is not None
            and now < claims.progress_at + max(wait_s, ROUNDS_OF_SILENCE * claims.round_s)
            for claims in self.members.claims.values()
        )
        return moving >= self.settings.profile.words_needed

    # -- who is absent near the end -----------------------------------------------------------------------------------

    def _look(self, unfinished: int, now: float) -> list[Effect]:
        """Judge the members that have not completed, after a round or at rest; return what to send and to report."""
        self.unfinished = unfinished
        level_before, level = self.facts.settled, self._level(now)
        self.facts.settled = level
        self.rests = level is not None and level >= self.settings.hops
        effects = announce(self.edges) if level != level_before else []
        return effects + self._name(now) if self.rests else effects

    def _is_over(self, wait_s: float, now: float) -> bool:
        """Return True if the wait for absent members is over, by this node's view or that of enough neighbors."""
        if not self.rests:
            return False
        stopped = sum(edge.is_open and edge.progress.has_stopped for edge in self.edges.values())
        return not self.unfinished & ~self._absent(wait_s, now) or stopped >= self.settings.profile.words_needed

    def absent_neighbors(self, now: float) -> tuple[int, ...]:
        """Return the neighbors without a session, or silent for `AWAY_S`; mixing with them is not balanced."""
        mute = (edge for edge in self.edges.values() if edge.is_open and edge.service.is_mute)
        silent = {edge for edge in mute if now - edge.service.unanswered_from >= self._limit_s(edge, AWAY_S)}
        return tuple(peer for peer, edge in self.edges.items() if not edge.is_open or edge in silent)

    def _absent(self, limit_s: float, now: float) -> int:
        """Return the bitmap of unfinished neighbors in quarantine, or that have taken no part for `limit_s` seconds."""
        out = _bits(peer for peer, edge in self.edges.items() if edge.line.reputation.is_out)
        return out & self.unfinished | self._idle(limit_s, now)

    def _idle(self, limit_s: float, now: float) -> int:
        return _bits(peer for peer, edge in self.edges.items() if self._is_absent(edge, limit_s, now))

    def _is_absent(self, edge: Edge, limit_s: float, now: float) -> bool:
        return now - self._idle_from(edge) >= self._limit_s(edge, limit_s)

    def _limit_s(self, edge: Edge, least_s: float) -> float:
        """Return how long a neighbor may be silent, in seconds; one with long rounds or a slow line gets more time."""
        usual_s = max(self.members.claims[edge.peer].round_s, edge.service.patience.exchange_s or 0.0)
        return max(least_s, ROUNDS_OF_SILENCE * usual_s)

    def _idle_from(self, edge: Edge) -> float:
        """Return when an unfinished neighbor last showed a new version, or last exchanged one if that was earlier.

        NEVER if it has had no session since this node started: such a neighbor is not judged.
        """
        service, since = edge.service, self.members.claims[edge.peer].progress_at
        if since is None or not self.unfinished >> edge.peer & 1:
            return NEVER
        return min(since, service.unanswered_from) if service.is_mute else since

    def _level(self, now: float) -> int | None:
        """Return the level to send; None if there is none, or if a neighbor is still working on its rounds."""
        if not (self.unfinished and self.members.half_at is not None and self.members.has_completed):
            return None
        absent, near = self._absent(AWAY_S, now), [edge for edge in self.edges.values() if not edge.line.is_shut]
        met = _bits(edge.peer for edge in near if self.members.claims[edge.peer].progress_at is not None)
        if self.unfinished & met & ~absent:
            return None
        there = [edge.progress for edge in near if edge.is_open and not absent >> edge.peer & 1]
        if not absent and all(progress.settled is None for progress in there):
            return None  # no neighbor is absent: the unfinished members are at work elsewhere
        levels = (-1 if each.settled is None else each.settled for each in there if not each.has_stopped)
        return min(self.settings.hops, 1 + min(levels, default=self.settings.hops))

    def _name(self, now: float) -> list[Effect]:
        """Report to the user, once each, the neighbors that are absent."""
        absent = self._idle(AWAY_S, now) & ~self._reported
        self._reported |= absent
        text = "all others are through; it has taken no part for {:.0f} s, so no node trains on for it"
        named = [edge for peer, edge in self.edges.items() if absent >> peer & 1]
        idle_s = {edge.peer: now - self._idle_from(edge) for edge in named}
        return [Alarm(kind="takes-no-part", peer=peer, text=text.format(idle_s[peer])) for peer in idle_s]


def _bits(members: Iterable[int]) -> int:
    return sum(1 << member for member in members)
