"""An attack on secure sums: `p2pfl audit FEDERATION --attacks sums`.

The protocol's real state machines (`p2pfl.features.sums.protocol.Sums`) sum made-up arrays on a federation's graph. A
coalition is what some members have seen, drawn and been dealt, put together: it interpolates shares, tries each secret
that results against what its owner has published, and takes the masks that it then knows from the vectors that it saw.
Here colluders only look; those of `tests/sums` also cheat, and solve for all combinations of what they saw.
"""

from __future__ import annotations

import hashlib
import random
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import combinations, product
from math import comb, inf
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from nacl.bindings import crypto_aead_chacha20poly1305_ietf_decrypt
from nacl.exceptions import CryptoError

from p2pfl.config.model import FederationConfig
from p2pfl.crypto.identity import Identity
from p2pfl.features.sums import arithmetic, messages
from p2pfl.features.sums.arithmetic import COMMITMENT_BYTES, KEY_BYTES, PRIME, Words, stream
from p2pfl.features.sums.protocol import Sums

Place: TypeAlias = tuple[bytes, int, int]
"""A set-up, the number of a sum and a member."""
MOST_MEMBERS, FEWEST_OTHERS = 32, 2
"""One processor plays no more members in minutes; with fewer honest ones a sum tells a summand."""
PLAYED, SUMS, SIZE, LONGEST_S = 2, 3, 256, 100.0
"""The sums of a play, those of one set-up, the entries of each, and the virtual seconds of a play at most."""


class SumPlay:
    """Members ask for the sums in turn; nobody cheats or dies, and time passes only while all wait.

    `vectors` are what members add to the sums (PLAYED, members, SIZE), `sent` all messages with sender and receiver,
    `draws` what each member has drawn, `done` who got which sum.
    """

    def __init__(self, federation: FederationConfig, colluders: int) -> None:
        self.edges, self._waiting, self._now, count = federation.edges, 0, 0.0, len(federation.members)
        self._chance, numbers = random.Random(federation.seed), np.random.default_rng(federation.seed)
        self.vectors: Words = numbers.integers(0, 2**40, (PLAYED, count, SIZE)).astype("<u8")
        self.sent: list[tuple[int, int, messages.Message]] = []
        self.draws: list[list[bytes]] = [[] for _ in range(count)]
        self.done: list[tuple[int, messages.SumDone]] = []
        self._arriving: deque[tuple[int, int, messages.Message]] = deque()
        identities = [Identity(self._chance.randbytes(KEY_BYTES)) for _ in range(count)]
        common: dict[str, Any] = {"federation": b"audit", "members": tuple(each.public for each in identities)}
        common |= {"life": 1, "colluders": colluders, "least": colluders + FEWEST_OTHERS, "sums": SUMS}
        self.members = [
            Sums(messages.SumSettings(index=member, **common), identity, draw=partial(self._draw, member))
            for member, identity in enumerate(identities)
        ]

    def _draw(self, member: int, size: int) -> bytes:
        self.draws[member].append(self._chance.randbytes(size))
        return self.draws[member][-1]

    def is_sum(self, vector: Words, members: Iterable[int], number: int) -> bool:
        return np.array_equal(vector, self.vectors[number, sorted(members)].sum(axis=0, dtype="<u8"))

    def run(self) -> None:
        for low, high in self.edges:
            self._carry_out(low, self.members[low].opened(high, self._now))
            self._carry_out(high, self.members[high].opened(low, self._now))
        for number, vectors in enumerate(self.vectors):
            self._waiting = len(self.members)
            for member, vector in enumerate(vectors):
                self._carry_out(member, self.members[member].ask(str(number), vector, bytes([number] * 32), self._now))
            while self._waiting and self._now < LONGEST_S:
                self._go_on()

    def _go_on(self) -> None:
        if self._arriving:
            sender, member, message = self._arriving.popleft()
            self._carry_out(member, self.members[member].hear(sender, message, self._now))
        else:
            deadlines = [inf if each.deadline is None else each.deadline for each in self.members]
            self._now, member = max(self._now, min(deadlines)), deadlines.index(min(deadlines))
            self._carry_out(member, self.members[member].wake(self._now))

    def _carry_out(self, member: int, effects: Iterable[messages.Effect]) -> None:
        for effect in effects:
            if isinstance(effect, messages.SendToNeighbor):
                self.sent.append((member, effect.peer, effect.message))
                self._arriving.append(self.sent[-1])
            elif isinstance(effect, messages.SumDone | messages.Refused):
                self._waiting -= 1
                if isinstance(effect, messages.SumDone):
                    self.done.append((member, effect))


# -- what a coalition knows -------------------------------------------------------------------------------------------


class Coalition:
    """Members who pool all that they have `seen` and drawn, and rebuild secrets from at most `threshold` shares.

    `setups` has the keys of set-ups by member, `holdings` whose shares a member of a set-up has acknowledged. `parts`
    are vectors that travelled alone or added, by set-up, number and bytes, with whose they are said to be. `seeds` and
    `masks` are the secrets that are known.
    """

    def __init__(self, seen: Iterable[messages.Message], draws: Mapping[int, Sequence[bytes]], threshold: int) -> None:
        self.setups: dict[bytes, dict[int, messages.Keys]] = {}
        self.holdings: defaultdict[tuple[bytes, int], set[int]] = defaultdict(set)
        self.parts: dict[tuple[tuple[bytes, int], bytes], frozenset[int]] = {}
        self.seeds: dict[Place, bytes] = {}
        self.masks: dict[Place, bytes] = {}
        self._shares: defaultdict[tuple[int, Place], dict[int, int]] = defaultdict(dict)
        """The shares that were dealt to the coalition or told, by kind and place of the secret, by holder's point."""
        said = self._read(list(dict.fromkeys(seen)))
        drawn = [(member, int.from_bytes(draw, "little") % PRIME) for member in draws for draw in draws[member]]
        boxes = {arithmetic.public_of(number.to_bytes(KEY_BYTES, "little")): number for _, number in drawn}
        for member, number in drawn:
            self._offer(member, number)
        for author, statement in said:
            if isinstance(statement, messages.Reveal):
                self._hear(author, statement)
            elif isinstance(statement, messages.Parcel):
                self._unseal(author, statement, boxes)
        for (_, (*_, member)), shares in self._shares.items():
            arithmetic.rebuild_checked(shares, min(threshold, len(shares)), partial(self._offer, member))

    def _read(self, seen: Sequence[messages.Message]) -> list[tuple[int, messages.Statement]]:
        """Sort keys, acknowledgments and vectors; return all statements with their authors."""
        posts = {messages.id_of(each.author, each.body): each for each in seen if isinstance(each, messages.Post)}
        said = {name: messages.decode_statement(post.body) for name, post in posts.items()}
        keys = {name: each for name, each in said.items() if isinstance(each, messages.Keys)}
        for name, statement in said.items():
            if isinstance(statement, messages.SetupOpening):
                names = statement.named() or {}
                if keys.keys() >= set(names.values()):
                    self.setups[name] = {member: keys[each] for member, each in names.items()}
            elif isinstance(statement, messages.Ack):
                self.holdings[statement.setup, posts[name].author] |= set(messages.members_of(statement.holds))
        for message in seen:
            if isinstance(message, messages.BranchPart | messages.Total) and message.vector:
                about = said.get(message.wave) if isinstance(message, messages.BranchPart) else message
                if isinstance(about, messages.Wave | messages.Total):
                    whose = frozenset(messages.members_of(message.members))
                    self.parts.setdefault(((about.setup, about.number), message.vector), whose)
        return [(posts[name].author, statement) for name, statement in said.items()]

    def _hear(self, holder: int, reveal: messages.Reveal) -> None:
        """Take what a member reveals. It does not say of which kind a share is: it is tried as both."""
        self._offer(holder, int.from_bytes(reveal.own, "little"))
        for (member, share), kind in product(reveal.shares, range(2)):
            shares = self._shares[kind, (reveal.setup, reveal.number, member)]
            shares.setdefault(holder + 1, int.from_bytes(share, "little"))

    def _unseal(self, dealer: int, parcel: messages.Parcel, boxes: Mapping[bytes, int]) -> None:
        """Take the shares that a member has dealt, if the key of their box is among those drawn."""
        keys = self.setups.get(parcel.setup, {})
        if dealer not in keys or parcel.to not in keys or keys[parcel.to].box not in boxes:
            return
        agreed = arithmetic.shared(boxes[keys[parcel.to].box].to_bytes(KEY_BYTES, "little"), keys[dealer].box)
        text = parcel.setup + dealer.to_bytes(4, "little") + parcel.to.to_bytes(4, "little")
        key = hashlib.blake2b(text, digest_size=KEY_BYTES, key=agreed, person=b"sums parcel").digest()
        with suppress(CryptoError, ValueError):
            plain = crypto_aead_chacha20poly1305_ietf_decrypt(parcel.sealed, parcel.setup, arithmetic.NONCE, key)
            for at in range(len(plain) // KEY_BYTES):
                place, share = (parcel.setup, at // 2, dealer), _cut(plain, at, KEY_BYTES)
                self._shares[at % 2, place][parcel.to + 1] = int.from_bytes(share, "little")

    def _offer(self, member: int, number: int) -> bool:
        """Take a secret for all places of its member that it opens; False: it opens none."""
        opens, secret = False, number.to_bytes(KEY_BYTES, "little")
        public = arithmetic.public_of(secret)
        for setup, keys in [(setup, keys[member]) for setup, keys in self.setups.items() if member in keys]:
            for at in range(len(keys.masks) // KEY_BYTES):
                if public == _cut(keys.masks, at, KEY_BYTES):
                    self.masks[setup, at, member], opens = secret, True
                if arithmetic.commitment(secret, keys.box, at) == _cut(keys.seeds, at, COMMITMENT_BYTES):
                    self.seeds[setup, at, member], opens = secret, True
        return opens

    def mask(self, setup: bytes, number: int, low: int, high: int, size: int) -> Words | None:
        """The mask (size,) of a pair, or of a member by itself if both are the same; None: it is not known."""
        if low == high:
            seed = self.seeds.get((setup, number, low))
            return None if seed is None else stream(arithmetic.own_seed(seed, setup, number), size)
        for member, other in ((low, high), (high, low)):
            secret, keys = self.masks.get((setup, number, member)), self.setups.get(setup, {}).get(other)
            if secret is not None and keys is not None:
                agreed = arithmetic.shared(secret, _cut(keys.masks, number, KEY_BYTES))
                return stream(arithmetic.pair_seed(agreed, setup, number, (low, high)), size)
        return None

    def unmasked(self, size: int) -> Iterator[tuple[frozenset[int], Words]]:
        """Each vector that was seen, with whose it is: as it is, less the members' own masks that are known, and less
        those of pairs, too. A protocol that leaves out a mask is read by one of the first two.
        """
        held = self.holdings
        for ((setup, number), sent), members in self.parts.items():
            vector = np.frombuffer(sent, "<u8")
            own = [(-1, member, member) for member in members]
            pairs = [
                (-arithmetic.sign(member, other), min(member, other), max(member, other))
                for member, other in product(members, self.setups.get(setup, ()))
                if other not in members and (other in held[setup, member] or member in held[setup, other])
            ]
            for masks in ([], own, pairs) if vector.size == size else ():
                known = [(sign, self.mask(setup, number, low, high, size)) for sign, low, high in masks]
                vector = arithmetic.combined(vector, [(sign, mask) for sign, mask in known if mask is not None])
                yield members, vector


def _cut(text: bytes, number: int, size: int) -> bytes:
    return text[number * size : (number + 1) * size]


# -- the attack -------------------------------------------------------------------------------------------------------


class Look(NamedTuple):
    """Can a coalition work out anything in `excess` of sums that came about, less what it has added? `fewest` are the
    others whose sum it knows; `exposed` those of whom it knows both secrets of a sum, and the number of that.
    """

    members: tuple[int, ...]
    excess: bool
    fewest: tuple[int, ...]
    exposed: list[tuple[int, int]]


@dataclass(frozen=True, slots=True, kw_only=True)
class SumsAudit:
    """The looks of all coalitions that were tried, by size; whether anybody got a sum, and who one that is `wrong`."""

    federation: FederationConfig
    colluders: int
    looks: dict[int, list[Look]]
    is_done: bool
    wrong: list[tuple[int, tuple[int, ...]]]

    def best(self, size: int) -> Look:
        return max(self.looks[size], key=lambda look: (look.excess, bool(look.fewest), -len(look.fewest)))

    @property
    def held(self) -> int:
        """The size up to which no coalition can work out more than sums; all others but one learn a vector."""
        excess = (size for size in self.looks if self.best(size).excess)
        return min([*excess, len(self.federation.members) - 1]) - 1


def attack_sums(
    federation: FederationConfig,
    victim: int,
    *,
    colluders: int = 1,
    coalitions: int = 24,
    tell: Callable[[str], None] = lambda _: None,
) -> SumsAudit:
    """Play sums; let coalitions without `victim` look: so many up to the promised size, fewer larger ones."""
    chance, play = random.Random(f"sums audit {federation.seed}"), SumPlay(federation, colluders)
    tell("sums that nothing disturbs")
    play.run()
    others = (member for member in range(len(federation.members)) if member != victim)
    near, looks = list(dict.fromkeys([*federation.neighbors(victim), *others])), {}
    for size in range(1, len(near) + 1):
        tell(f"coalitions of {size}")
        most = coalitions if size <= colluders else max(1, coalitions // 12)
        looks[size] = [_look(play, members, colluders + 1) for members in _coalitions(near, size, most, chance)]
    wrong = [(at, done.members) for at, done in play.done if not play.is_sum(done.total, done.members, int(done.label))]
    return SumsAudit(federation=federation, colluders=colluders, looks=looks, is_done=bool(play.done), wrong=wrong)


def _look(play: SumPlay, members: tuple[int, ...], threshold: int) -> Look:
    sent = [message for sender, receiver, message in play.sent if sender in members or receiver in members]
    known = Coalition(sent, {member: play.draws[member] for member in members}, threshold)
    promised = {frozenset(done.members).difference(members) for member, done in play.done if member in members}
    bare = {
        whose.difference(members)
        for whose, vector in known.unmasked(SIZE)
        if any(play.is_sum(vector, whose, number) for number in range(PLAYED))
    }
    learned = promised | bare | {a - b for a in promised | bare for b in promised | bare if b < a}
    fewest = min((sorted(whose) for whose in learned if whose), key=lambda whose: (len(whose), whose), default=[])
    exposed = {(member, number) for _, number, member in known.seeds.keys() & known.masks if member not in members}
    return Look(members, bool(learned - promised - {frozenset()}), tuple(fewest), sorted(exposed))


def _coalitions(near: Sequence[int], size: int, most: int, chance: random.Random) -> list[tuple[int, ...]]:
    """Coalitions of these: all if there are few, else that of the first ones, and drawn ones."""
    if comb(len(near), size) <= most:
        return list(combinations(sorted(near), size))
    chosen = {tuple(sorted(near[:size])): None}
    while len(chosen) < most:
        chosen[tuple(sorted(chance.sample(near, size)))] = None
    return list(chosen)
