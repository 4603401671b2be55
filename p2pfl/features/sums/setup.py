"""A set-up: whose keys serve its sums, the shares that its members hold of each other, and how it comes about.

Secrets of a sum are dealt beforehand, one pair for each sum (Bonawitz et al. 2017, round 1; that one set-up serves many
sums is Flamingo's point, Ma et al. 2023, eprint 2023/486, but its decryption by committee would need a group with
ElGamal). A restarted member has forgotten its secrets and is a drop-out until the next set-up: an opening names the
very keys that its members have drawn since they started, so nothing that was signed before is signed again.

An opening needs no certificate of its own: its digest is the set-up's id, a member uses its keys in one set-up only,
and the roster, which is certified, is a list of those who have dealt and hold shares in this very set-up.
"""

from __future__ import annotations

import hashlib
import math
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field

from nacl.bindings import crypto_aead_chacha20poly1305_ietf_decrypt, crypto_aead_chacha20poly1305_ietf_encrypt
from nacl.exceptions import CryptoError

from p2pfl.features.sums.arithmetic import (
    KEY_BYTES,
    NONCE,
    PRIME,
    WORD_BYTES,
    Words,
    combined,
    commitment,
    deal,
    order,
    own_seed,
    pair_seed,
    partners,
    public_of,
    rebuild_checked,
    shared,
    sign,
    stream,
    withstands,
)
from p2pfl.features.sums.messages import (
    PAIR_BYTES,
    PLAIN,
    ROSTER,
    SEAL_BYTES,
    Ack,
    Keys,
    MemberList,
    Parcel,
    SetupOpening,
    SlotVote,
    Statement,
    SumSettings,
    bits_of,
    members_of,
)
from p2pfl.features.sums.records import Records, SetupTally
from p2pfl.features.sums.statement_log import Blame

Draw = Callable[[int], bytes]
"""Returns so many random bytes: `os.urandom`, and in tests what a seed gives."""


def drawn_secret(draw: Draw) -> bytes:
    """32 bytes: a uniform number below the prime, which is a private key of X25519 too."""
    return (int.from_bytes(draw(48), "little") % PRIME).to_bytes(KEY_BYTES, "little")


class SetupSecrets:
    """A member's secrets for one set-up; those of a sum are erased once it has ended."""

    def __init__(self, draw: Draw, sums: int) -> None:
        self.box = drawn_secret(draw)
        self.masks: list[bytes | None] = [drawn_secret(draw) for _ in range(sums)]
        self.seeds: list[bytes | None] = [drawn_secret(draw) for _ in range(sums)]

    def keys(self, life: int, serial: int) -> Keys:
        """The public halves."""
        box = public_of(self.box)
        masks = b"".join(public_of(_present(secret)) for secret in self.masks)
        seeds = b"".join(commitment(_present(secret), box, number) for number, secret in enumerate(self.seeds))
        return Keys(life=life, serial=serial, box=box, masks=masks, seeds=seeds)


class SumSetup:
    """`keys` are those of the opening's members. Raises ValueError: the opening does not fit them."""

    def __init__(
        self,
        settings: SumSettings,
        identity: bytes,
        keys: Mapping[int, Keys],
        secrets: SetupSecrets,
    ) -> None:
        self.id, self.settings, self.keys = identity, settings, keys
        self.members = tuple(sorted(keys))
        self.circle = order(self.members, identity)
        self.reach = settings.reach(len(self.members))
        if self.reach < len(self.members) - 1:
            self.reach -= self.reach % 2
        self.partners = partners(self.circle, self.reach)
        self.roster: frozenset[int] = frozenset()
        """Those who mask with each other; empty: it is not certified yet."""
        self.held: dict[int, bytearray] = {}
        """The shares that this member holds, by dealer: seed and mask key for each sum."""
        self._secrets = secrets
        if not all(each.fit(settings.sums) for each in keys.values()):
            raise ValueError(f"keys for another number of sums than {settings.sums}")

    def deal(self, draw: Draw) -> dict[int, bytes]:
        """Cut all secrets in shares; returns the sealed parcel for each partner."""
        own, index = self._secrets, self.settings.index
        holders = self.partners[index]
        parcels: dict[int, bytearray] = {holder: bytearray() for holder in holders}
        for seed, mask in zip(own.seeds, own.masks, strict=True):
            for secret in (_present(seed), _present(mask)):
                line = [int.from_bytes(drawn_secret(draw), "little") for _ in range(self.settings.threshold - 1)]
                dealt = deal(int.from_bytes(secret, "little"), line, [holder + 1 for holder in holders])
                for holder, share in zip(holders, dealt, strict=True):
                    parcels[holder] += share.to_bytes(KEY_BYTES, "little")
        return {
            holder: crypto_aead_chacha20poly1305_ietf_encrypt(
                bytes(plain), self.id, NONCE, self._parcel_key(index, holder)
            )
            for holder, plain in parcels.items()
        }

    def receive(self, dealer: int, parcel: Parcel) -> bool:
        """Take a partner's shares; False: they are not what a partner seals."""
        size = self.settings.sums * PAIR_BYTES
        if dealer not in self.partners[self.settings.index] or len(parcel.sealed) != size + SEAL_BYTES:
            return False
        try:
            key = self._parcel_key(dealer, self.settings.index)
            plain = crypto_aead_chacha20poly1305_ietf_decrypt(parcel.sealed, self.id, NONCE, key)
        except CryptoError:
            return False
        self.held.setdefault(dealer, bytearray(plain))
        return True

    def _parcel_key(self, dealer: int, holder: int) -> bytes:
        other = holder if dealer == self.settings.index else dealer
        agreed = shared(self._secrets.box, self.keys[other].box)
        ends = dealer.to_bytes(4, "little") + holder.to_bytes(4, "little")
        return hashlib.blake2b(self.id + ends, digest_size=KEY_BYTES, key=agreed, person=b"sums parcel").digest()

    def may_be_roster(self, roster: Collection[int], acks: Mapping[int, Collection[int]]) -> bool:
        """True if these can bear the loss of t: enough hold each one's shares, and their masks stay connected."""
        settings = self.settings
        return (
            settings.are_enough(roster)
            and set(roster) <= set(self.members)
            and all(self._holders(member, roster, acks) >= settings.acks_needed(len(self.members)) for member in roster)
            and withstands(self.circle, self.reach, roster, settings.colluders)
        )

    def largest_roster(self, acks: Mapping[int, Collection[int]]) -> frozenset[int]:
        """All members who answer and whose shares enough of the others hold."""
        roster = {member for member in self.members if member in acks}
        needed = self.settings.acks_needed(len(self.members))
        while weak := {member for member in roster if self._holders(member, roster, acks) < needed}:
            roster -= weak
        return frozenset(roster)

    def _holders(self, member: int, roster: Collection[int], acks: Mapping[int, Collection[int]]) -> int:
        return sum(holder in roster and member in acks.get(holder, ()) for holder in self.partners[member])

    def flaw(self, members: Collection[int]) -> str:
        """Return what is wrong with a list of a sum's members; empty: nothing."""
        settings, left = self.settings, frozenset(members)
        if not left <= self.roster:
            return "a member who is not on the roster"
        if len(left) < settings.least:
            return f"{len(left)} members are fewer than {settings.least}"
        if settings.whole(left) != left:
            return "a part of a group"
        if any(len(left.intersection(self.partners[member])) < settings.threshold for member in self.roster):
            return "too few are left who hold shares"
        if not withstands(self.circle, self.reach, left, settings.colluders):
            return "too few masks are left"
        return ""

    def masked(self, values: Words, number: int) -> Words:
        """This member's vector behind all its masks; (d,)."""
        own, index = self._secrets, self.settings.index
        mask = _present(own.masks[number])
        seed = own_seed(_present(own.seeds[number]), self.id, number)

        def masks() -> Iterator[tuple[int, Words]]:
            yield 1, stream(seed, values.size)
            for partner in self.partners[index]:
                if partner in self.roster:
                    yield sign(index, partner), self._pair_stream(mask, index, partner, number, values.size)

        return combined(values, masks())

    def _pair_stream(self, secret: bytes, index: int, partner: int, number: int, size: int) -> Words:
        """The mask of a pair, by the secret key of the one and the public key of the other."""
        public = self.keys[partner].masks[number * KEY_BYTES : (number + 1) * KEY_BYTES]
        pair = min(index, partner), max(index, partner)
        return stream(pair_seed(shared(secret, public), self.id, number, pair), size)

    def own_secret(self, number: int, *, in_list: bool) -> bytes:
        """Return what this member reveals of its own: the seed if it is in the sum, else the mask key. Never both."""
        own = self._secrets
        return (own.seeds if in_list else own.masks)[number] or b""

    def share(self, member: int, number: int, *, in_list: bool) -> bytes:
        """The share held of a member's seed if it is in the sum, else of its mask key; empty: there is none."""
        held = self.held.get(member)
        start = number * PAIR_BYTES + (0 if in_list else KEY_BYTES)
        share = bytes(held[start : start + KEY_BYTES]) if held else b""
        return share if any(share) else b""

    def is_right(self, member: int, number: int, secret: bytes, *, in_list: bool) -> bool:
        """True if a revealed secret is what the member committed to in its keys."""
        keys = self.keys[member]
        if in_list:
            return keys.has_seed(number, secret)
        return (
            len(secret) == KEY_BYTES and public_of(secret) == keys.masks[number * KEY_BYTES : (number + 1) * KEY_BYTES]
        )

    def rebuilt(self, member: int, number: int, shares: Mapping[int, bytes], *, in_list: bool) -> bytes | None:
        """A member's secret from what its holders have revealed; None: too few of them told the truth yet."""
        points = {
            holder + 1: int.from_bytes(share, "little")
            for holder, share in shares.items()
            if holder in self.partners[member]
        }

        def is_right(secret: int) -> bool:
            return self.is_right(member, number, secret.to_bytes(KEY_BYTES, "little"), in_list=in_list)

        rebuilt = rebuild_checked(points, self.settings.threshold, is_right)
        return None if rebuilt is None else rebuilt.to_bytes(KEY_BYTES, "little")

    def needs(self, members: Collection[int]) -> Iterator[tuple[int, bool]]:
        """Yield the members whose secrets unmask this sum: those in it (True), and others who have partners in it."""
        for member in sorted(self.roster):
            if member in members or any(partner in members for partner in self.partners[member]):
                yield member, member in members

    def unmasked(self, total: Words, number: int, members: Collection[int], secrets: Mapping[int, bytes]) -> Words:
        """The sum of the members' vectors, from the sum of their masked ones; (d,)."""

        def masks() -> Iterator[tuple[int, Words]]:
            for member, secret in sorted(secrets.items()):
                if member in members:
                    yield -1, stream(own_seed(secret, self.id, number), total.size)
                    continue
                for partner in self.partners[member]:
                    if partner in members:
                        yield -sign(partner, member), self._pair_stream(secret, member, partner, number, total.size)

        return combined(total, masks())

    def erase(self, number: int) -> None:
        """Forget all secrets of a sum."""
        own = self._secrets
        own.masks[number] = own.seeds[number] = None
        for held in self.held.values():
            held[number * PAIR_BYTES : (number + 1) * PAIR_BYTES] = bytes(PAIR_BYTES)


def _present(secret: bytes | None) -> bytes:
    if secret is None:
        raise RuntimeError("a sum's secrets are used once")
    return secret


FIRST_S = 4.0
"""The guess before anything was measured."""
LEAST_S, MOST_S, MOST_BACKOFF = 0.5, 30.0, 4.0
TIMES = 4.0
SLOW_BYTES_PER_S = 500_000
"""A vector has the time in which such a line moves one for each member: by that of set-ups it would be hours."""


class SumPatience:
    """The waits, from the times of whole stages that nobody was late for: nobody types a time-out."""

    def __init__(self, first_s: float = FIRST_S) -> None:
        self._first_s = first_s
        self._stages: deque[float] = deque(maxlen=8)
        self._backoff = 1.0

    @property
    def wait_s(self) -> float:
        """Four times the slowest of the latest stages; twice as long after each failure in a row."""
        wait = TIMES * max(self._stages) if self._stages else self._first_s
        return min(max(wait, LEAST_S) * self._backoff, MOST_S)

    def wait_for_s(self, entries: int, members: int, sums: int) -> float:
        """A sum's: that of a set-up, and as much again for its bytes; or the time on a slow line, if that is less."""
        times = entries * WORD_BYTES / (members * (100 + (48 + 64) * sums))
        return self.wait_s + min(self.wait_s * times, _slowly_s(entries, members))

    def more_beats(self, entries: int, members: int) -> int:
        """Return the number of beats for which vectors may be on their way."""
        return int(_slowly_s(entries, members) / self.beat_s)

    @property
    def beat_s(self) -> float:
        """The time between two looks whether something was lost."""
        return self.wait_s / 8

    def took(self, stage_s: float) -> None:
        """A stage has come to its end. One that somebody was waited for, in vain, measures the waiting: left out."""
        if stage_s < self.wait_s:
            self._stages.append(stage_s)
            self._backoff = 1.0

    def failed(self) -> None:
        self._backoff = min(self._backoff * 2, MOST_BACKOFF)


def _slowly_s(entries: int, members: int) -> float:
    return members * entries * WORD_BYTES / SLOW_BYTES_PER_S


PARTIAL, AGAIN, GROWN, OVER = 0.5, 0.65, 0.9, 3.0
"""In waits after an opening: acks of what is held so far; parcels not acknowledged are spread; second acks; failure."""
MOST_STATED = 64
"""More keys of this member than others keep."""
PROPOSE, NEXT = 1.5, 0.5
"""In waits after an opening: where its opener has proposed no roster others do, one after the other."""
HOLD, MOST_HOLD = 4.0, 64.0
"""The least and most waits of newcomers for a set-up with them; twice as many after each with no more members."""


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
    """The holders to whom parcels were sent over all neighbors."""


class KeySetup:
    def __init__(
        self, settings: SumSettings, draw: Draw, records: Records, patience: SumPatience, blame: Blame
    ) -> None:
        self._settings, self._draw, self._records, self._patience = settings, draw, records, patience
        self._blame = blame
        self.only: frozenset[int] = frozenset()
        """The members without whom the sums that are asked for here cannot be."""
        self._life, self._serial = settings.life, PLAIN if settings.is_plain else 0
        self._stated: deque[bytes] = deque(maxlen=MOST_STATED)
        """The boxes of this life's latest keys."""
        self._secrets: SetupSecrets | None = None
        self._drawn, self._quorum, self._wanted, self._stuck = 0.0, math.inf, math.inf, math.inf
        """The times when these keys were drawn, enough had fresh ones, they were wanted, and an opening with these and
        unknown ones came.
        """
        self._excused: set[int] = set()
        self._passed: set[bytes] = set()
        """The openings that do not name the present keys."""
        self._mute: frozenset[int] = frozenset()
        """The members that acknowledged nothing in the set-up that this one has opened last, if that failed."""
        self.attempt: Attempt | None = None
        self.complete: SumSetup | None = None
        """A set-up with a certified roster, until somebody takes it."""
        self._hold, self._completed_at, self._size = HOLD, 0.0, 0

    def act(self, now: float, current: SumSetup | None, *, is_used_up: bool, is_begun: bool) -> Iterator[Statement]:
        """Yield what to do now, one thing after the other. `is_used_up`: there is no set-up, or it has no sum left.

        The next keys wait until a sum of the present set-up has ended here (`is_begun`), or others have drawn theirs:
        they are large, and until then there is no tree along which they go to each member once.
        """
        if self.attempt is not None:
            yield from self._prepare(self.attempt, now)
        elif self._secrets is None:
            is_due = self.complete is None and (is_used_up or is_begun or self._leaves_out(current))
            if is_due or self._records.fresh:
                yield self._draw_keys(now)
        elif self.complete is None:
            yield from self._join(now)
        if self._settings.are_enough(self.fresh):
            self._quorum = min(now, self._quorum)
        is_time = now > self._completed_at + self._hold_s(current)
        wants = is_used_up or self._leaves_out(current) or (is_time and self._has_newcomers(current))
        if self.attempt is None and self.complete is None and wants:
            yield from self._open(now)

    def is_busy(self, current: SumSetup | None, *, is_used_up: bool) -> bool:
        return self.attempt is not None or is_used_up or self._has_newcomers(current) or self._leaves_out(current)

    def _draw_keys(self, now: float) -> Keys:
        self._secrets = SetupSecrets(self._draw, self._settings.sums)
        self._serial += 1
        self._drawn, self._quorum, self._wanted, self._stuck = now, math.inf, math.inf, math.inf
        self._passed.clear()
        keys = self._secrets.keys(self._life, self._serial)
        self._stated.append(keys.box)
        return keys

    def outlive(self, keys: Keys) -> None:
        """Others have keys of an earlier life of this member, which is not earlier by its number: take a later one.

        Keys of this life that it has forgotten are no such ones.
        """
        if keys.life >= self._life and keys.box not in self._stated:
            self._life, self._secrets = keys.life + 1, None

    @property
    def fresh(self) -> Mapping[int, bytes]:
        """The members with fresh keys; where they are enough, without those who are left out for what they held up."""
        fresh = self._records.fresh
        left = {member: name for member, name in fresh.items() if not self._is_out(member)}
        heard = {member: name for member, name in left.items() if member not in self._mute - self.only}
        return next((some for some in (heard, left) if self._settings.are_enough(some)), fresh)

    def _is_out(self, member: int) -> bool:
        return self._blame.is_banned(member) and member not in self.only

    def _has_newcomers(self, current: SumSetup | None) -> bool:
        """True if somebody with fresh keys is not in the current set-up, or has forgotten it by a restart."""
        fresh = self.fresh.keys()
        return current is not None and bool(fresh - current.roster or fresh & self.forgetful(current))

    def forgetful(self, current: SumSetup) -> frozenset[int]:
        """Return the members of a set-up who have forgotten it by a restart."""
        lives = {member: keys.life for member, keys in self._records.keys_of(self._records.latest).items()}
        return frozenset(m for m in lives.keys() & current.roster if lives[m] > current.keys[m].life)

    def _hold_s(self, current: SumSetup | None) -> float:
        """Return how long newcomers wait after a set-up; not longer each time where without them no group is whole."""
        is_vain = current is not None and not self._settings.whole(current.roster - self.forgetful(current))
        return (HOLD if is_vain else self._hold) * self._patience.wait_s

    def _leaves_out(self, current: SumSetup | None) -> bool:
        """True if somebody who holds sums up is in the current set-up, and would not be in a new one."""
        return current is not None and any(self._is_out(m) and m not in self.fresh for m in current.roster)

    def _turn_comes(self, member: int, now: float) -> bool:
        """True if it is a member's turn to open: the lowest with fresh keys that held nothing up, then the next."""
        fresh, wait_s = self.fresh, self._patience.wait_s
        rank = sum(self._blame.turn(each) < self._blame.turn(member) for each in fresh)
        if rank == 0 and all(each in fresh or self._is_out(each) for each in range(self._settings.count)):
            return True
        quorum, wanted = min(now, self._quorum), min(now, self._wanted)
        return now > max(quorum, wanted) + 2 * (quorum - self._drawn) + wait_s * (1 + 2 * rank)

    def _open(self, now: float) -> Iterator[Statement]:
        """Open a set-up, if it is this member's turn."""
        settings, fresh = self._settings, self.fresh
        if not settings.are_enough(fresh) or settings.index not in fresh:
            return
        self._wanted = min(now, self._wanted)
        if self._turn_comes(settings.index, now):
            yield SetupOpening(members=bits_of(fresh), keys=b"".join(fresh[member] for member in sorted(fresh)))
            yield from self._join(now)

    def _join(self, now: float) -> Iterator[Statement]:
        """Join the first opening that names this member's fresh keys, and deal shares of them."""
        settings, own = self._settings, self._records.latest.get(self._settings.index)
        for name, tally in list(self._records.tallies.items()):
            opener, secrets = tally.opener, self._secrets
            if secrets is None:
                return
            if name in self._passed or (self._blame.is_struck(opener) and not self._turn_comes(opener, now)):
                continue
            if tally.named.get(settings.index) != own:
                self._passed = (self._passed & self._records.tallies.keys()) | {name}
                continue
            keys = self._records.keys_of(tally.named)
            if keys.keys() != tally.named.keys():
                self._wait_for_keys(opener, tally.named.keys() - keys.keys(), now)
                continue
            self._secrets = None
            self._records.use(tally.named)
            try:
                setup = SumSetup(settings, name, keys, secrets)
            except ValueError:
                return
            sealed = setup.deal(self._draw)
            self.attempt = Attempt(setup=setup, began=now, opener=opener, sealed=sealed)
            for holder, parcel in sealed.items():
                yield Parcel(setup=name, to=holder, sealed=parcel, spread=False)
            return

    def _wait_for_keys(self, opener: int, lacking: set[int], now: float) -> None:
        """Draw new keys if others that an opening names do not come: its opener is struck, unless their owner was."""
        self._stuck = min(now, self._stuck)
        if now > self._stuck + OVER * self._patience.wait_s:
            excuses = {member for member in lacking if self._blame.is_struck(member)} - {opener} - self._excused
            self._excused |= excuses
            if not excuses:
                self._blame.strike(opener, "it has opened a set-up with keys that nobody has")
            self._secrets = None

    def _prepare(self, attempt: Attempt, now: float) -> Iterator[Statement]:
        index, tally = self._settings.index, self._records.tally(attempt.setup.id)
        since = (now - attempt.began) / self._patience.wait_s
        if self._blame.is_banned(attempt.opener) and tally.slots[ROSTER].certified is None:
            self.attempt = None
            return
        yield from self._acknowledge(attempt, tally, since)
        if since > AGAIN:
            yield from self._send_again(attempt, tally)
        slot = tally.slots[ROSTER]
        yield from self._vote(attempt, tally, since + NEXT)
        if index not in {*slot.signed, *slot.authors.values()} and self._may_propose(attempt, tally, index, since):
            yield from self._propose(attempt, tally, since)
        if slot.certified is not None:
            self._certified(attempt, frozenset(members_of(slot.certified.members)), now)
        elif since > OVER:
            self.attempt = None
            self._patience.failed()
            if attempt.opener == index:
                self._mute = frozenset(attempt.setup.members) - tally.acks.keys()
            if attempt.opener not in tally.acks:
                self._blame.strike(attempt.opener, "it has opened a set-up and taken no part in it")
            for member in sorted(tally.acks.keys() - slot.signed.keys()) if index in slot.signed else ():
                self._blame.strike(member, "it has signed no roster in time")

    def _vote(self, attempt: Attempt, tally: SetupTally, since: float) -> Iterator[SlotVote]:
        slot = tally.slots[ROSTER]
        for name, proposal in list(slot.lists.items()):
            author = slot.authors[name]
            is_turn = self._may_propose(attempt, tally, author, since)
            if self._settings.index in slot.signed:
                return
            if is_turn and attempt.setup.may_be_roster(members_of(proposal.members), tally.acks):
                if author != attempt.opener:
                    self._blame.strike(attempt.opener, "it has opened a set-up and proposed no roster in time")
                yield SlotVote(setup=attempt.setup.id, number=ROSTER, chosen=name)

    def _send_again(self, attempt: Attempt, tally: SetupTally) -> Iterator[Parcel]:
        """A holder that has acknowledged nothing is not there: what is for it would burden everybody."""
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
        self._hold = HOLD if len(roster) > self._size else min(self._hold * 2, MOST_HOLD)
        self._completed_at, self._size = now, len(roster)
        attempt.setup.roster = roster
        self.complete = attempt.setup
