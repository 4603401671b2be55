"""Decide whether this node has done all its own training, and whether training ends now for everyone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from p2pfl.core.company import AWAY_S, Company
from p2pfl.core.edge import Edge
from p2pfl.core.effects import Alarm, Effect
from p2pfl.core.ending import Ending, Reason
from p2pfl.core.events import RoundRefused
from p2pfl.core.facts import NEVER
from p2pfl.core.settings import Settings
from p2pfl.core.training import Training


@dataclass(slots=True, eq=False, repr=False)
class Completion:
    """Judges this node's `training` and its neighbors' claims; `Rounds` acts on the verdict."""

    edges: Mapping[int, Edge]
    settings: Settings
    ending: Ending
    company: Company
    training: Training
    says_wait_at: float | None = None
    """When to tell the user for whom this node waits; None until it is through, NEVER once told."""

    @property
    def unfinished(self) -> list[int]:
        """The other members for which this node waits, or that were not through when training ended."""
        shown = self.ending.is_through or self.ending.ended_by is not None
        bits = self.company.unfinished & ~self.ending.census.own if shown else 0
        return [member for member in range(bits.bit_length()) if bits >> member & 1]

    def next_round_at(self, now: float) -> float:
        """Return when the next round may begin; until then, this node only answers its neighbors."""
        if not self.ending.is_through:
            return now
        return NEVER if self.company.rests else self.training.next_at(now)

    def handle_refusal(self, event: RoundRefused, now: float) -> list[Effect]:
        """Handle a refused round; if no later round can begin either, this node is through."""
        training = self.training
        if not event.for_good or training.out_of_budget:
            return []
        training.out_of_budget = event.why
        self.ending.census.complete(now)
        text = f"nothing more is trained after round {training.facts.rounds}: {event.why}"
        if event.planned:
            return [Alarm(kind="budget-spent", peer=None, text=text, notice=True)]
        return [Alarm(kind="no-budget", peer=None, text=text)]

    def note_if_enough(self, now: float) -> list[Effect]:
        """Record when this node has trained enough; tell the user once if `stop` decided that."""
        enough = self.training.enough(now)
        self.training.note_through(now, through=enough is not None)
        if enough is None:
            return []
        was_through = self.ending.is_through
        self.ending.census.complete(now)
        if was_through or self.settings.stop is None:
            return []
        text = f"this node has trained enough after round {self.training.facts.rounds}: {enough}"
        return [Alarm(kind="trained-enough", peer=None, text=text, notice=True)]

    def reason_to_end(self, now: float) -> tuple[Reason | None, list[Effect]]:
        """Return the reason why training ends now, or None, and the effects of judging the other members."""
        edges, settings, census = self.edges.values(), self.settings, self.ending.census
        open_edges = sum(edge.is_open for edge in edges)
        recent = [edge for edge in edges if edge.line.was_open_lately(now, settings.linger_s)]
        unaware = () if census.is_through else [edge.peer for edge in recent if census.lags(edge.peer)]
        training = sum(1 << edge.peer for edge in recent if edge.peer in unaware or not edge.progress.has_stopped)
        training &= census.counted
        out = sum(1 << edge.peer for edge in edges if edge.line.standing.is_out)
        stopped = not training and open_edges >= settings.profile.words_needed
        trained_s, unfinished = self.training.elapsed_s(now), self.ending.unfinished(training, out)
        reason = self.ending.over(now, trained_s=trained_s, unfinished=unfinished, stopped=stopped)
        news = self.company.look(unfinished, now)
        if reason is None and self.company.is_over(self.ending.wait_s(trained_s), now):
            reason = Reason.COMPANY
        return reason, news

    def say_wait(self, now: float) -> list[Effect]:
        """Tell the user once for whom this node waits, if it has been through for a while."""
        if not self.ending.is_through:
            self.says_wait_at = None
        elif self.says_wait_at is None:
            self.says_wait_at = now + AWAY_S
        elif now >= self.says_wait_at and (awaited := self.unfinished):
            self.says_wait_at = NEVER
            others = f" and {len(awaited) - 1} more" if awaited[1:] else ""
            text = f"after {self.training.facts.rounds} rounds this node is through, and waits for this member{others}"
            return [Alarm(kind="waits-for", peer=awaited[0], text=text, notice=True)]
        return []

    def is_mute(self, edge: Edge, now: float) -> bool:
        """Return True if this neighbor has been inactive for so long that the end of training does not wait for it."""
        return self.company.is_mute(edge, self.ending.wait_s(self.training.elapsed_s(now)), now)
