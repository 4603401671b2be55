"""Adds the masked vectors over the graph: a wave out from a root, and the parts of its tree back.

Segall's propagation of information with feedback (1983, doi 10.1109/TIT.1983.1056620): a node's parent is the neighbor
who brought the wave first, and it answers once all its other neighbors have told their part or that they are in another
branch. So one wave makes a tree of whoever is there, and counts nobody twice; a part carries the set of its members all
the same, and is merged only with parts of others. Who does not answer is polled, and left out when it stays silent;
what a wave has lost, the next one, of a higher epoch, finds again. Everything here is masked: nodes that are in no set-
up carry parts too.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np

from p2pfl.features.sums.arithmetic import WORD_BYTES, Words
from p2pfl.features.sums.messages import (
    BranchPart,
    Effects,
    Poll,
    Total,
    Want,
    Working,
    bits_of,
    members_of,
)
from p2pfl.features.sums.statement_log import Taken

Key: TypeAlias = tuple[bytes, int]
"""A set-up and the number of a sum."""
MOST_POLLS = 4
"""A neighbor that has not answered so many polls is left out of this wave; and more, where vectors are large: what is
said comes behind pieces of them.
"""
MOST_WAVES, MOST_TOTALS = 2, 3
"""The latest sums of which an author's waves are kept, and its totals. The trees of two authors are two."""
MOST_WORKING = 12
"""Polls in which a neighbor may say that it waits itself; half as many after each wave that it has held so."""


@dataclass(slots=True, kw_only=True)
class Branch:
    """One node's place in the tree of one wave."""

    taken: Taken
    waiting: set[int]
    parts: dict[int, tuple[frozenset[int], Words]] = field(default_factory=dict)
    """The parts of the children, by neighbor."""
    sent: BranchPart | None = None
    silent: Counter[int] = field(default_factory=Counter)
    """The polls that each neighbor has left unanswered in a row."""
    slow: set[int] = field(default_factory=set)
    """The neighbors who have said for too long that they wait themselves."""
    asked: int = 0
    """How often the parent has polled since the part was sent."""
    polls: int = 0
    """The polls of this wave."""

    @property
    def key(self) -> Key:
        return self.taken.wave.setup, self.taken.wave.number

    def merged(self, own: tuple[int, bytes, Words] | None) -> tuple[frozenset[int], Words]:
        """All parts and one's own vector, added; without a part that overlaps with others or has another length."""
        members: frozenset[int] = frozenset()
        total: Words = np.zeros(0, "<u8")
        if own is not None and self.taken.wave.terms == own[1]:
            members, total = frozenset({own[0]}), own[2].copy()
        for _, (others, vector) in sorted(self.parts.items()):
            if not others or members & others or (members and vector.size != total.size):
                continue
            total = total + vector if members else vector.copy()
            members |= others
        return members, total


class Tree:
    def __init__(self) -> None:
        self.own: dict[Key, tuple[int, bytes, Words]] = {}
        """This node's own index, terms and masked vector, for each sum that it takes part in."""
        self.gathered: dict[Key, tuple[bytes, frozenset[int], Words, frozenset[int]]] = {}
        """Where this node is the root: the wave, what it has brought, and who has said for too long that it waits."""
        self.changed: set[Key] = set()
        """The sums with something gathered, or a total, that nobody has looked at yet."""
        self._branches: dict[tuple[Key, int], Branch] = {}
        """The latest wave of each author, by sum."""
        self._totals: dict[bytes, tuple[int, Total]] = {}
        """By digest, with the author of the list."""
        self._by_wave: dict[bytes, Branch] = {}
        self._slow: Counter[int] = Counter()
        """The waves that a neighbor has held, since it last brought its part in one."""

    def is_busy(self) -> bool:
        return any(branch.waiting for branch in self._branches.values())

    def wave(self, taken: Taken, neighbors: Iterable[int], effects: Effects) -> None:
        """A wave that is new here. An older one of its author's than the present one is left alone."""
        branch = Branch(taken=taken, waiting=set(neighbors) - {taken.peer})
        place = branch.key, taken.author
        before = self._branches.get(place)
        if before is not None and before.taken.wave.epoch >= taken.wave.epoch:
            return
        if taken.peer is None:
            self.gathered.pop(branch.key, None)
        of = [each for each in self._branches if each[1] == taken.author and each != place]
        for old in ([] if before is None else [place]) + of[: len(of) + 1 - MOST_WAVES]:
            del self._by_wave[self._branches.pop(old).taken.id]
        self._branches[place] = self._by_wave[taken.id] = branch
        self._answer(branch, effects)

    def again(self, peer: int, wave: bytes, effects: Effects) -> None:
        """The same wave once more: tell that neighbor that this node is in another branch.

        Whether the neighbor is in this node's branch only the neighbor knows: it may have filled a gap of the past.
        """
        branch = self._by_wave.get(wave)
        if branch is not None and branch.taken.peer != peer:
            effects.say(peer, Working(wave=wave, is_child=False))

    def gone(self, peer: int, effects: Effects) -> None:
        for branch in list(self._branches.values()):
            branch.waiting.discard(peer)
            self._answer(branch, effects)

    def hear_poll(self, peer: int, poll: bytes, effects: Effects, *, more: int = 0) -> None:
        """A neighbor waits for this node's part in a wave that is known here.

        `more`: for so many polls the part may be on its way.
        """
        branch = self._by_wave.get(poll)
        if branch is None or branch.taken.peer != peer:
            effects.say(peer, Working(wave=poll, is_child=False))
            return
        if branch.sent is None:
            effects.say(peer, Working(wave=poll, is_child=True))
            return
        branch.asked += 1
        # It may be on its way still, as it is large: so not at each poll.
        late = branch.asked - more
        again = late >= 2 and late & (late - 1) == 0
        effects.say(peer, branch.sent if again else Working(wave=poll, is_child=True))

    def hear_working(self, peer: int, working: Working, effects: Effects) -> None:
        branch = self._by_wave.get(working.wave)
        if branch is None:
            return
        branch.silent[peer] = 0
        if not working.is_child:
            branch.waiting.discard(peer)
            self._answer(branch, effects)

    def hear_part(self, peer: int, part: BranchPart, effects: Effects) -> None:
        branch = self._by_wave.get(part.wave)
        if branch is None or len(part.vector) % WORD_BYTES:
            return
        self._slow.pop(peer, None)
        is_over = branch.sent is not None or (branch.taken.peer is None and branch.key in self.gathered)
        if not is_over and peer not in branch.parts and peer != branch.taken.peer:
            branch.parts[peer] = frozenset(members_of(part.members)), np.frombuffer(part.vector, "<u8")
            branch.waiting.discard(peer)
            self._answer(branch, effects)

    def poll(self, effects: Effects, *, more: int = 0) -> None:
        """Remind everybody who is waited for; leave out who does not answer `MOST_POLLS` polls and so many more, and
        who says for too long that it waits itself.
        """
        for branch in list(self._branches.values()):
            branch.polls += 1
            for peer in sorted(branch.waiting):
                branch.silent[peer] += 1
                is_slow = branch.polls > (MOST_WORKING >> self._slow[peer]) + more
                if is_slow or branch.silent[peer] > MOST_POLLS + more:
                    self._slow[peer] += is_slow
                    branch.slow |= {peer} if is_slow else set()
                    branch.waiting.discard(peer)
                else:
                    effects.say(peer, Poll(wave=branch.taken.post))
            self._answer(branch, effects)

    def _answer(self, branch: Branch, effects: Effects) -> None:
        """Once nobody is waited for: tell the parent, or be done as the root."""
        if branch.waiting or branch.sent is not None:
            return
        parent, key = branch.taken.peer, branch.key
        if parent is None:
            if key not in self.gathered or self.gathered[key][0] != branch.taken.id:
                self.gathered[key] = branch.taken.id, *branch.merged(self.own.get(key)), frozenset(branch.slow)
                self.changed.add(key)
            return
        members, total = branch.merged(self.own.get(key))
        branch.sent = BranchPart(wave=branch.taken.id, members=bits_of(members), vector=total.tobytes())
        effects.say(parent, branch.sent)

    def total(self, digest: bytes) -> Total | None:
        return self._totals.get(digest, (0, None))[1]

    def publish(self, total: Total, digest: bytes, author: int, effects: Effects, peer: int | None = None) -> None:
        """Take the total of a list, and hand it down the tree of the list's author."""
        if digest in self._totals or len(total.vector) % WORD_BYTES:
            return
        self._totals[digest] = author, total
        key = total.setup, total.number
        self.changed.add(key)
        of = [each for each, (by, _) in self._totals.items() if by == author]
        for old in of[:-MOST_TOTALS]:
            del self._totals[old]
        branch = self._branches.get((key, author))
        for child in sorted(branch.parts) if branch is not None else ():
            if child != peer:
                effects.say(child, total)

    def hear_want(self, peer: int, want: Want, effects: Effects) -> None:
        total = self.total(want.total)
        if total is not None:
            effects.say(peer, total)
