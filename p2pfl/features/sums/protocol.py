"""The protocol of secure sums as a pure state machine: events in, effects out, time and chance as arguments.

    sums = Sums(settings, identity, draw=os.urandom, past=kept)
    effects = sums.opened(peer, now)          a session with a neighbor is open
    effects = sums.closed(peer, now)
    effects = sums.hear(peer, message, now)   raises PeerFault: no honest neighbor sends it
    effects = sums.ask(label, values, terms, now)
    effects = sums.wake(now)                  not before `sums.deadline`, soon after; None: nothing is going on

Effects are `SendToNeighbor`, `Keep`, `HeldUp`, `SumDone` and `Refused`, to be carried out in order. Each `ask` ends
with `SumDone` or `Refused`. It makes no task, opens no file and looks at no clock.
"""

from __future__ import annotations

import hashlib
import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from typing import Any, assert_never

from p2pfl.crypto.identity import Identity
from p2pfl.errors import PeerFault
from p2pfl.features.sums.arithmetic import Words
from p2pfl.features.sums.messages import (
    ROSTER,
    BranchPart,
    Effect,
    Effects,
    Have,
    InSetup,
    Keep,
    Keys,
    MemberList,
    Message,
    Poll,
    Post,
    Refused,
    SetupOpening,
    SlotQuit,
    Statement,
    SumDone,
    SumSettings,
    Total,
    Want,
    Wave,
    WideHave,
    Working,
    id_of,
    total_digest,
)
from p2pfl.features.sums.records import Records, SumHistory
from p2pfl.features.sums.setup import FIRST_S, Draw, KeySetup, SumPatience, SumSetup
from p2pfl.features.sums.statement_log import Blame, NewStatement, StatementLog
from p2pfl.features.sums.summing import Key, Sum, SumRequest, Tree

LOST, MOST_LATE = 2, 8
"""The beats for which a total is left to come down its tree; large ones come later, by so many beats at most."""
IN_VAIN = 16
"""The waits after which a sum is refused for which no set-up comes about."""


class Sums:
    """One member's part. `past` is what earlier lives of this member were asked to `Keep`."""

    def __init__(
        self,
        settings: SumSettings,
        identity: Identity,
        *,
        draw: Draw,
        past: Iterable[tuple[bytes, frozenset[int]]] = (),
        first_wait_s: float = FIRST_S,
    ) -> None:
        self.settings = settings
        self.patience = SumPatience(first_wait_s)
        self.blame, self._tree = Blame(settings.index), Tree()
        self.records = Records(settings, self.blame)
        self._log = StatementLog(settings, identity, self.blame, self.records.proves)
        self.wide = self._log.wide
        self._key_setup = KeySetup(settings, draw, self.records, self.patience, self.blame)
        self._history = SumHistory(settings.least, past)
        self.setup: SumSetup | None = None
        """The set-up whose roster this member is on."""
        self._next = 0
        self._sums: dict[int, Sum] = {}
        self._asked: SumRequest | None = None
        self._early: dict[int, Total] = {}
        """The latest total of each neighbor that no list names yet."""
        self._lacked: Counter[int] = Counter()
        """The beats for which each sum has lacked its total."""
        self._ended_at, self._before = 0.0, frozenset[int]()
        self.deadline: float | None = None
        """The time to call `wake`."""
        self._beats = 0
        self._is_setup_due = True
        """Something about set-ups that are not certified was not looked at yet."""
        self._due: set[Key | None] = {None}
        """The sums about which something was not looked at yet; None: all."""

    def opened(self, peer: int, now: float) -> list[Effect]:
        effects = Effects()
        self._log.opened(peer, effects)
        return self._settled(now, effects)

    def closed(self, peer: int, now: float) -> list[Effect]:
        effects = Effects()
        self._log.closed(peer)
        self._tree.gone(peer, effects)
        self._early.pop(peer, None)
        self._lacked.update(dict.fromkeys(self._sums, LOST + MOST_LATE))  # it may have been on its way
        self._everything_is_due()
        return self._settled(now, effects)

    def ask(
        self,
        label: str,
        values: Words,
        terms: bytes,
        now: float,
        *,
        data: bytes | None = None,
        only: frozenset[int] = frozenset(),
    ) -> list[Effect]:
        """Sum this vector with those of the others, (d,) uint64; `terms` as of `WholeNumbers.terms`.

        `data` are 32 bytes by which sums of the same data are known, where several vectors are made of them: those sums
        must not differ by few members either. By default they are a digest of the vector. With `only`, it is the sum of
        exactly these members or refused. Raises ValueError: a sum is going on.
        """
        if self._asked is not None:
            raise ValueError(
                f"{label!r} was asked for while {self._asked.label!r} is being summed: one after the other"
            )
        data = data or hashlib.blake2b(values.tobytes(), digest_size=32, person=b"sums data").digest()
        pause_s = now - self._ended_at if self._ended_at else 0.0
        self._key_setup.only = only
        named: dict[str, Any] = {"only": only, "before": self._before, "pause_s": pause_s, "at": now}
        self._asked = SumRequest(label=label, values=values, terms=terms, data=data, **named)
        self._everything_is_due()
        return self._settled(now, Effects())

    def wake(self, now: float) -> list[Effect]:
        effects = Effects()
        if self.deadline is not None and now >= self.deadline:
            self.deadline = None
            self._beats += 1
            self._log.compare(effects)
            self._tree.poll(effects, more=self.patience.more_beats(self._entries, self.settings.count))
            self._want(effects)
            self._everything_is_due()
        return self._settled(now, effects)

    def _want(self, effects: Effects) -> None:
        """Ask for totals that have not come, each time another neighbor."""
        neighbors = self._log.neighbors
        patience = LOST + min(self.patience.more_beats(self._entries, self.settings.count), MOST_LATE)
        for each in self._sums.values():
            if each.missing_total and neighbors:
                self._lacked[each.number] += 1
                if self._lacked[each.number] >= patience:
                    effects.say(neighbors[self._beats % len(neighbors)], Want(total=each.missing_total))

    def hear(self, peer: int, message: Message, now: float) -> list[Effect]:
        """Raises PeerFault."""
        effects = Effects()
        if isinstance(message, BranchPart | Total) and not self.settings.are_members(message.members):
            raise PeerFault("a sum of members whom the federation does not have")
        match message:
            case Post() | Poll():
                self._hear_post(peer, message, now, effects)
            case Have() | WideHave():
                self._log.hear_have(peer, message, effects)
            case Working():
                self._tree.hear_working(peer, message, effects)
                self._moved(now)
            case BranchPart():
                self._tree.hear_part(peer, message, effects)
                self._moved(now)
            case Total():
                self._hear_total(peer, message, effects)
                self._moved(now)
            case Want():
                if (total := self._tree.total(message.total)) is not None:
                    effects.say(peer, total)
            case _:
                assert_never(message)
        return self._settled(now, effects)

    def _hear_total(self, peer: int, total: Total, effects: Effects) -> None:
        """Take a total that some list names: on each way the list comes first, unless they change places."""
        slot = self.records.tally(total.setup).slots.get(total.number)
        lists = slot.lists if slot is not None else {}
        if slot is None or all(proposal.members != total.members for proposal in lists.values()):
            if total.setup in self._log.opened_by:
                self._early[peer] = total
            return
        digest = total_digest(total.setup, total.number, total.members, total.vector)
        name = next((name for name, proposal in lists.items() if proposal.total == digest), None)
        if name is not None:
            self._tree.publish(total, digest, slot.authors[name], effects, peer)

    def _hear_post(self, peer: int, message: Post | Poll, now: float, effects: Effects) -> None:
        post = message.wave if isinstance(message, Poll) else message
        name = id_of(post.author, post.body)
        taken = self._log.hear(peer, post, name, effects)
        for each in taken:
            self._take(each, now, effects)
        if not taken and message is not post:
            self._tree.hear_poll(peer, name, effects, more=self.patience.more_beats(self._entries, self.settings.count))
            self._moved(now)
        elif not taken:
            self._tree.again(peer, name, effects)

    def _take(self, taken: NewStatement, now: float, effects: Effects) -> None:
        statement = taken.statement
        if isinstance(statement, Keys) and taken.author == self.settings.index and taken.peer is not None:
            self._key_setup.outlive(statement)
            return
        self.records.take(taken)
        if isinstance(statement, SetupOpening):
            kept, records = self._log.opened_by.keys() | ({self.setup.id} if self.setup else set()), self.records
            records.tallies = {setup: tally for setup, tally in records.tallies.items() if setup in kept}
        if isinstance(statement, Wave):
            self._tree.wave(taken, self._log.neighbors, effects)
        if isinstance(statement, MemberList):
            early, self._early = self._early, {}
            for peer, total in early.items():
                self._hear_total(peer, total, effects)
        number = getattr(statement, "number", ROSTER)
        if isinstance(statement, InSetup) and number != ROSTER:
            self._due.add((statement.setup, number))
        else:
            self._is_setup_due = True
        if isinstance(statement, InSetup):
            self._moved(now)

    def _everything_is_due(self) -> None:
        self._is_setup_due = True
        self._due.add(None)

    def _moved(self, now: float) -> None:
        for each in self._sums.values():
            each.moved(now)

    def _state(self, statement: Statement, now: float, effects: Effects) -> None:
        self._take(self._log.state(statement, effects), now, effects)

    def _settled(self, now: float, effects: Effects) -> list[Effect]:
        """Do all that can be done now, where something has changed; what only waits is looked at when it wakes."""
        self.blame.pass_time(now)
        self._follow(effects)
        self._due |= self._tree.changed
        self._tree.changed.clear()
        if not (self._is_setup_due or self._due):
            self.blame.tell(effects)
            return effects
        while self._is_setup_due or self._due:
            if self._is_setup_due:
                self._is_setup_due = False
                used_up, begun = self._is_used_up, self._next > 0
                for statement in self._key_setup.act(now, self.setup, is_used_up=used_up, is_begun=begun):
                    self._state(statement, now, effects)
                    self._is_setup_due = True
            self._adopt(now, effects)
            self._advance(now, effects)
        self._tire(now, effects)
        beat_s = self._beat_s()
        self.deadline = None if beat_s is None else min(now + beat_s, self.deadline or math.inf)
        self.blame.tell(effects)
        return effects

    def _follow(self, effects: Effects) -> None:
        """Hand statements on along the latest wave's tree, or tell the children in it that this node does not."""
        branch, self._tree.latest = self._tree.latest, None
        if branch is not None and not self._log.follow(self._tree.links(branch)):
            for child in sorted(branch.parts):
                effects.say(child, Working(wave=branch.taken.id, is_child=False))

    @property
    def _entries(self) -> int:
        """The entries of the sum that goes on."""
        return self._asked.values.size if self._asked is not None else 0

    @property
    def _is_used_up(self) -> bool:
        """True if no sum can begin in the present set-up."""
        return self.setup is None or self._next >= self.settings.sums or self.setup.id not in self._log.opened_by

    def _adopt(self, now: float, effects: Effects) -> None:
        """Go over to a new set-up, unless this member has voted in a sum of the old one, which it ends first."""
        complete, active = self._key_setup.complete, self._sums.get(self._next)
        if complete is None:
            return
        if active is not None and active.asked is not None and self.setup is not None:
            if active.must_end_here():
                return
            self._state(SlotQuit(setup=self.setup.id, number=self._next, reason="there is a new set-up"), now, effects)
            self._tree.own.pop(active.key, None)
        self.setup, self._key_setup.complete = complete, None
        self._next, self._sums = 0, {}
        self._lacked.clear()
        self._everything_is_due()

    def _advance(self, now: float, effects: Effects) -> None:
        """Go on with the sums of the present set-up in which something has changed."""
        due, self._due = self._due, set()
        if self.setup is None:
            return
        slots = self.records.tally(self.setup.id).slots
        if None in due:
            numbers = set(slots)
            if self._asked is not None:
                numbers.add(self._next)
        else:
            numbers = {key[1] for key in due if key is not None and key[0] == self.setup.id}
        for number in sorted(number for number in numbers if self._next <= number < self.settings.sums):
            if number not in self._sums:
                self._sums[number] = Sum(self.setup, number, slots[number], self._tree, self._history, now, self.blame)
            self._go_on(self._sums[number], now, effects)

    def _go_on(self, each: Sum, now: float, effects: Effects) -> None:
        wait_s = self.patience.wait_for_s(self._entries, self.settings.count, self.settings.sums)
        if each.number == self._next and each.asked is None and self._asked is not None and not self._is_used_up:
            each.ask(self._asked, now)
        forgetful = self._key_setup.forgetful(each.setup) if self.settings.groups else frozenset()
        for step in each.act(now, wait_s, forgetful):
            self._due.add(each.key)
            if isinstance(step, Total):
                digest = total_digest(step.setup, step.number, step.members, step.vector)
                self._tree.publish(step, digest, self.settings.index, effects)
            elif isinstance(step, Keep):
                self._history.keep(step.data, step.members)
                effects.append(step)
            else:
                self._state(step, now, effects)
        if each.outcome is None:
            return
        each.setup.erase(each.number)
        self._tree.own.pop(each.key, None)
        if each.asked is not None:
            effects.append(replace(each.outcome, label=each.asked.label))
            if each.has_waited:
                self.patience.failed()
            if isinstance(each.outcome, SumDone):
                self._tree.gathered.pop(each.key, None)
                self._tree.end(each.key)
                self._before = frozenset(each.outcome.members)
            del self._sums[each.number]
            self._next, self._asked, self._ended_at = each.number + 1, None, now
            self._everything_is_due()

    def _tire(self, now: float, effects: Effects) -> None:
        """Refuse a sum for which no set-up comes about."""
        asked, active = self._asked, self._sums.get(self._next)
        if asked is None or not self._is_used_up or (active is not None and active.asked is not None):
            return
        if now > asked.at + 20 * asked.pause_s + IN_VAIN * self.patience.wait_s:
            text = f"no set-up with {self.settings.quorum} of {self.settings.count} members came about"
            missing = tuple(sorted({*range(self.settings.count)} - self.records.fresh.keys()))
            effects.append(Refused(label=asked.label, reason=text, missing=missing))
            self._asked, self._ended_at = None, now

    def _beat_s(self) -> float | None:
        """The time until the next look whether something was lost; None: nothing goes on."""
        if self._asked is not None or self._tree.is_busy() or self._key_setup.attempt is not None:
            return self.patience.beat_s
        waits = self._key_setup.is_busy(self.setup, is_used_up=self._is_used_up)
        return self.patience.wait_s if waits or any(each.missing_total for each in self._sums.values()) else None
