"""An attack on secure sums: `p2pfl audit FEDERATION --attacks sums`.

The protocol's real state machines (`p2pfl.features.sums.protocol.Sums`) sum made-up arrays on a federation's graph, in
virtual time. A coalition is what some members have seen, drawn and been dealt, put together: it interpolates shares,
tries each secret that results against what its owner has published, and takes the masks that it then knows from the
vectors that it saw. None of the protocol's own functions are used for that, so that a mistake in them is not repeated.
Here colluders only look; those of `tests/sums` also cheat, and solve for all combinations of what they saw.
"""

from __future__ import annotations

import hashlib
import random
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from itertools import combinations, islice
from math import comb
from typing import Any, TypeAlias

import numpy as np
from nacl.bindings import (
    crypto_aead_chacha20poly1305_ietf_decrypt,
    crypto_aead_chacha20poly1305_ietf_encrypt,
    crypto_scalarmult,
    crypto_scalarmult_base,
)
from nacl.exceptions import CryptoError
from numpy.typing import NDArray

from p2pfl.crypto.identity import Identity
from p2pfl.features.sums.messages import (
    ID_BYTES,
    Ack,
    BranchPart,
    Effect,
    Keys,
    Message,
    Parcel,
    Post,
    Refused,
    Reveal,
    SendToNeighbor,
    SetupOpening,
    SumDone,
    SumSettings,
    Total,
    Wave,
    decode_statement,
    id_of,
    members_of,
)
from p2pfl.features.sums.protocol import Sums
from sim.kernel import Kernel

Ring: TypeAlias = NDArray[np.uint64]
"""Whole numbers modulo 2^64."""
Place: TypeAlias = tuple[bytes, int, int]
"""A set-up, the number of a sum and a member."""
MOST_MEMBERS = 32
"""One processor plays no more of them in minutes."""
LABELS, SUMS, SIZE = ("sum 1", "sum 2"), 3, 256
"""The sums of a play, those of one set-up, and the entries of each."""
LONGEST_S, DELAY_S, PAUSE_S = 100.0, (0.005, 0.05), 0.2
"""Virtual seconds: of a play at most, of a message, and between two sums."""
PRIME = 2**255 - 19
KEY, TAG, COMMITMENT = 32, 16, 16
MOST_TRIES = 400
"""The sets of shares that are tried for one secret."""
MOST_NAMES = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class SumCast:
    """Who plays: a federation's members and graph, and the numbers that its sums have in common."""

    names: tuple[str, ...]
    edges: tuple[tuple[int, int], ...]
    colluders: int
    least: int

    @property
    def count(self) -> int:
        return len(self.names)

    def neighbors(self, member: int) -> list[int]:
        return sorted(low + high - member for low, high in self.edges if member in (low, high))

    def named(self, members: Collection[int]) -> str:
        names = [self.names[member] for member in sorted(members)]
        more = [f"{len(names) - MOST_NAMES} others"] if len(names) > MOST_NAMES else []
        return " and ".join([", ".join(names[:MOST_NAMES]), *more])


# -- the play ---------------------------------------------------------------------------------------------------------


class SumPlay:
    """Members ask for the sums in turn; nobody cheats or dies. `vector(member, label)` is what each adds, (SIZE,).

    Afterwards `sent` has all messages with sender and receiver, `draws` what each member has drawn, `done` who got
    which sum.
    """

    def __init__(self, cast: SumCast, seed: int) -> None:
        self.cast, self.seed = cast, seed
        self.kernel, self._chance = Kernel(), random.Random(f"sums play {seed}")
        self.sent: list[tuple[int, int, Message]] = []
        self.draws: list[list[bytes]] = [[] for _ in cast.names]
        self.done: list[tuple[int, SumDone]] = []
        self._waiting, self._due = cast.count * len(LABELS), dict[int, float]()
        seeds = (hashlib.blake2b(b"%d %d" % (seed, at), digest_size=32).digest() for at in range(cast.count))
        identities = [Identity(each) for each in seeds]
        self.members = [self._member(index, identities) for index in range(cast.count)]
        for low, high in cast.edges:
            for end, other in ((low, high), (high, low)):
                self._later(0.0, end, partial(Sums.opened, peer=other))
        for index in range(cast.count):
            self._ask(index, LABELS[0])

    def _member(self, index: int, identities: Sequence[Identity]) -> Sums:
        drawn, chance, cast = self.draws[index], random.Random(f"{self.seed} {index}"), self.cast

        def draw(size: int) -> bytes:
            drawn.append(chance.randbytes(size))
            return drawn[-1]

        members, numbers = tuple(identity.public for identity in identities), {"least": cast.least, "sums": SUMS}
        settings = SumSettings(
            federation=b"audit", members=members, index=index, life=1, colluders=cast.colluders, **numbers
        )
        return Sums(settings, identities[index], draw=draw)

    def vector(self, member: int, label: str) -> Ring:
        chance = np.random.default_rng([self.seed, member, LABELS.index(label)])
        return chance.integers(0, 2**40, SIZE).astype("<u8")

    def total(self, members: Iterable[int], label: str) -> Ring:
        total: Ring = np.sum([self.vector(member, label) for member in members], axis=0, dtype="<u8")
        return total

    def run(self) -> None:
        while self._waiting and self.kernel.now < LONGEST_S and self.kernel.step():
            pass

    def _ask(self, index: int, label: str) -> None:
        terms = hashlib.blake2b(label.encode(), digest_size=32).digest()
        vector = self.vector(index, label)
        ask = lambda member, now: member.ask(label, vector, terms, now)  # noqa: E731 - short
        self._later(PAUSE_S * self._chance.random(), index, ask)

    def _later(self, delay_s: float, index: int, act: Callable[..., list[Effect]]) -> None:
        self.kernel.after(delay_s, lambda: self._carry_out(index, act(self.members[index], now=self.kernel.now)))

    def _carry_out(self, index: int, effects: list[Effect]) -> None:
        for effect in effects:
            match effect:
                case SendToNeighbor(peer=peer, message=message):
                    self.sent.append((index, peer, message))
                    hear = partial(Sums.hear, peer=index, message=message)
                    self._later(self._chance.uniform(*DELAY_S), peer, hear)
                case SumDone() | Refused():
                    self._waiting -= 1
                    if isinstance(effect, SumDone):
                        self.done.append((index, effect))
                    for label in LABELS[LABELS.index(effect.label) + 1 :][:1]:
                        self._ask(index, label)
        deadline = self.members[index].deadline
        if deadline is not None and self._due.get(index) != deadline:
            self._due[index] = deadline
            self.kernel.at(max(deadline, self.kernel.now), partial(self._wake, index, deadline))

    def _wake(self, index: int, deadline: float) -> None:
        if self.members[index].deadline == deadline:
            self._carry_out(index, self.members[index].wake(self.kernel.now))


# -- what was seen ----------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Seen:
    """The statements and vectors in messages, sorted. `parts` are the vectors that travelled alone or added, with
    whose they are said to be; `held` has for each set-up and member whose shares it holds: they are its partners.
    """

    keys: dict[bytes, Keys] = field(default_factory=dict)
    openings: dict[bytes, SetupOpening] = field(default_factory=dict)
    parcels: list[tuple[int, Parcel]] = field(default_factory=list)
    reveals: list[tuple[int, Reveal]] = field(default_factory=list)
    waves: dict[bytes, Wave] = field(default_factory=dict)
    held: dict[tuple[bytes, int], set[int]] = field(default_factory=lambda: defaultdict(set))
    parts: dict[tuple[tuple[bytes, int], bytes], frozenset[int]] = field(default_factory=dict)

    @classmethod
    def of(cls, messages: Iterable[Message]) -> Seen:
        seen, branches = cls(), list[BranchPart]()
        for message in dict.fromkeys(messages):
            match message:
                case Post():
                    seen.take(message.author, id_of(message.author, message.body), decode_statement(message.body))
                case BranchPart():
                    branches.append(message)
                case Total():
                    seen.take_part((message.setup, message.number), message)
        for part in branches:
            if part.wave in seen.waves:
                seen.take_part((seen.waves[part.wave].setup, seen.waves[part.wave].number), part)
        return seen

    def take(self, author: int, name: bytes, statement: object) -> None:
        match statement:
            case Keys():
                self.keys[name] = statement
            case SetupOpening():
                self.openings[name] = statement
            case Parcel():
                self.parcels.append((author, statement))
            case Ack():
                self.held[statement.setup, author] |= set(members_of(statement.holds))
            case Wave():
                self.waves[name] = statement
            case Reveal():
                self.reveals.append((author, statement))

    def take_part(self, slot: tuple[bytes, int], message: BranchPart | Total) -> None:
        if message.vector:
            self.parts.setdefault((slot, message.vector), frozenset(members_of(message.members)))

    def keys_in(self, setup: bytes) -> dict[int, Keys]:
        """The keys of a set-up's members; empty while they are not all known."""
        opening = self.openings.get(setup)
        if opening is None:
            return {}
        members = members_of(opening.members)
        names = [opening.keys[at * ID_BYTES : (at + 1) * ID_BYTES] for at in range(len(members))]
        known = all(name in self.keys for name in names)
        return {member: self.keys[name] for member, name in zip(members, names, strict=True)} if known else {}

    def partners(self, setup: bytes, member: int) -> set[int]:
        others = {other for (at, other), held in self.held.items() if at == setup and member in held}
        return self.held.get((setup, member), set()) | others


# -- the secrets of others --------------------------------------------------------------------------------------------


@cache
def public_of(secret: bytes) -> bytes:
    return crypto_scalarmult_base(secret)


def commitment(secret: bytes, box: bytes, number: int) -> bytes:
    text = box + number.to_bytes(4, "little")
    return hashlib.blake2b(text, digest_size=COMMITMENT, key=secret, person=b"sums commit").digest()


def stream(seed: bytes, size: int) -> Ring:
    sealed = crypto_aead_chacha20poly1305_ietf_encrypt(bytes(8 * size), None, bytes(12), seed)
    return np.frombuffer(sealed[:-TAG], "<u8")


def agreed(secret: bytes, public: bytes) -> bytes:
    try:
        return crypto_scalarmult(secret, public)
    except RuntimeError:  # a point of low order
        return bytes(KEY)


def derived(person: bytes, key: bytes, text: bytes) -> bytes:
    return hashlib.blake2b(text, digest_size=KEY, key=key, person=person).digest()


@dataclass(slots=True)
class KnownSecrets:
    """The seeds and mask keys that a coalition knows, by place."""

    seen: Seen
    seeds: dict[Place, bytes] = field(default_factory=dict)
    masks: dict[Place, bytes] = field(default_factory=dict)

    @classmethod
    def of(
        cls, coalition: Collection[int], seen: Seen, draws: Mapping[int, list[bytes]], threshold: int
    ) -> KnownSecrets:
        """All secrets that the coalition can rebuild, from at most `threshold` shares each."""
        known = cls(seen)
        drawn = {member: [_uniform(each) for each in draws[member] if len(each) >= KEY] for member in coalition}
        for member, secrets in drawn.items():
            for secret in secrets:
                known.offer(member, secret)
        for author, reveal in seen.reveals:
            if len(reveal.own) == KEY:
                known.offer(author, reveal.own)
        for (_, _, member, _), shares in _shares(seen, drawn).items():
            any(known.offer(member, secret) for secret in _interpolated(shares, threshold))
        return known

    def offer(self, member: int, secret: bytes) -> bool:
        """Take a secret for all places of its member that it opens; False: it opens none."""
        opens = False
        for setup in self.seen.openings:
            keys = self.seen.keys_in(setup).get(member)
            for number in range(0 if keys is None else len(keys.masks) // KEY):
                place = setup, number, member
                if keys is not None and public_of(secret) == _cut(keys.masks, number, KEY):
                    self.masks[place], opens = secret, True
                if keys is not None and commitment(secret, keys.box, number) == _cut(keys.seeds, number, COMMITMENT):
                    self.seeds[place], opens = secret, True
        return opens

    def streams(self, size: int) -> dict[tuple[bytes, int, int, int], Ring]:
        """The masks (size,) of all sums seen that the secrets give, by set-up, number and pair (own: itself twice)."""
        found, slots = {}, {slot for slot, _ in self.seen.parts}
        for (setup, number, member), seed in self.seeds.items():
            if (setup, number) in slots:
                own = derived(b"sums own", seed, setup + number.to_bytes(4, "little"))
                found[setup, number, member, member] = stream(own, size)
        for (setup, number, member), secret in self.masks.items():
            for other, keys in self.seen.keys_in(setup).items() if (setup, number) in slots else ():
                low, high = min(member, other), max(member, other)
                if other != member and (setup, number, low, high) not in found:
                    between = agreed(secret, _cut(keys.masks, number, KEY))
                    text = setup + b"".join(each.to_bytes(4, "little") for each in (number, low, high))
                    found[setup, number, low, high] = stream(derived(b"sums pair", between, text), size)
        return found

    def unmasked(self, size: int) -> Iterator[tuple[frozenset[int], Ring]]:
        """Each vector that was seen, with whose it is: as it is, less the members' own masks that are known, and less
        those of pairs, too. A protocol that leaves out a mask is read by one of the first two.
        """
        masks, nothing = self.streams(size), np.zeros(size, "<u8")
        for ((setup, number), sent), members in self.seen.parts.items():
            vector = np.frombuffer(sent, "<u8")
            if vector.size != size:
                continue
            yield members, vector
            vector = vector - sum((masks.get((setup, number, each, each), nothing) for each in members), nothing)
            yield members, vector
            for member in members:
                for partner in self.seen.partners(setup, member) - members:
                    between = masks.get((setup, number, min(member, partner), max(member, partner)), nothing)
                    vector = vector - between if member < partner else vector + between
            yield members, vector


def _shares(seen: Seen, drawn: Mapping[int, list[bytes]]) -> dict[tuple[bytes, int, int, str], dict[int, int]]:
    """All shares that were dealt to the coalition or told, by set-up, number, member and kind, by holder.

    Of a share that was told the kind is not: it is tried with those of both.
    """
    found: dict[tuple[bytes, int, int, str], dict[int, int]] = defaultdict(dict)
    for dealer, parcel in seen.parcels:
        keys = seen.keys_in(parcel.setup)
        for secret in drawn.get(parcel.to, ()) if dealer in keys and parcel.to in keys else ():
            if public_of(secret) == keys[parcel.to].box:
                plain = _unsealed(parcel, dealer, secret, keys[dealer].box)
                for at in range(len(plain) // KEY):
                    share = int.from_bytes(_cut(plain, at, KEY), "little")
                    found[parcel.setup, at // 2, dealer, ("seed", "mask")[at % 2]][parcel.to] = share
    for holder, reveal in seen.reveals:
        for member, told in reveal.shares:
            for kind in ("seed", "mask"):
                shares = found[reveal.setup, reveal.number, member, kind]
                shares.setdefault(holder, int.from_bytes(told, "little"))
    return found


def _unsealed(parcel: Parcel, dealer: int, secret: bytes, box: bytes) -> bytes:
    text = parcel.setup + dealer.to_bytes(4, "little") + parcel.to.to_bytes(4, "little")
    key = derived(b"sums parcel", agreed(secret, box), text)
    try:
        return crypto_aead_chacha20poly1305_ietf_decrypt(parcel.sealed, parcel.setup, bytes(12), key)
    except (CryptoError, ValueError):
        return b""


def _interpolated(shares: Mapping[int, int], threshold: int) -> Iterator[bytes]:
    """What sets of so many of the shares give, at zero; the holders' points are their indices and one."""
    for holders in islice(combinations(sorted(shares), min(threshold, len(shares))), MOST_TRIES):
        total = 0
        for holder in holders:
            above = below = 1
            for other in holders:
                if other != holder:
                    above = above * (other + 1) % PRIME
                    below = below * (other - holder) % PRIME
            total += shares[holder] * above * pow(below, -1, PRIME)
        yield (total % PRIME).to_bytes(KEY, "little")


def _uniform(drawn: bytes) -> bytes:
    return (int.from_bytes(drawn, "little") % PRIME).to_bytes(KEY, "little")


def _cut(text: bytes, number: int, size: int) -> bytes:
    return text[number * size : (number + 1) * size]


# -- the attack -------------------------------------------------------------------------------------------------------


@dataclass(slots=True, kw_only=True)
class SumsFound:
    """By the size of coalitions: how many were tried, and the best of them, with the fewest members whose sum it can
    work out; `excess` are the sizes at which that is not a sum that came about, less what the coalition has added.
    """

    cast: SumCast
    victim: int
    tried: dict[int, int] = field(default_factory=dict)
    best: dict[int, tuple[tuple[int, ...], tuple[int, ...]]] = field(default_factory=dict)
    excess: set[int] = field(default_factory=set)
    mistakes: list[str] = field(default_factory=list)
    """Signs that a protocol that does what it claims would not show."""

    @property
    def held(self) -> int:
        """The largest size up to which no coalition tried learns more than sums; all others but one learn a vector."""
        return min([*self.excess, self.cast.count - 1, max(self.tried, default=0) + 1]) - 1

    def learn(self, size: int) -> str:
        """What a coalition of this size learns, in words."""
        _, smallest = self.best[size]
        if not smallest:
            return "nothing"
        if len(smallest) == 1:
            less = ": the sum less their own" if size == self.cast.count - 1 else ""
            return f"the vector of {self.cast.named(smallest)}{less}"
        is_all = len(smallest) == self.cast.count - size
        return f"the sum of {'all others' if is_all else self.cast.named(smallest)}"

    def rows(self) -> list[dict[str, Any]]:
        return [
            {
                "colluders": size,
                "tried": self.tried[size],
                "such as": self.cast.named(members),
                "learn": self.learn(size),
                "as promised": ("no" if size in self.excess else "yes") if size <= self.cast.colluders else "-",
            }
            for size, (members, _) in sorted(self.best.items())
        ]

    def summary(self) -> list[str]:
        """Sentences for people. They claim what was tried, and no more."""
        cast = self.cast
        tried = f"no coalition of up to {self.held} that was tried learned more than the sum of the others"
        words = [f"{cast.count} members, {len(cast.edges)} edges: {tried} (promised is {cast.colluders})."]
        if (beyond := self.held + 1) in self.best:
            members, _ = self.best[beyond]
            words.append(f"{beyond} together, such as {cast.named(members)}, learn {self.learn(beyond)}.")
        return words

    def as_json(self) -> dict[str, Any]:
        head = {"members": self.cast.count, "promised": self.cast.colluders, "held": self.held, "rows": self.rows()}
        return head | {"summary": self.summary(), "mistakes": self.mistakes}


def attack_sums(
    cast: SumCast,
    victim: int,
    *,
    seed: int = 0,
    coalitions: int = 24,
    on_progress: Callable[[str], None] = lambda _: None,
) -> SumsFound:
    """Play sums of `cast`; let coalitions without `victim` look: so many up to the promised size, fewer larger ones."""
    found, chance = SumsFound(cast=cast, victim=victim), random.Random(f"sums audit {seed}")
    on_progress("sums that nothing disturbs")
    play = SumPlay(cast, seed)
    play.run()
    for at, done in play.done:
        if not np.array_equal(done.total, play.total(done.members, done.label)):
            found.mistakes.append(f"{cast.named([at])} has a sum that is not that of {cast.named(done.members)}")
    if not play.done:
        found.mistakes.append("nobody has a sum")
    for size in range(1, cast.count):
        on_progress(f"coalitions of {size}")
        most = coalitions if size <= cast.colluders else max(1, coalitions // 12)
        for members in _coalitions(cast, victim, size, most, chance):
            _look(members, play, found)
    return found


def _look(members: tuple[int, ...], play: SumPlay, found: SumsFound) -> None:
    cast, size = play.cast, len(members)
    sent = (message for sender, receiver, message in play.sent if sender in members or receiver in members)
    draws = {member: play.draws[member] for member in members}
    known = KnownSecrets.of(members, Seen.of(sent), draws, cast.colluders + 1)
    true = {frozenset(done.members) - set(members) for at, done in play.done if at in members}
    sums = {whole - set(members) for whole, vector in known.unmasked(SIZE) if _is_bare(whole, vector, play)}
    learned = true | sums | {a - b for a in true | sums for b in true | sums if b < a}
    smallest = min((tuple(sorted(each)) for each in learned if each), key=lambda each: (len(each), each), default=())
    has_excess, had_excess = bool(learned - true - {frozenset()}), size in found.excess
    before = found.best.get(size)
    reach = has_excess, bool(smallest), -len(smallest)
    if before is None or reach > (had_excess, bool(before[1]), -len(before[1])):
        found.best[size] = members, smallest
    found.tried[size] = found.tried.get(size, 0) + 1
    found.excess |= {size} if has_excess else set()
    if size > cast.colluders:
        return
    if has_excess:
        found.mistakes.append(f"{cast.named(members)} can work out {found.learn(size)} by themselves")
    for _, number, member in sorted(set(known.seeds) & set(known.masks)):
        if member not in members:
            text = f"{cast.named(members)} can tell both secrets of {cast.named([member])} in one sum (number {number})"
            found.mistakes.append(text)


def _is_bare(members: frozenset[int], vector: Ring, play: SumPlay) -> bool:
    """True if no mask is left on that vector, as the audit can tell that knows what everybody adds."""
    return any(np.array_equal(vector, play.total(members, label)) for label in LABELS)


def _coalitions(cast: SumCast, victim: int, size: int, most: int, chance: random.Random) -> list[tuple[int, ...]]:
    """Coalitions without the victim: all if there are few, else its neighbors first, and drawn ones."""
    others = [member for member in range(cast.count) if member != victim]
    if comb(len(others), size) <= most:
        return list(combinations(others, size))
    near = list(dict.fromkeys([*cast.neighbors(victim), *others]))
    found = {tuple(sorted(near[:size])): None}
    while len(found) < most:
        found[tuple(sorted(chance.sample(others, size)))] = None
    return list(found)
