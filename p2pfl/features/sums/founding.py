"""How a set-up comes about: fresh keys, an opening that names them, shares, and a certified roster.

An opening needs no certificate of its own: its digest is the set-up's id, a member uses its keys in one set-up only,
and the roster, which is certified, is a list of those who have dealt and hold shares in this very set-up.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from p2pfl.features.sums.blame import Blame
from p2pfl.features.sums.patience import SumPatience
from p2pfl.features.sums.setup import Draw, SetupSecrets, SumSetup
from p2pfl.features.sums.sum_messages import (
    ROSTER,
    Ack,
    Keys,
    MemberList,
    Parcel,
    SetupOpening,
    SlotVote,
    Statement,
    bits_of,
    members_of,
)
from p2pfl.features.sums.sum_records import Records
from p2pfl.features.sums.sum_settings import SumSettings
from p2pfl.features.sums.tally import SetupTally

PARTIAL, AGAIN, GROWN, OVER = 0.5, 0.65, 0.9, 3.0
"""In waits after an opening: a member acknowledges what it holds, though that is not all; parcels that a holder has not
acknowledged with others are sent by all ways; more that is held by now is acknowledged; it has failed.
"""
PROPOSE, NEXT = 1.5, 0.5
"""In waits after an opening: where its opener has proposed no roster others do, one after the other."""
HOLD = 4.0
"""In waits: how long newcomers wait at least for a set-up with them, twice as long after each that had no more members.
"""


@dataclass(slots=True, kw_only=True)
class Attempt:
    """A set-up that this member has joined, until its roster is certified."""

    setup: SumSetup
    began: float
    opener: int
    sealed: dict[int, bytes]
    """The parcel for each partner."""
    acked: int | None = None
    """The number of dealers whose shares this member has acknowledged; None: it has acknowledged nothing."""
    has_grown: bool = False
    parcels: int = 0
    """The parcels that were looked at."""
    again: set[int] = field(default_factory=set)
    """The holders to whom parcels were sent by all ways."""


@dataclass(slots=True)
class KeyTimes:
    """When what happened to this member's present keys."""

    drawn: float
    quorum: float | None = None
    """When enough members had fresh keys."""
    stuck: float | None = None
    """When an opening came that names these keys, and others that are not here."""


class SetupFounding:
    def __init__(
        self, settings: SumSettings, draw: Draw, records: Records, patience: SumPatience, blame: Blame
    ) -> None:
        self._settings, self._draw, self._records, self._patience = settings, draw, records, patience
        self._blame = blame
        self.only: frozenset[int] = frozenset()
        """Those without whom the sums that are asked for here cannot be."""
        self._life, self._serial = settings.life, 0
        self._secrets: SetupSecrets | None = None
        self._at = KeyTimes(0.0)
        self._excused: set[int] = set()
        self._passed: set[bytes] = set()
        """The openings that do not name the present keys."""
        self._mute: frozenset[int] = frozenset()
        """Who acknowledged nothing in the set-up that this member has opened last, if that failed."""
        self.attempt: Attempt | None = None
        self.founded: SumSetup | None = None
        """A set-up with a certified roster, until somebody takes it."""
        self._hold, self._founded_at, self._size = HOLD, 0.0, 0

    def act(self, now: float, current: SumSetup | None, *, is_used_up: bool) -> Iterator[Statement]:
        """What to do now, one thing after the other. `is_used_up`: the current set-up has no sum left, or there is
        none.
        """
        if self.attempt is not None:
            yield from self._prepare(self.attempt, now)
        elif self._secrets is None:
            yield self._draw_keys(now)
        elif self.founded is None:
            yield from self._join(now)
        if self.attempt is None and self.founded is None and self._wants(now, current, is_used_up=is_used_up):
            yield from self._open(now)

    def is_busy(self, current: SumSetup | None, *, is_used_up: bool) -> bool:
        return self.attempt is not None or is_used_up or self._has_newcomers(current) or self._leaves_out(current)

    def _draw_keys(self, now: float) -> Keys:
        self._secrets = SetupSecrets(self._draw, self._settings.sums)
        self._serial += 1
        self._at = KeyTimes(now)
        self._passed.clear()
        return self._secrets.keys(self._life, self._serial)

    def outlive(self, life: int) -> None:
        """Others have keys of an earlier life of this member, which is not earlier by its number: take a later one."""
        if life >= self._life:
            self._life, self._secrets = life + 1, None

    @property
    def fresh(self) -> Mapping[int, bytes]:
        """The members with fresh keys, but for those who are left out for what they held up, where enough others are
        there.
        """
        fresh = self._records.fresh
        left = {member: name for member, name in fresh.items() if not self._is_out(member)}
        heard = {member: name for member, name in left.items() if member not in self._mute - self.only}
        enough = max(self._settings.quorum, self._settings.least)
        return next((some for some in (heard, left) if len(some) >= enough), fresh)

    def _is_out(self, member: int) -> bool:
        return self._blame.is_banned(member) and member not in self.only

    def _has_newcomers(self, current: SumSetup | None) -> bool:
        return current is not None and not self.fresh.keys() <= current.roster

    def _leaves_out(self, current: SumSetup | None) -> bool:
        """True if somebody who holds sums up is in the current set-up, and would not be in a new one."""
        return current is not None and any(self._is_out(m) and m not in self.fresh for m in current.roster)

    def _wants(self, now: float, current: SumSetup | None, *, is_used_up: bool) -> bool:
        is_time = now > self._founded_at + self._hold * self._patience.wait_s
        return is_used_up or self._leaves_out(current) or (is_time and self._has_newcomers(current))

    def _turn_comes(self, member: int, now: float) -> bool:
        """True if it is a member's turn to open a set-up: the lowest with fresh keys first, of those who have held
        nothing up, the next if it does not.
        """
        fresh, at, wait_s = self.fresh, self._at, self._patience.wait_s
        rank = sum(self._blame.turn(each) < self._blame.turn(member) for each in fresh)
        if rank == 0 and all(each in fresh or self._is_out(each) for each in range(self._settings.count)):
            return True
        quorum = now if at.quorum is None else at.quorum
        return now > quorum + 2 * (quorum - at.drawn) + wait_s * (1 + 2 * rank)

    def _open(self, now: float) -> Iterator[Statement]:
        """Open a set-up, if it is this member's turn."""
        settings, fresh = self._settings, self.fresh
        if len(fresh) < max(settings.quorum, settings.least) or settings.index not in fresh:
            return
        if self._at.quorum is None:
            self._at.quorum = now
        if self._turn_comes(settings.index, now):
            yield SetupOpening(members=bits_of(fresh), keys=b"".join(fresh[member] for member in sorted(fresh)))
            yield from self._join(now)

    def _join(self, now: float) -> Iterator[Statement]:
        """Join the first opening that names this member's fresh keys, and deal shares of them."""
        settings, own = self._settings, self._records.latest.get(self._settings.index)
        for name, tally in list(self._records.tallies.items()):
            if tally.opening is None or self._secrets is None:
                continue
            opener, opening = tally.opening
            if name in self._passed or (self._blame.is_struck(opener) and not self._turn_comes(opener, now)):
                continue
            if tally.named.get(settings.index) != own:
                self._passed = (self._passed & self._records.tallies.keys()) | {name}
                continue
            keys = self._records.keys_of(tally.named)
            if keys.keys() != tally.named.keys():
                self._wait_for_keys(opener, tally.named.keys() - keys.keys(), now)
                continue
            secrets, self._secrets = self._secrets, None
            self._records.use(tally.named)
            try:
                setup = SumSetup(settings, name, opening, keys, secrets)
            except ValueError:
                return
            sealed = setup.deal(self._draw)
            self.attempt = Attempt(setup=setup, began=now, opener=opener, sealed=sealed)
            for holder, parcel in sealed.items():
                yield Parcel(setup=name, to=holder, sealed=parcel, spread=False)
            return

    def _wait_for_keys(self, opener: int, lacking: set[int], now: float) -> None:
        """Keys that an opening names may be on their way. If they do not come, this member's own, which it has used up,
        are drawn anew, and the opener is not believed again; unless they are of who was struck itself: that excuses
        once.
        """
        if self._at.stuck is None:
            self._at.stuck = now
        elif now > self._at.stuck + OVER * self._patience.wait_s:
            excuses = {member for member in lacking if self._blame.is_struck(member)} - {opener} - self._excused
            self._excused |= excuses
            if not excuses:
                self._blame.strike(opener, "it has opened a set-up with keys that nobody has")
            self._secrets = None

    def _prepare(self, attempt: Attempt, now: float) -> Iterator[Statement]:
        index, tally = self._settings.index, self._records.tally(attempt.setup.id)
        since = (now - attempt.began) / self._patience.wait_s
        if self._blame.is_banned(attempt.opener) and tally.slots[ROSTER].ballot.certified is None:
            self.attempt = None
            return
        yield from self._acknowledge(attempt, tally, since)
        if since > AGAIN:
            yield from self._send_again(attempt, tally)
        slot = tally.slots[ROSTER]
        ballot = slot.ballot
        yield from self._vote(attempt, tally, since + NEXT)
        if index not in {*ballot.signed, *slot.authors.values()} and self._may_propose(attempt, tally, index, since):
            yield from self._propose(attempt, tally, since)
        if ballot.certified is not None:
            self._certified(attempt, frozenset(members_of(ballot.certified[1].members)), now)
        elif since > OVER:
            self.attempt = None
            self._patience.failed()
            if attempt.opener == index:
                self._mute = frozenset(attempt.setup.members) - tally.acks.keys()
            if attempt.opener not in tally.acks:
                self._blame.strike(attempt.opener, "it has opened a set-up and taken no part in it")
            for member in sorted(tally.acks.keys() - ballot.signed.keys()) if index in ballot.signed else ():
                self._blame.strike(member, "it has signed no roster in time")

    def _vote(self, attempt: Attempt, tally: SetupTally, since: float) -> Iterator[SlotVote]:
        slot = tally.slots[ROSTER]
        for name, proposal in list(slot.ballot.lists.items()):
            author = slot.authors[name]
            is_turn = self._may_propose(attempt, tally, author, since)
            if self._settings.index in slot.ballot.signed:
                return
            if is_turn and attempt.setup.may_be_roster(members_of(proposal.members), tally.acks):
                if author != attempt.opener:
                    self._blame.strike(attempt.opener, "it has opened a set-up and proposed no roster in time")
                yield SlotVote(setup=attempt.setup.id, number=ROSTER, chosen=name)

    def _send_again(self, attempt: Attempt, tally: SetupTally) -> Iterator[Parcel]:
        """Who has acknowledged nothing is not there: what is for it would burden everybody."""
        for holder, parcel in attempt.sealed.items():
            acks = tally.acks.get(holder)
            if acks is not None and self._settings.index not in acks and holder not in attempt.again:
                attempt.again.add(holder)
                yield Parcel(setup=attempt.setup.id, to=holder, sealed=parcel, spread=True)

    def _acknowledge(self, attempt: Attempt, tally: SetupTally, since: float) -> Iterator[Statement]:
        setup = attempt.setup
        for dealer, parcel in tally.parcels[attempt.parcels :]:
            if dealer not in setup.held:
                setup.receive(dealer, parcel)
        attempt.parcels = len(tally.parcels)
        is_all = len(setup.held) == len(setup.partners[self._settings.index])
        if attempt.acked is None:
            is_due = is_all or since > PARTIAL
        else:
            is_due = len(setup.held) > attempt.acked and (is_all or (since > GROWN and not attempt.has_grown))
            attempt.has_grown |= is_due
        if is_due:
            attempt.acked = len(setup.held)
            yield Ack(setup=setup.id, holds=bits_of(setup.held))

    def _may_propose(self, attempt: Attempt, tally: SetupTally, member: int, since: float) -> bool:
        """True if it is a member's turn to propose the roster: its opener's, and then that of who has acknowledged."""
        others = sorted(tally.acks.keys() - {attempt.opener}, key=self._blame.turn)
        return member == attempt.opener or (member in others and since > PROPOSE + NEXT * others.index(member))

    def _propose(self, attempt: Attempt, tally: SetupTally, since: float) -> Iterator[Statement]:
        setup = attempt.setup
        if since <= 1.0 and any(not set(setup.partners[m]) <= tally.acks.get(m, set()) for m in setup.members):
            return
        roster = setup.largest_roster(tally.acks)
        if setup.may_be_roster(roster, tally.acks):
            yield MemberList(setup=setup.id, number=ROSTER, members=bits_of(roster), terms=b"", total=b"")

    def _certified(self, attempt: Attempt, roster: frozenset[int], now: float) -> None:
        self._patience.took(now - attempt.began)
        self.attempt = None
        if attempt.opener == self._settings.index:
            for member in sorted(self._mute - roster):
                self._blame.strike(member, "a set-up with it has failed, and the next one without it has not")
            self._mute = frozenset()
        if self._settings.index not in roster:
            return
        self._hold = HOLD if len(roster) > self._size else self._hold * 2
        self._founded_at, self._size = now, len(roster)
        attempt.setup.roster = roster
        self.founded = attempt.setup
