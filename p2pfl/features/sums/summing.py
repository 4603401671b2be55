"""One sum at one member: from its vector to the sum of a named set of members, or the reason why there is none. And the
tree that adds the masked vectors over the graph: a wave out from a root, and the parts of its tree back.

Segall's propagation of information with feedback (1983, doi 10.1109/TIT.1983.1056620): a node's parent is the neighbor
who brought the wave first, and it answers once all its other neighbors have told their part or that they are in another
branch. So one wave makes a tree of whoever is there, and counts nobody twice; a part carries the set of its members all
the same, and is merged only with parts of others. Who does not answer is polled, and left out when it stays silent;
what a wave has lost, the next one, of a higher epoch, finds again. All is masked, so nodes in no set-up carry parts.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field
from math import comb
from typing import Any, TypeAlias

import numpy as np

from p2pfl.features.sums.arithmetic import WORD_BYTES, Words
from p2pfl.features.sums.messages import (
    BranchPart,
    Effects,
    GroupWave,
    Keep,
    MemberList,
    Poll,
    Refused,
    Reveal,
    SlotQuit,
    SlotVote,
    Statement,
    SumDone,
    Total,
    VectorReady,
    Wave,
    Working,
    bits_of,
    members_of,
    total_digest,
)
from p2pfl.features.sums.records import SlotTally, SumHistory
from p2pfl.features.sums.setup import SumSetup
from p2pfl.features.sums.statement_log import Blame, NewStatement
from p2pfl.limits import MOST_EPOCHS, MOST_POLLS, MOST_SHARE_TRIES, MOST_TURNS, MOST_WORKING

Key: TypeAlias = tuple[bytes, int]
"""A set-up and the number of a sum."""
MOST_WAVES, MOST_TOTALS, LARGE_BYTES = 2, 3, 2**20
"""The latest sums of which an author's waves are kept, and its totals, if large of two. Two authors have two trees."""


@dataclass(slots=True, kw_only=True)
class Branch:
    """One node's place in the tree of one wave."""

    taken: NewStatement
    waiting: set[int]
    parts: dict[int, tuple[frozenset[int], Words]] = field(default_factory=dict)
    """The parts of the children, by neighbor."""
    sent: BranchPart | Working | None = None
    silent: Counter[int] = field(default_factory=Counter)
    """The polls that each neighbor has left unanswered in a row."""
    slow: set[int] = field(default_factory=set)
    """The neighbors who have said for too long that they wait themselves."""
    asked: int = 0
    """The polls of the parent since the part was sent."""
    polls: int = 0
    """The polls of this wave."""
    is_whole: bool = True
    """False once a neighbor was left out that has not answered."""

    @property
    def key(self) -> Key:
        return self.taken.wave.setup, self.taken.wave.number

    def merged(self, own: tuple[int, bytes, Words] | None) -> tuple[frozenset[int], Words]:
        """All parts and one's own vector, added; without a part that overlaps with others or has another length."""
        members: frozenset[int] = frozenset()
        total: Words = np.zeros(0, "<u8")
        wave = self.taken.wave
        asked = frozenset(members_of(wave.members)) if isinstance(wave, GroupWave) else None
        size = None
        if own is not None and wave.terms == own[1]:
            size = own[2].size
            if asked is None or own[0] in asked:
                members, total = frozenset({own[0]}), own[2].copy()
        for _, (others, vector) in sorted(self.parts.items()):
            if not others or members & others or not others <= (asked or others) or size not in {None, vector.size}:
                continue
            size = vector.size
            total = total + vector if members else vector.copy()
            members |= others
        return members, total


class Tree:
    def __init__(self) -> None:
        self.own: dict[Key, tuple[int, bytes, Words]] = {}
        """This node's own index, terms and masked vector, for each sum that it takes part in."""
        self.gathered: dict[Key, tuple[bytes, frozenset[int], Words, frozenset[int]]] = {}
        """For each sum with this node as root: the wave, the members and total that it brought, and who was slow."""
        self.changed: set[Key] = set()
        """The sums with something gathered, or a total, that nobody has looked at yet."""
        self._branches: dict[tuple[Key, int], Branch] = {}
        """The latest wave of each author, by sum."""
        self._totals: dict[bytes, tuple[int, Total]] = {}
        """The totals by digest, each with the author of the list."""
        self._by_wave: dict[bytes, Branch] = {}
        self.latest: Branch | None = None
        """The latest wave's, once its place in the tree is known here and until somebody looks."""
        self._slow: Counter[int] = Counter()
        """The waves that a neighbor has held, since it last brought its part in one."""

    def is_busy(self) -> bool:
        return any(branch.waiting for branch in self._branches.values())

    def wave(self, taken: NewStatement, neighbors: Iterable[int], effects: Effects) -> None:
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
        """The same wave once more: that neighbor is in another branch, as it would not send it to its parent.

        Tell it that so is this node; its own child it knows itself.
        """
        branch = self._by_wave.get(wave)
        if branch is not None and branch.taken.peer != peer:
            effects.say(peer, Working(wave=wave, is_child=False))
            branch.waiting.discard(peer)
            self._answer(branch, effects)

    def gone(self, peer: int, effects: Effects) -> None:
        for branch in list(self._branches.values()):
            branch.is_whole &= peer not in branch.waiting
            branch.waiting.discard(peer)
            self._answer(branch, effects)

    def hear_poll(self, peer: int, poll: bytes, effects: Effects, *, more: int = 0) -> None:
        """A neighbor waits for a part in a known wave; `more`: for so many polls the part may be on its way."""
        branch = self._by_wave.get(poll)
        if branch is None or branch.taken.peer != peer:
            effects.say(peer, Working(wave=poll, is_child=False))
            return
        branch.asked += branch.sent is not None
        # It may be on its way still, as it is large: so not at each poll.
        late = branch.asked - more
        again = branch.sent if late >= 2 and late & (late - 1) == 0 else None
        effects.say(peer, again or Working(wave=poll, is_child=True))

    def hear_working(self, peer: int, working: Working, effects: Effects) -> None:
        branch = self._by_wave.get(working.wave)
        if branch is None:
            return
        branch.silent[peer] = 0
        if not working.is_child:
            if peer == branch.taken.peer:  # it keeps no tree
                branch.is_whole, self.latest = False, branch
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
        """Remind all who are waited for; leave out who is silent too often, or says too long that it waits itself."""
        for branch in list(self._branches.values()):
            branch.polls += 1
            for peer in sorted(branch.waiting):
                branch.silent[peer] += 1
                is_slow = branch.polls > (MOST_WORKING >> self._slow[peer]) + more
                if is_slow or branch.silent[peer] > MOST_POLLS + 1 + more:
                    branch.is_whole = False
                    self._slow[peer] += is_slow
                    branch.slow |= {peer} if is_slow else set()
                    branch.waiting.discard(peer)
                elif branch.polls > 1:  # until then answers are on their way
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
                self.latest = branch
            return
        members, total = branch.merged(self.own.get(key))
        branch.sent = BranchPart(wave=branch.taken.id, members=bits_of(members), vector=total.tobytes())
        effects.say(parent, branch.sent)
        self.latest = branch

    def links(self, branch: Branch) -> frozenset[int] | None:
        """Return the neighbors in a wave's tree, if all are known that may be in it, and it is the sum's only one."""
        is_only = all(author == branch.taken.author for key, author in self._branches if key == branch.key)
        parent = set() if branch.taken.peer is None else {branch.taken.peer}
        return frozenset(parent | branch.parts.keys()) or None if branch.is_whole and is_only else None

    def total(self, digest: bytes) -> Total | None:
        return self._totals.get(digest, (0, None))[1]

    def publish(self, total: Total, digest: bytes, author: int, effects: Effects, peer: int | None = None) -> None:
        """Take the total of a list, and hand it down the tree of the list's author."""
        if digest in self._totals or len(total.vector) % WORD_BYTES:
            return
        self._totals[digest] = author, total
        self.changed.add(key := (total.setup, total.number))
        for old in [each for each, (by, _) in self._totals.items() if by == author][:-MOST_TOTALS]:
            del self._totals[old]
        branch = self._branches.get((key, author))
        for child in sorted(branch.parts) if branch is not None else ():
            if child != peer:
                effects.say(child, total)

    def end(self, key: Key) -> None:
        """Forget the parts of a sum that is known now, and large totals but this one and the last."""
        for branch in [branch for (of, _), branch in self._branches.items() if of == key]:
            branch.parts = dict.fromkeys(branch.parts, (frozenset(), np.zeros(0, "<u8")))
            branch.sent = Working(wave=branch.taken.id, is_child=False)
        for digest, (_, total) in list(self._totals.items()):
            if len(total.vector) > LARGE_BYTES and total.setup == key[0] and total.number < key[1] - 1:
                del self._totals[digest]


LATE, OVER = 6, 10
"""After so many waits a member gives a sum up that has no list; after so many it waits no more."""
MINE, NEXT = 0, 1  # ranks of roots
TURN, EARLY, WAVE = 1.5, 0.5, 0.9
"""In waits: a root's turn at least; how much earlier its list is signed; how much later it is blamed, with a wave."""
SPARED = 16
"""One of so many sums waits for members, too, that were not in the sum before: twice as long, as they begin late."""
STRANGE = "this member sums other things than the others"
OTHER_SIZE = "the masked sum has another size"


@dataclass(frozen=True, slots=True, kw_only=True)
class SumRequest:
    """A vector to be summed, asked for at time `at`, `pause_s` after the last sum, of `before`. `data`: its digest."""

    label: str
    values: Words
    terms: bytes
    data: bytes
    only: frozenset[int] = frozenset()
    before: frozenset[int] = frozenset()
    pause_s: float
    at: float


Step: TypeAlias = Statement | Total | Keep
"""The next thing that a sum does: state something, hand a total down, or write down what it signs."""


class Sum:
    """The sum of one number of a set-up. It has no `asked` while others are ahead of this member."""

    def __init__(  # noqa: PLR0917 - what a sum is made of
        self,
        setup: SumSetup,
        number: int,
        tally: SlotTally,
        tree: Tree,
        history: SumHistory,
        now: float,
        blame: Blame,
    ) -> None:
        self.setup, self.number, self._tally, self._tree, self._blame = setup, number, tally, tree, blame
        self._history = history
        self.asked: SumRequest | None = None
        self.outcome: SumDone | Refused | None = None
        """The result, without its label."""
        self.has_waited = False
        """True if it ended by waiting in vain."""
        self._index = setup.settings.index
        self._clock = _Clock(began=now)
        self._last = self._missed = frozenset[int]()
        self._lost: frozenset[int] = frozenset()
        """The members, with groups, whose parts an own wave has not brought, nor that before it."""
        self._forgetful, self._is_spent = frozenset[int](), False
        """Who has forgotten the set-up; True once the latest own wave has brought nothing that can be a list."""
        self._flaws: dict[bytes, str] = {}
        """Why this member does not sign a list, by the list's id; empty: nothing is wrong."""
        self._flaw = ""
        """The latest reason for which it has signed none."""
        self._alike, self._strange = set[int](), set[int]()
        """The members with a vector: those of the roster who sum the same as this one, and who sums other things."""
        self._secrets: _Secrets | None = None
        """The secrets that are known and those that are lacking, once there is a certificate."""
        self.missing_total: bytes = b""
        """The digest of a total that this member needs and does not have."""

    @property
    def key(self) -> tuple[bytes, int]:
        return self.setup.id, self.number

    def ask(self, asked: SumRequest, now: float) -> None:
        """Begin with this member's vector; too late for that, the sum is that of the others."""
        self.asked = asked
        self._clock.began = self._clock.moved = now
        if self.outcome is None and self._tally.certified is None:
            self._tree.own[self.key] = self._index, asked.terms, self.setup.masked(asked.values, self.number)
        elif (certified := self._tally.certified) is not None and certified.terms != asked.terms:
            self.refuse(STRANGE)
        elif isinstance(self.outcome, Refused):
            self.refuse(self.outcome.reason, has_waited=self.has_waited)

    def moved(self, now: float) -> None:
        """Something about this sum has come in."""
        self._clock.moved = now

    def has_voted(self) -> bool:
        return self._index in self._tally.signed or self._index in self._tally.quit

    def is_out(self) -> bool:
        """True if this member's masked vector may be in a list that others certify, now or later."""
        asked, tally = self.asked, self._tally
        if asked is None or all(taken.wave.terms != asked.terms for taken in tally.waves.values()):
            return False
        if tally.certified is not None:
            return self._index in members_of(tally.certified.members)
        return not tally.is_dead

    def must_end_here(self) -> bool:
        """True if a list was signed, or may be: given up for a new set-up, the same vector might be in two sums."""
        return self.has_voted() or self._tally.certified is not None or self.is_out()

    def refuse(self, reason: str, *, has_waited: bool = False) -> None:
        """End without a sum here, with what is known of the others."""
        asked, ready = self.asked, self._tally.ready
        self.has_waited = has_waited
        self.outcome = Refused(
            label="",
            reason=reason,
            differ=tuple(member for member, terms in sorted(ready.items()) if asked and terms != asked.terms),
            is_out=self.is_out(),
            missing=tuple(member for member in range(self.setup.settings.count) if member not in ready),
        )

    def act(self, now: float, wait_s: float, forgetful: frozenset[int]) -> Iterator[Step]:
        """Yield what to do now, each done before the next is asked for. `forgetful`: with groups, who has restarted."""
        self._forgetful = forgetful
        if self.outcome is not None:
            return
        tally = self._tally
        if tally.certified is not None:
            yield from self._finish(tally.certified, now, wait_s)
        elif tally.is_dead:
            reasons = Counter(tally.quit.values())
            self.refuse(min(reasons, key=lambda reason: (-reasons[reason], reason)))
        elif self.asked is not None:
            yield from self._agree(self.asked, now, wait_s)

    def _agree(self, asked: SumRequest, now: float, wait_s: float) -> Iterator[Step]:
        tally = self._tally
        if self._index not in tally.ready:
            yield VectorReady(setup=self.setup.id, number=self.number, terms=asked.terms)
        if self._index not in tally.quit:
            yield from self._lead(asked, now, wait_s)
            yield from self._vote(asked, now, wait_s)
        yield from self._tire(asked, now, wait_s)

    def _lead(self, asked: SumRequest, now: float, wait_s: float) -> Iterator[Step]:
        """Send the wave out, if it is this member's turn, and propose what it has brought."""
        tally, clock, settings = self._tally, self._clock, self.setup.settings
        self._strange = {member for member, theirs in tally.ready.items() if theirs != asked.terms}
        self._alike = ready = (tally.ready.keys() - self._strange) & self.setup.roster
        is_spared = self.number % SPARED == 0
        if not clock.is_quorum and len(ready) >= settings.quorum:
            # As long again as these took since the sum before: about the same moment at all members.
            clock.quorum = now + (1 + is_spared) * (now - asked.at + asked.pause_s)
            clock.is_quorum, clock.spread_s = True, now - clock.began
        if clock.is_quorum and self.setup.roster & (self.setup.roster if is_spared else asked.before) <= ready:
            clock.quorum = min(clock.quorum, now)
        gathered = self._tree.gathered.get(self.key)
        if gathered is not None:
            wave = tally.waves[gathered[0]].wave
            due = frozenset(members_of(wave.members)) if isinstance(wave, GroupWave) else frozenset(ready)
            yield from self._propose(asked, *gathered[1:], due)
        elif self._index in tally.signed:
            return
        elif clock.is_quorum and self._is_turn(ready, now, wait_s) and self._may_ask():
            clock.moved = now
            yield self._wave(asked)

    def _may_ask(self) -> bool:
        """True if this member may send another wave; with groups, if parts come of it that can be a list."""
        return self._own_waves() < MOST_TURNS and not (self.setup.settings.groups and self.setup.flaw(self._due))

    def _own_waves(self) -> int:
        return sum(taken.author == self._index for taken in self._tally.waves.values())

    def _is_turn(self, ready: Collection[int], now: float, wait_s: float) -> bool:
        """The lowest that held nothing up begins, when all are ready or were waited for; the next if nothing moves."""
        clock, rank = self._clock, self._rank(self._index)
        patience = 0.0 if len(ready) == len(self.setup.roster) else 2 * clock.spread_s + wait_s
        waves = self._tally.waves.values()
        if rank == MINE and all(self._blame.is_struck(taken.author) for taken in waves):
            return now >= clock.quorum + patience
        turn_s = min(patience, 2 * wait_s) + wait_s * (1 + TURN * rank)
        is_over = rank > MINE and not self._own_waves() and now > clock.quorum + turn_s
        return is_over or now > max(clock.moved, clock.quorum) + wait_s * (rank + NEXT)

    def _rank(self, member: int) -> int:
        return sum(self._blame.turn(each) < self._blame.turn(member) for each in self._alike)

    def _may_lead(self, member: int, now: float, wait_s: float) -> bool:
        """True if a list of this member may be signed: it is ready, and its turn has come."""
        rank, clock = self._rank(member), self._clock
        in_time = rank == MINE or (clock.is_quorum and now > clock.quorum + wait_s * (rank + NEXT - EARLY))
        return member in self._alike and in_time

    def _wave(self, asked: SumRequest) -> Wave:
        self._is_spent = False
        most = MOST_TURNS * self.setup.settings.count  # a larger one is a liar's
        epochs = (taken.wave.epoch for taken in self._tally.waves.values())
        epoch = max((epoch for epoch in epochs if epoch <= most), default=-1) + 1
        name: dict[str, Any] = {"setup": self.setup.id, "number": self.number, "epoch": epoch, "terms": asked.terms}
        return GroupWave(**name, members=bits_of(self._due)) if self.setup.settings.groups else Wave(**name)

    @property
    def _due(self) -> frozenset[int]:
        """The members whose parts a wave asks for: those who are ready; with groups, those of whole ones."""
        return self.setup.settings.whole(frozenset(self._alike) - self._lost)

    def _propose(
        self, asked: SumRequest, members: frozenset[int], total: Words, slow: frozenset[int], due: frozenset[int]
    ) -> Iterator[Step]:
        """Propose who has come, or ask again if one of `due` was missed; not if it alone holds its part back."""
        del self._tree.gathered[self.key]
        self._is_spent = True
        if self._index in self._tally.authors.values():
            return
        missed = due - members
        is_held = len(missed) == 1 and missed <= slow
        if is_held:
            self._blame.strike(min(missed), "it has said for too long that it waits for parts of a wave")
        if self.setup.settings.groups:
            self._lost |= missed if is_held else missed & self._missed
            self._missed = missed
        if self.setup.settings.whole(members) != members:
            yield from [self._wave(asked)] if self._may_ask() else []
            return
        missed = self._due - members
        can_do_without = is_held and not asked.only and not self.setup.flaw(members)
        if missed and not can_do_without and members != self._last and self._own_waves() < MOST_EPOCHS:
            self._last = members
            yield self._wave(asked)
            return
        if flaw := self.setup.flaw(members):
            self._flaw = flaw
            return
        bits, vector = bits_of(members), total.tobytes()
        digest = total_digest(self.setup.id, self.number, bits, vector)
        yield MemberList(setup=self.setup.id, number=self.number, members=bits, terms=asked.terms, total=digest)
        yield Total(setup=self.setup.id, number=self.number, members=bits, vector=vector)

    def _vote(self, asked: SumRequest, now: float, wait_s: float) -> Iterator[Step]:
        """Sign the first list that is in order, once its total is here: then it cannot be lost with its root."""
        self.missing_total = b""
        if not self.has_voted() and (reason := self._in_vain()):
            yield self._quit(reason)
        for name, proposal in list(self._tally.lists.items()):
            if self.has_voted():
                return
            author = self._tally.authors[name]
            if proposal.terms != asked.terms or not self._may_lead(author, now, wait_s):
                continue
            members = frozenset(members_of(proposal.members))
            flaw = self._flaw_of(name, members, asked)
            if flaw and (own := self.setup.flaw(members)):
                # What anybody can see its author could see too; only who signs knows its own history.
                self._blame.strike(author, f"it has proposed a list that nobody may: {own}", is_proof=True)
            elif flaw:
                yield from [self._quit(flaw)] if self._rank(author) == MINE else []
            elif (total := self._tree.total(proposal.total)) is None:
                self.missing_total = proposal.total
            elif len(total.vector) != asked.values.nbytes:
                self._flaw = OTHER_SIZE
                self._blame.strike(author, "it has proposed a list whose total has another size")
            else:
                self._blame_leaders(proposal, now, wait_s)
                yield Keep(data=asked.data, members=members)
                yield SlotVote(setup=self.setup.id, number=self.number, chosen=name)

    def _in_vain(self) -> str:
        """Return why no list can come, or nothing. The forgetful may only say so: others have asked for their parts."""
        settings, strange, forgetful, roster = self.setup.settings, self._strange, self._forgetful, self.setup.roster
        if strange and (len(strange) > settings.count - settings.quorum or not settings.whole(roster - strange)):
            return f"member {min(strange)} sums other things"
        if not forgetful or settings.whole(roster - forgetful) or self._tally.lists or not self.is_out():
            return ""
        done = self._tally.quit.keys() | ({self._index} if self._is_spent else set())
        roots = {taken.author for taken in self._tally.waves.values()} - forgetful
        return f"member {min(forgetful)} has restarted" if roots and roots <= done else ""

    def _flaw_of(self, name: bytes, members: frozenset[int], asked: SumRequest) -> str:
        """Return what is wrong with a list; empty: nothing. It stays so until this member has signed one."""
        if name not in self._flaws:
            flaw = self.setup.flaw(members)
            if not flaw and asked.only and members != asked.only:
                flaw = "other members than this sum is of"
            if not flaw and not self._history.allows(asked.data, members):
                flaw = "too near to an earlier sum of these data"
            self._flaws[name] = flaw
        self._flaw = self._flaws[name] or self._flaw
        return self._flaws[name]

    def _blame_leaders(self, chosen: MemberList, now: float, wait_s: float) -> None:
        """A member whose turn was over when the last one proposed this list has held the sum up."""
        tally = self._tally
        last = max(self._rank(tally.authors[name]) for name, each in tally.lists.items() if each == chosen)
        turns = (now - self._clock.quorum) / wait_s
        over = {False: min(last, turns / TURN - NEXT), True: min(last, turns / TURN - NEXT, turns - NEXT - WAVE)}
        out = {taken.author for taken in tally.waves.values()}
        ranks = {member: self._rank(member) for member in self._alike - tally.quit.keys()}
        for member in (member for member, rank in ranks.items() if rank < over[member in out]):
            self._blame.strike(member, "it was to lead a sum, and nobody could sign a list of its in time")

    def _quit(self, reason: str) -> SlotQuit:
        return SlotQuit(setup=self.setup.id, number=self.number, reason=reason[:40])

    def _tire(self, asked: SumRequest, now: float, wait_s: float) -> Iterator[Step]:
        clock = self._clock
        start = clock.quorum if clock.is_quorum else clock.began + 20 * asked.pause_s
        is_whole = bool(self.setup.settings.whole(self._alike - self._forgetful))
        no_list = "no list was signed by enough members in time" if is_whole else "no group is ready as a whole"
        reason = self._flaw or (no_list if clock.is_quorum else "too few members are ready")
        if now > start + LATE * wait_s and not self.has_voted():
            if clock.is_quorum and not self._flaw and is_whole:
                first = min(self._alike, key=self._blame.turn)
                self._blame.strike(first, "it was to lead a sum of which no list could be signed")
            yield self._quit(reason)
        if now > start + OVER * wait_s:
            signed, gone = self._tally.signed, self._tally.quit.keys()
            for member in sorted(self._alike - signed.keys() - gone) if self._index in signed else ():
                self._blame.strike(member, "it was ready and has signed no list in time")
            self.refuse(reason, has_waited=True)

    def _finish(self, chosen: MemberList, now: float, wait_s: float) -> Iterator[Step]:
        """There is a certificate: reveal, collect what others reveal, and unmask."""
        clock = self._clock
        if self._secrets is None:
            clock.certified = now
            members = frozenset(members_of(chosen.members))
            self._secrets = _Secrets(self.setup, self.number, members)
            if self.asked is not None:
                yield Keep(data=self.asked.data, members=members)
            yield self._reveal(members, own=True)
        if self.asked is not None and chosen.terms != self.asked.terms:
            self.refuse(STRANGE)
            return
        secrets = self._secrets
        secrets.look(self._tally)
        if secrets.lacking and not clock.is_late and now > clock.certified + wait_s:
            clock.is_late = True
            late = [m for m, in_list in secrets.lacking.items() if in_list]
            for member in late:
                self._blame.strike(member, "it has not revealed its seed in time")
            reveal = self._reveal(late, own=False)
            yield from [reveal] if reveal.shares else []
        self._conclude(secrets, chosen, is_over=now > clock.certified + LATE * wait_s)

    def _conclude(self, secrets: _Secrets, chosen: MemberList, *, is_over: bool) -> None:
        """End with the sum once all is there for it, or with a refusal."""
        total = self._tree.total(chosen.total)
        self.missing_total = chosen.total if total is None else b""
        if total is not None and self.asked is not None and len(total.vector) != self.asked.values.nbytes:
            self.refuse(OTHER_SIZE)
        elif not secrets.lacking and total is not None:
            vector, members = np.frombuffer(total.vector, "<u8"), tuple(sorted(secrets.members))
            unmasked = self.setup.unmasked(vector, self.number, secrets.members, secrets.known)
            self.outcome = SumDone(label="", setup=self.setup.id, number=self.number, members=members, total=unmasked)
        elif (liar := secrets.liar(self._tally)) is not None:
            self._blame.strike(liar, "the shares that it has dealt do not fit its keys", is_proof=True)
            self.refuse(f"too few right shares of member {liar}")
        elif is_over:
            short = f"too few right shares of member {min(secrets.lacking)}" if secrets.lacking else ""
            self.refuse(short or "the masked sum is lost", has_waited=True)

    def _reveal(self, members: Collection[int], *, own: bool) -> Reveal:
        """Reveal one's own secret, and shares of who is not in the sum; later, of seeds that their owners owe."""
        setup, number = self.setup, self.number
        of = [m for m in setup.held if m in setup.roster and m not in members] if own else members
        shares = [(m, setup.share(m, number, in_list=not own)) for m in sorted(of)]
        secret = setup.own_secret(number, in_list=self._index in members) if own else b""
        return Reveal(setup=setup.id, number=number, own=secret, shares=tuple(each for each in shares if each[1]))


class _Secrets:
    """The secrets that unmask a certified sum, as they become known. Those revealed before are in the tally."""

    def __init__(self, setup: SumSetup, number: int, members: frozenset[int]) -> None:
        self._setup, self._number, self.members = setup, number, members
        self.known: dict[int, bytes] = {}
        self.lacking = dict(setup.needs(members))
        """The members whose secret is not known yet, and whether they are in the list."""

    def look(self, tally: SlotTally) -> None:
        """Take what members told themselves, if it is right; else what their holders' shares give."""
        setup, number = self._setup, self._number
        for member in tally.news & self.lacking.keys():
            in_list, revealed, shares = self.lacking[member], tally.own.get(member, []), tally.shares.get(member)
            secret = next((each for each in revealed if setup.is_right(member, number, each, in_list=in_list)), None)
            if secret is None and shares:
                secret = setup.rebuilt(member, number, shares, in_list=in_list)
            if secret is not None:
                self.known[member] = secret
                del self.lacking[member]
        tally.news.clear()

    def liar(self, tally: SlotTally) -> int | None:
        """Return a member whose shares give no right secret, although enough honest holders have revealed theirs."""
        settings = self._setup.settings
        for member in self.lacking:
            revealed = len(tally.shares.get(member, {}).keys() & set(self._setup.partners[member]))
            if revealed > 2 * settings.colluders and comb(revealed, settings.threshold) <= MOST_SHARE_TRIES:
                return member
        return None


class _Clock:
    """The times of the events of one sum. From `quorum` on members have their turns to lead it."""

    def __init__(self, began: float) -> None:
        self.began = self.moved = self.quorum = self.certified = began
        self.is_quorum, self.is_late, self.spread_s = False, False, 0.0
