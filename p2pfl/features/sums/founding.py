"""How a set-up comes about: fresh keys, an opening that names them, shares, and a certified roster.

An opening needs no certificate of its own: its digest is the set-up's id, a member uses its keys in one set-up only,
and the roster, which is certified, is a list of those who have dealt and hold shares in this very set-up.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from p2pfl.features.sums.patience import SumPatience
from p2pfl.features.sums.setup import Draw, SetupSecrets, SumSetup
from p2pfl.features.sums.sum_certificate import ROSTER
from p2pfl.features.sums.sum_messages import (
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
    def __init__(self, settings: SumSettings, draw: Draw, records: Records, patience: SumPatience) -> None:
        self._settings, self._draw, self._records, self._patience = settings, draw, records, patience
        self._life, self._serial = settings.life, 0
        self._secrets: SetupSecrets | None = None
        self._at = KeyTimes(0.0)
        self._passed: set[bytes] = set()
        """The openings that do not name the present keys."""
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
        return self.attempt is not None or is_used_up or self._has_newcomers(current)

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

    def _has_newcomers(self, current: SumSetup | None) -> bool:
        return current is not None and not self._records.fresh.keys() <= current.roster

    def _wants(self, now: float, current: SumSetup | None, *, is_used_up: bool) -> bool:
        return is_used_up or (
            self._has_newcomers(current) and now > self._founded_at + self._hold * self._patience.wait_s
        )

    def _open(self, now: float) -> Iterator[Statement]:
        """Open a set-up, if it is this member's turn: the lowest with fresh keys first, the next if it does not."""
        settings, fresh, wait_s = self._settings, self._records.fresh, self._patience.wait_s
        if len(fresh) < max(settings.quorum, settings.least) or settings.index not in fresh:
            return
        if self._at.quorum is None:
            self._at.quorum = now
        rank = sum(member < settings.index for member in fresh)
        late = now > self._at.quorum + 2 * (self._at.quorum - self._at.drawn) + wait_s * (1 + 2 * rank)
        if late or (rank == 0 and len(fresh) == settings.count):
            yield SetupOpening(members=bits_of(fresh), keys=b"".join(fresh[member] for member in sorted(fresh)))
            yield from self._join(now)

    def _join(self, now: float) -> Iterator[Statement]:
        """Join the first opening that names this member's fresh keys, and deal shares of them."""
        settings, own = self._settings, self._records.latest.get(self._settings.index)
        for name, tally in list(self._records.tallies.items()):
            if tally.opening is None or self._secrets is None:
                continue
            if name in self._passed:
                continue
            opener, opening = tally.opening
            if (SumSetup.named_keys(opening) or {}).get(settings.index) != own:
                self._passed.add(name)
                continue
            keys = self._records.keys_of(opening)
            if keys is None or len(keys) < max(settings.quorum, settings.least):
                self._wait_for_keys(opener, now)
                continue
            secrets, self._secrets = self._secrets, None
            try:
                setup = SumSetup(settings, name, opening, keys, secrets)
            except ValueError:
                return
            sealed = setup.deal(self._draw)
            self.attempt = Attempt(setup=setup, began=now, opener=opener, sealed=sealed)
            for holder, parcel in sealed.items():
                yield Parcel(setup=name, to=holder, sealed=parcel, spread=False)
            return

    def _wait_for_keys(self, opener: int, now: float) -> None:
        """Keys that an opening names may be on their way. If they do not come, this member's own, which it has used up,
        are drawn anew, and the opener is not believed again.
        """
        if self._at.stuck is None:
            self._at.stuck = now
        elif now > self._at.stuck + OVER * self._patience.wait_s:
            self._records.blamed.add(opener)
            self._secrets = None

    def _prepare(self, attempt: Attempt, now: float) -> Iterator[Statement]:
        setup, index, tally = attempt.setup, self._settings.index, self._records.tally(attempt.setup.id)
        since = (now - attempt.began) / self._patience.wait_s
        yield from self._acknowledge(attempt, tally, since)
        if since > AGAIN:
            yield from self._send_again(attempt, tally)
        ballot = tally.slots[ROSTER].ballot
        if attempt.opener == index and not any(author == index for author in tally.slots[ROSTER].authors.values()):
            yield from self._propose(attempt, tally, since)
        if index not in ballot.signed:
            for name, proposal in list(ballot.lists.items()):
                if setup.may_be_roster(members_of(proposal.members), tally.acks):
                    yield SlotVote(setup=setup.id, number=ROSTER, chosen=name)
                    break
        if ballot.certified is not None:
            self._certified(attempt, frozenset(members_of(ballot.certified[1].members)), now)
        elif since > OVER:
            self.attempt = None
            self._patience.failed()

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
        self._records.blamed.clear()
        if self._settings.index not in roster:
            return
        self._hold = HOLD if len(roster) > self._size else self._hold * 2
        self._founded_at, self._size = now, len(roster)
        attempt.setup.roster = roster
        self.founded = attempt.setup
