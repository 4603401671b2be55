"""Adds the masked vectors over the graph: a wave out from a root, and the parts of its tree back.

Segall's propagation of information with feedback (1983, doi 10.1109/TIT.1983.1056620): a node's parent is the neighbor
who brought the wave first, and it answers once all its other neighbors have told their part or that they are in another
branch. So one wave makes a tree of whoever is there, and counts nobody twice; a part carries the set of its members all
the same, and is merged only with parts of others. Who does not answer is polled, and left out when it stays silent;
what a wave has lost, the next one, of a higher epoch, finds again. Everything here is masked: nodes that are in no set-
up carry parts too.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np

from p2pfl.features.sums.board import Taken
from p2pfl.features.sums.masks import WORD_BYTES, Words
from p2pfl.features.sums.sum_effects import Effects
from p2pfl.features.sums.sum_messages import (
    BranchPart,
    Poll,
    Total,
    Want,
    Wave,
    Working,
    bits_of,
    members_of,
    total_digest,
)

Key: TypeAlias = tuple[bytes, int]
"""A set-up and the number of a sum."""
MOST_POLLS = 4
"""A neighbor that has not answered so many polls is left out of this wave; and more, where vectors are large: what is
said comes behind pieces of them.
"""
MOST_WAVES, MOST_TOTALS = 8, 3


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
    asked: int = 0
    """How often the parent has polled since the part was sent."""

    @property
    def order(self) -> tuple[int, int]:
        wave = self.taken.statement
        return (wave.epoch if isinstance(wave, Wave) else -1), -self.taken.author

    def merged(self, own: tuple[int, bytes, Words] | None) -> tuple[frozenset[int], Words]:
        """All parts and one's own vector, added; without a part that overlaps with others or has another length."""
        members: frozenset[int] = frozenset()
        total: Words = np.zeros(0, "<u8")
        wave = self.taken.statement
        if own is not None and isinstance(wave, Wave) and wave.terms == own[1]:
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
        self.gathered: dict[Key, tuple[bytes, frozenset[int], Words]] = {}
        """Where this node is the root: the wave, and what it has brought."""
        self.changed: set[Key] = set()
        """The sums with something gathered, or a total, that nobody has looked at yet."""
        self._branches: OrderedDict[Key, Branch] = OrderedDict()
        self._totals: OrderedDict[bytes, Total] = OrderedDict()
        self._by_wave: dict[bytes, Key] = {}

    def is_busy(self) -> bool:
        return any(branch.waiting for branch in self._branches.values())

    def wave(self, taken: Taken, neighbors: Iterable[int], effects: Effects) -> None:
        """A wave that is new here. An older epoch than the present one is left alone."""
        wave = taken.statement
        if not isinstance(wave, Wave):
            raise TypeError("no wave")
        key = wave.setup, wave.number
        branch, before = Branch(taken=taken, waiting=set(neighbors) - {taken.peer}), self._branches.get(key)
        if before is not None and before.order >= branch.order:
            return
        if before is not None:
            del self._by_wave[before.taken.id]
            self.gathered.pop(key, None)
        self._branches[key], self._by_wave[taken.id] = branch, key
        if len(self._branches) > MOST_WAVES:
            self._by_wave.pop(self._branches.popitem(last=False)[1].taken.id)
        self._answer(key, branch, effects)

    def again(self, peer: int, wave: bytes, effects: Effects) -> None:
        """The same wave once more: tell that neighbor that this node is in another branch.

        Whether the neighbor is in this node's branch only the neighbor knows: it may have filled a gap of the past.
        """
        key = self._by_wave.get(wave)
        if key is not None and self._branches[key].taken.peer != peer:
            effects.say(peer, Working(wave=wave, is_child=False))

    def gone(self, peer: int, effects: Effects) -> None:
        for key, branch in list(self._branches.items()):
            branch.waiting.discard(peer)
            self._answer(key, branch, effects)

    def hear_poll(self, peer: int, poll: bytes, effects: Effects, *, more: int = 0) -> None:
        """A neighbor waits for this node's part in a wave that is known here.

        `more`: for so many polls the part may be on its way.
        """
        key = self._by_wave.get(poll)
        branch = self._branches[key] if key is not None else None
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
        key = self._by_wave.get(working.wave)
        if key is None:
            return
        branch = self._branches[key]
        branch.silent[peer] = 0
        if not working.is_child:
            branch.waiting.discard(peer)
            self._answer(key, branch, effects)

    def hear_part(self, peer: int, part: BranchPart, effects: Effects) -> None:
        key = self._by_wave.get(part.wave)
        if key is None or len(part.vector) % WORD_BYTES:
            return
        branch = self._branches[key]
        if branch.sent is None and key not in self.gathered and peer not in branch.parts and peer != branch.taken.peer:
            branch.parts[peer] = frozenset(members_of(part.members)), np.frombuffer(part.vector, "<u8")
            branch.waiting.discard(peer)
            self._answer(key, branch, effects)

    def poll(self, effects: Effects, *, more: int = 0) -> None:
        """Remind everybody who is waited for; leave out who does not answer `MOST_POLLS` polls and so many more."""
        for key, branch in list(self._branches.items()):
            for peer in sorted(branch.waiting):
                branch.silent[peer] += 1
                if branch.silent[peer] > MOST_POLLS + more:
                    branch.waiting.discard(peer)
                else:
                    effects.say(peer, Poll(wave=branch.taken.post))
            self._answer(key, branch, effects)

    def _answer(self, key: Key, branch: Branch, effects: Effects) -> None:
        """Once nobody is waited for: tell the parent, or be done as the root."""
        if branch.waiting or branch.sent is not None:
            return
        parent = branch.taken.peer
        if parent is None:
            if key not in self.gathered or self.gathered[key][0] != branch.taken.id:
                self.gathered[key] = branch.taken.id, *branch.merged(self.own.get(key))
                self.changed.add(key)
            return
        members, total = branch.merged(self.own.get(key))
        branch.sent = BranchPart(wave=branch.taken.id, members=bits_of(members), vector=total.tobytes())
        effects.say(parent, branch.sent)

    def total(self, digest: bytes) -> Total | None:
        return self._totals.get(digest)

    def publish(self, total: Total, effects: Effects, peer: int | None = None) -> None:
        """Take a total, and hand it down the tree."""
        digest = total_digest(total.setup, total.number, total.members, total.vector)
        if digest in self._totals or len(total.vector) % WORD_BYTES:
            return
        self._totals[digest] = total
        self.changed.add((total.setup, total.number))
        if len(self._totals) > MOST_TOTALS:
            self._totals.popitem(last=False)
        branch = self._branches.get((total.setup, total.number))
        for child in sorted(branch.parts) if branch is not None else ():
            if child != peer:
                effects.say(child, total)

    def want(self, digest: bytes, peer: int, effects: Effects) -> None:
        effects.say(peer, Want(total=digest))

    def hear_want(self, peer: int, want: Want, effects: Effects) -> None:
        total = self._totals.get(want.total)
        if total is not None:
            effects.say(peer, total)
