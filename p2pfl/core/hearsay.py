"""Hearsay about lives: a node believes neighbors within limits, and passes on news over all its lines.

Edges keep flows in the conservative profile alone; the robust profile needs no word about lives.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from p2pfl.core.edge_line import EdgeLine
from p2pfl.core.effects import Effect, NoteLife
from p2pfl.core.facts import Facts
from p2pfl.core.lives import Life, LifeNews, Lives
from p2pfl.core.messages import MOST_LIVES_TOLD, LivesTold
from p2pfl.core.settings import Settings

CHALLENGE_EVERY_S = 5.0
"""The least seconds between two messages that tell a connected neighbor about another life of its own."""


@dataclass(slots=True, eq=False, repr=False)
class Hearsay:
    """The part of a node that believes and passes on words about members' lives."""

    lives: Lives
    lines: Mapping[int, EdgeLine]
    facts: Facts
    settings: Settings

    def welcome(self, line: EdgeLine, life: Life, earlier: Life | None, news: LifeNews, now: float) -> list[Effect]:
        """Tell a neighbor that has just greeted which lives this node knows.

        `earlier` is the life in which this node believed the neighbor to be.
        """
        if not self.settings.profile.keeps_flows:
            return []
        lives = self.lives.lives_to_send()
        if earlier is not None and earlier.name != life.name and earlier.generation >= life.generation:
            lives.append((line.peer, earlier))  # from it a node without memory learns its own generation
        # When a federation begins, every member is new to every other: that is no news.
        is_under_way = self.facts.rounds > 0 or self.lives.own.generation > 0
        if news is not LifeNews.KNOWN and (life.generation or is_under_way):
            self.lives.note_news(line.peer, line.peer)
        return _tell(line, lives) + self.pass_on_due(now)

    def hear(self, line: EdgeLine, member: int, life: Life, now: float) -> tuple[list[Effect], bool]:
        """Take a neighbor's word about a life. True: the member has lost its memory of this node's edge to it."""
        lives = self.lives
        if member == lives.index:
            return self._announce_claim() if lives.claim(life) else [], False
        life = lives.raise_generation(member, life)
        news = lives.judge(member, life)
        if news in {LifeNews.KNOWN, LifeNews.STALE} or member >= self.settings.members or line.news.take(now) > 0.0:
            return [], False
        own_line = self.lines.get(member)
        if news is LifeNews.NEW and own_line is not None and own_line.greeting.is_open:
            # It has greeted in its current life. It must learn of the other one itself, and say which one it is in.
            if now < own_line.challenged_at + CHALLENGE_EVERY_S:
                return [], False
            own_line.challenged_at = now
            return _tell(own_line, [(member, life)]), False
        lives.latest[member] = life
        lives.note_news(line.peer, member)
        if news is not LifeNews.NEW or own_line is None:
            return [NoteLife(member=member, life=life)], False
        return [], True

    def pass_on_due(self, now: float) -> list[Effect]:
        """Tell every neighbor of the lives that were news here, if some are due."""
        if now < self.lives.due_at:
            return []
        news = self.lives.take_news(now)
        effects: list[Effect] = []
        for line in self.lines.values():
            if line.greeting.is_open:
                for_peer = [(member, life) for member, source, life in news if line.peer not in {member, source}]
                effects += _tell(line, for_peer)
        return effects

    def claim_another(self) -> list[Effect]:
        """Claim a later life where the others have moved on: a node without memory may have had an earlier one."""
        return self._announce_claim() if self.settings.profile.keeps_flows and self.lives.claim_another() else []

    def _announce_claim(self) -> list[Effect]:
        """Tell all neighbors of this node's later life, and of neighbors in generation 0, which may have had others."""
        lives = self.lives
        there = [line for line in self.lines.values() if line.greeting.is_open]
        for line in there:
            if line.peer in lives.latest and not lives.latest[line.peer].generation:
                lives.note_news(line.peer, line.peer)
        told = [effect for line in there for effect in _tell(line, [(lives.index, lives.own)])]
        return [NoteLife(member=None, life=lives.own), *told]


def _tell(line: EdgeLine, lives: Sequence[tuple[int, Life]]) -> list[Effect]:
    rows = [(member, life.generation, life.name) for member, life in lives]
    parts = [tuple(rows[first : first + MOST_LIVES_TOLD]) for first in range(0, len(rows), MOST_LIVES_TOLD)]
    return [effect for part in parts for effect in line.say(LivesTold(lives=part))]
