"""The secrets that a coalition can reconstruct, from what it has seen, drawn and been dealt.

None of the protocol's own functions are used here, so that a mistake in them is not repeated: a secret counts as known
if it opens what its owner has published, an X25519 key or a commitment, whichever sum it was meant for.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from itertools import combinations, islice

import numpy as np
from nacl.bindings import (
    crypto_aead_chacha20poly1305_ietf_decrypt,
    crypto_aead_chacha20poly1305_ietf_encrypt,
    crypto_scalarmult,
    crypto_scalarmult_base,
)
from nacl.exceptions import CryptoError

from p2pfl.features.sums.messages import Keys, Parcel
from sim.audits.sums.probes import Ring
from sim.audits.sums.seen_board import SumBoard

PRIME = 2**255 - 19
KEY, TAG, COMMITMENT = 32, 16, 16
MOST_TRIES = 400
"""The sets of shares that are tried for one secret."""
SEED, MASK = "seed", "mask key"

Place = tuple[bytes, int, int]
"""A set-up, the number of a sum and a member."""


@cache
def public_of(secret: bytes) -> bytes:
    return crypto_scalarmult_base(secret)


@cache
def commitment(secret: bytes, box: bytes, number: int) -> bytes:
    text = box + number.to_bytes(4, "little")
    return hashlib.blake2b(text, digest_size=16, key=secret, person=b"sums commit").digest()


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


def _uniform(drawn: bytes) -> bytes:
    return (int.from_bytes(drawn, "little") % PRIME).to_bytes(KEY, "little")


@dataclass(slots=True)
class KnownSecrets:
    """`seeds` and `masks` are by place. `reused` names members of whom one secret opens more than one sum."""

    seeds: dict[Place, bytes] = field(default_factory=dict)
    masks: dict[Place, bytes] = field(default_factory=dict)
    reused: set[int] = field(default_factory=set)

    def both(self) -> set[Place]:
        """The places of which both kinds are known: whoever sees that masked vector reads what is behind it."""
        return set(self.seeds) & set(self.masks)

    def streams(self, board: SumBoard, size: int) -> dict[tuple[bytes, int, int, int], Ring]:
        """The masks that these secrets give of all sums of which vectors were seen, by set-up, number and pair (a
        member's own: twice itself); (size,).
        """
        found, seen = {}, {slot for slot, _ in board.parts}
        for (setup, number, member), seed in self.seeds.items():
            if (setup, number) not in seen:
                continue
            own = derived(b"sums own", seed, setup + number.to_bytes(4, "little"))
            found[setup, number, member, member] = stream(own, size)
        for (setup, number, member), secret in self.masks.items():
            for other, keys in board.keys_in(setup).items() if (setup, number) in seen else ():
                pair = min(member, other), max(member, other)
                if other == member or (setup, number, *pair) in found:
                    continue
                ends = b"".join(end.to_bytes(4, "little") for end in pair)
                between = agreed(secret, _cut(keys.masks, number, KEY))
                text = setup + number.to_bytes(4, "little") + ends
                found[setup, number, *pair] = stream(derived(b"sums pair", between, text), size)
        return found


def secrets_of(
    coalition: Collection[int], board: SumBoard, draws: Mapping[int, list[bytes]], most: int
) -> KnownSecrets:
    """All secrets that the coalition can reconstruct. `most`: the threshold of the shares is at most this."""
    pool = _Pool(board)
    drawn = {member: [_uniform(each) for each in draws[member] if len(each) >= KEY] for member in coalition}
    for member, secrets in drawn.items():
        for secret in secrets:
            pool.offer(member, secret)
    for author, reveal in board.reveals:
        if len(reveal.own) == KEY:
            pool.offer(author, reveal.own)
    for (_, _, member, _), shares in _shares(coalition, board, drawn).items():
        any(pool.offer(member, secret) for secret in _interpolated(shares, most))
    pool.known.reused |= pool.reused()
    return pool.known


class _Pool:
    """Secrets that may be somebody's, tried against all that their owner has published."""

    def __init__(self, board: SumBoard) -> None:
        self.known = KnownSecrets()
        self._board = board
        self._opened: dict[tuple[int, bytes], set[tuple[bytes, int]]] = {}

    def offer(self, member: int, secret: bytes) -> bool:
        """Take a secret for all places of its member that it opens; False: it opens none."""
        for setup in self._board.setups_of(member):
            keys = self._board.keys_in(setup)[member]
            for number in range(len(keys.masks) // KEY):
                if public_of(secret) == _cut(keys.masks, number, KEY):
                    self._opens(self.known.masks, (setup, number, member), secret)
                if commitment(secret, keys.box, number) == _cut(keys.seeds, number, COMMITMENT):
                    self._opens(self.known.seeds, (setup, number, member), secret)
        return (member, secret) in self._opened

    def _opens(self, kind: dict[Place, bytes], place: Place, secret: bytes) -> None:
        kind[place] = secret
        self._opened.setdefault((place[2], secret), set()).add(place[:2])

    def reused(self) -> set[int]:
        """Of whom one secret opens more than one sum. Keys may be named in more than one opening; their owner takes
        part in one.
        """
        found = set[int]()
        for (member, _), slots in self._opened.items():
            if sum(member in self._board.held[setup] for setup, _ in slots) > 1:
                found.add(member)
        return found


def _shares(
    coalition: Collection[int], board: SumBoard, drawn: Mapping[int, list[bytes]]
) -> dict[tuple[bytes, int, int, str], dict[int, int]]:
    """All shares that were dealt to the coalition or told, by set-up, number, member and kind, by holder.

    Of a share that was told the kind is not: it is tried with those of both.
    """
    found: dict[tuple[bytes, int, int, str], dict[int, int]] = {}
    for setup, dealer, holder, plain in _opened_parcels(coalition, board, drawn):
        for number in range(len(plain) // (2 * KEY)):
            for kind, at in ((SEED, 2 * number * KEY), (MASK, (2 * number + 1) * KEY)):
                share = int.from_bytes(plain[at : at + KEY], "little")
                found.setdefault((setup, number, dealer, kind), {})[holder] = share
    for holder, reveal in board.reveals:
        for member, told in reveal.shares:
            for kind in (SEED, MASK):
                of = found.setdefault((reveal.setup, reveal.number, member, kind), {})
                of.setdefault(holder, int.from_bytes(told, "little"))
    return found


def _opened_parcels(
    coalition: Collection[int], board: SumBoard, drawn: Mapping[int, list[bytes]]
) -> Iterator[tuple[bytes, int, int, bytes]]:
    for dealer, parcel in board.parcels:
        keys = board.keys_in(parcel.setup)
        if parcel.to not in coalition or dealer not in keys or parcel.to not in keys:
            continue
        for secret in drawn[parcel.to]:
            if public_of(secret) == keys[parcel.to].box:
                plain = _unsealed(parcel, dealer, secret, keys[dealer])
                if plain is not None:
                    yield parcel.setup, dealer, parcel.to, plain


def _unsealed(parcel: Parcel, dealer: int, secret: bytes, of: Keys) -> bytes | None:
    ends = dealer.to_bytes(4, "little") + parcel.to.to_bytes(4, "little")
    key = derived(b"sums parcel", agreed(secret, of.box), parcel.setup + ends)
    try:
        return crypto_aead_chacha20poly1305_ietf_decrypt(parcel.sealed, parcel.setup, bytes(12), key)
    except (CryptoError, ValueError):
        return None


def _interpolated(shares: Mapping[int, int], most: int) -> Iterator[bytes]:
    """What sets of so many of the shares give, at zero; the holders' points are their indices and one."""
    for holders in islice(combinations(sorted(shares), min(most, len(shares))), MOST_TRIES):
        total = 0
        for holder in holders:
            above = below = 1
            for other in holders:
                if other != holder:
                    above = above * (other + 1) % PRIME
                    below = below * (other - holder) % PRIME
            total += shares[holder] * above * pow(below, -1, PRIME)
        yield (total % PRIME).to_bytes(KEY, "little")


def _cut(text: bytes, number: int, size: int) -> bytes:
    return text[number * size : (number + 1) * size]
