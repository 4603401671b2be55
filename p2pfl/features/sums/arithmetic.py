"""The arithmetic of sums: whole numbers as words modulo 2^64, masks that hide them, shares of secrets, and partners.

    y_j = x_j + PRG(b_j) + sum over partners q of sign(j, q) PRG(s_jq)   (mod 2^64)

is equation (2) of Bonawitz et al. 2017 (doi 10.1145/3133956.3133982), with a sparse graph of partners as in Bell et al.
2020 (eprint 2020/704). The addition of masks takes its stream and modulus as arguments: a test puts in all values.

Secrets are cut in shares as in Shamir, "How to share a secret", 1979 (doi 10.1145/359168.359176), over the prime field
of 2^255 - 19: a secret is then a private key of X25519. libsodium and PyNaCl share no secrets.

A member masks with its partners, who hold its shares too: the `degree / 2` next on both sides of a circle, over an
order that nobody can choose freely. That is Harary's graph: no `degree - 1` members cut it. Bell et al. draw the graph
at random and bound the chance of a bad one; here all see who is left before they sign, and `withstands` is exact for
whichever members collude. So the order, which fresh keys decide, matters for the deaths that a sum survives only.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, islice
from math import ceil, log2
from typing import TypeAlias

import numpy as np
from nacl._sodium import ffi, lib  # type: ignore[import-not-found] # compiled
from nacl.bindings import (
    crypto_aead_chacha20poly1305_ietf_ABYTES,
    crypto_aead_chacha20poly1305_ietf_NPUBBYTES,
    crypto_scalarmult,
    crypto_scalarmult_base,
)
from numpy.typing import NDArray

from p2pfl.errors import PeerFault
from p2pfl.learn.averaging import check_of
from p2pfl.limits import MOST_SHARE_TRIES

Words: TypeAlias = NDArray[np.uint64]
"""A vector of whole numbers modulo 2^64; (d,) `<u8`."""
KEY_BYTES = 32
COMMITMENT_BYTES = 16
WORD_BYTES = 8
MODULUS = 2**64
TAG_BYTES: int = crypto_aead_chacha20poly1305_ietf_ABYTES
NONCE = bytes(crypto_aead_chacha20poly1305_ietf_NPUBBYTES)


def stream(seed: bytes, size: int) -> Words:
    """(size,) words of ChaCha20's key stream under a 32-byte seed, which serves this one vector only."""
    if len(seed) != KEY_BYTES:
        raise ValueError("a seed has 32 bytes")
    # In place: PyNaCl's own function holds three times as much.
    words = np.zeros(size + TAG_BYTES // WORD_BYTES, "<u8")
    there = ffi.from_buffer("unsigned char[]", words)
    nothing = (ffi.NULL, 0, ffi.NULL)
    lib.crypto_aead_chacha20poly1305_ietf_encrypt(there, ffi.NULL, there, size * WORD_BYTES, *nothing, NONCE, seed)
    return words[:size]


def public_of(secret: bytes) -> bytes:
    return crypto_scalarmult_base(secret)


def shared(secret: bytes, public: bytes) -> bytes:
    """The X25519 secret of two keys. A point of low order, which no honest member has, gives zeros at both ends."""
    try:
        return crypto_scalarmult(secret, public)
    except RuntimeError:
        return bytes(KEY_BYTES)


def own_seed(secret: bytes, setup: bytes, number: int) -> bytes:
    return _derived("own", secret, setup, number.to_bytes(4, "little"))


def pair_seed(agreed: bytes, setup: bytes, number: int, pair: tuple[int, int]) -> bytes:
    """`pair` in ascending order; the seed is the same at both ends, and another for each set-up and sum."""
    ends = b"".join(index.to_bytes(4, "little") for index in pair)
    return _derived("pair", agreed, setup, number.to_bytes(4, "little") + ends)


def commitment(secret: bytes, setup_key: bytes, number: int) -> bytes:
    """16 bytes by which a revealed seed is known to be the one that its owner drew."""
    hashed = hashlib.blake2b(
        setup_key + number.to_bytes(4, "little"), digest_size=16, key=secret, person=b"sums commit"
    )
    return hashed.digest()


def sign(index: int, partner: int) -> int:
    """The lower of two partners adds the mask that the higher subtracts."""
    return 1 if index < partner else -1


def combined(values: Words, masks: Iterable[tuple[int, Words]], modulus: int = MODULUS) -> Words:
    """`values` and all signed masks added, modulo a power of two; (d,)."""
    total = values.copy()
    for signed, mask in masks:
        if signed > 0:
            total += mask
        else:
            total -= mask
    return total if modulus == MODULUS else total % np.uint64(modulus)


def _derived(use: str, key: bytes, setup: bytes, rest: bytes) -> bytes:
    return hashlib.blake2b(setup + rest, digest_size=KEY_BYTES, key=key, person=f"sums {use}".encode()).digest()


MOST_SUM = 2**63


class SpoiledSum(PeerFault):
    """A sum that no values within the bounds can have: some member's masked vector was wrong."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WholeNumbers:
    """Arrays of numbers of at least `low`, by name, packed side by side in words of 64 bits, and a check word behind.

    `most` has for each entry the largest that the sum over all members can be, counted from `low`: so many bits are its
    own, and none where it is 0. In each word the highest bits are left free for what the low end of an entry that goes
    on in the next word carries; so sums modulo 2^64 are the sums of all entries. Raises ValueError: the sum of all
    cannot fit.
    """

    members: int
    most: Mapping[str, NDArray[np.int64]]
    low: int = 0
    high: int = MOST_SUM
    """The largest number of one member."""

    @property
    def _most(self) -> Words:
        flat = [np.ravel(self.most[name]) for name in sorted(self.most)]
        return np.concatenate([np.zeros(0, np.int64), *flat]).astype(np.uint64)

    def _chunks(self) -> Iterator[tuple[NDArray[np.int64], ...]]:
        """Yield the entries that have bits left, the word and the place in it of the next ones, how many come before,
        how many these are, and how many are left then.
        """
        widths = np.frexp(self._most.astype(np.float64))[1].astype(np.int64)
        room = 64 - (self.members - 1).bit_length()
        words, places = np.divmod(np.cumsum(widths) - widths, room)
        entries, before = np.flatnonzero(widths), np.zeros_like(widths)
        while entries.size:
            here = np.minimum(widths - before, room - places)[entries]
            yield entries, words[entries], places[entries], before[entries], here, (widths - before)[entries] - here
            before[entries] += here
            words, places = words + 1, np.zeros_like(places)
            entries = entries[before[entries] < widths[entries]]

    @property
    def size(self) -> int:
        """The words."""
        return 1 + max((int(words[-1]) + 1 for _, words, *_ in self._chunks()), default=0)

    def encode(self, arrays: Mapping[str, NDArray[np.int64]]) -> Words:
        """All entries by name, as one vector. Raises ValueError: one is out of bounds."""
        flat = [np.ravel(arrays[name]) for name in sorted(arrays)]
        values = np.concatenate([np.zeros(0, np.int64), *flat]) - self.low
        if (values < 0).any() or (values > self.high - self.low).any() or (values.astype(np.uint64) > self._most).any():
            raise ValueError(f"an entry below {self.low}, above {self.high}, or above what the sum of all can be")
        found = np.zeros(self.size, "<u8")
        for entries, words, places, before, here, _ in self._chunks():
            chunk = values[entries].astype(np.uint64) >> before.astype(np.uint64) & _ones(here)
            np.add.at(found, words, chunk << places.astype(np.uint64))
        found[-1] = check_of(found[:-1])
        return found

    def decode(self, total: Words, count: int) -> dict[str, NDArray[np.int64]]:
        """The sums over `count` members. Raises SpoiledSum: no values within the bounds have this sum."""
        most = self._most
        values = np.zeros(most.size, np.uint64)
        for entries, words, places, before, here, left in self._chunks():
            # What goes on in the next word has all bits to the end of this one: its own, and what they carry.
            chunk = total[words] >> places.astype(np.uint64) & np.where(left > 0, ~np.uint64(0), _ones(here))
            values[entries] += chunk << before.astype(np.uint64)
        if check_of(total[:-1].astype(np.uint64)) != total[-1] or (values > most).any():
            raise SpoiledSum("a sum that no values within the bounds have: some masked vector was wrong")
        sums, start = {}, 0
        for name, array in sorted(self.most.items()):
            sums[name] = (values[start : start + array.size].astype(np.int64) + count * self.low).reshape(array.shape)
            start += array.size
        return sums

    def terms(self, label: str) -> bytes:
        """32 bytes that differ where names, shapes, bounds or label do: members compare them first."""
        shapes = sorted((name, array.shape) for name, array in self.most.items())
        text = repr((label, shapes, self.low, self.members)).encode() + self._most.astype("<u8").tobytes()
        return hashlib.blake2b(text, digest_size=32, person=b"p2pfl-sums-packs").digest()


def _ones(bits: NDArray[np.int64]) -> Words:
    return ~np.uint64(0) >> (64 - bits).astype(np.uint64)


def numbers_of(arrays: Mapping[str, NDArray[np.int64]], low: int, high: int, members: int) -> WholeNumbers:
    """Return how arrays of such shapes, with numbers from `low` to `high`, become vectors. Raises ValueError."""
    if members * (high - low + 1) >= MOST_SUM:
        raise ValueError(f"{members} members times ({high} - {low}) reaches 2^63")
    most = {name: np.full(array.shape, members * (high - low)) for name, array in arrays.items()}
    return WholeNumbers(low=low, high=high, members=members, most=most)


PRIME = 2**255 - 19


def deal(secret: int, coefficients: Sequence[int], points: Sequence[int], prime: int = PRIME) -> list[int]:
    """The shares at these points, which are not 0. The threshold is one more than there are uniform coefficients."""
    shares = []
    for point in points:
        value = 0
        for coefficient in (*reversed(coefficients), secret):
            value = (value * point + coefficient) % prime
        shares.append(value)
    return shares


def rebuild(shares: Mapping[int, int], prime: int = PRIME) -> int:
    """The secret, from exactly as many shares as the threshold asks for, by point (Lagrange, at 0)."""
    secret = 0
    for point, share in sorted(shares.items()):
        above, below = 1, 1
        for other in shares:
            if other != point:
                above = above * other % prime
                below = below * (other - point) % prime
        secret += share * above * pow(below, -1, prime)
    return secret % prime


def rebuild_checked(
    shares: Mapping[int, int], threshold: int, is_right: Callable[[int], bool], prime: int = PRIME
) -> int | None:
    """The secret that `is_right`, though holders may have lied about shares; None: no set of shares gives it."""
    for points in islice(combinations(sorted(shares), threshold), MOST_SHARE_TRIES):
        secret = rebuild({point: shares[point] for point in points}, prime)
        if is_right(secret):
            return secret
    return None


def order(members: Sequence[int], setup: bytes) -> tuple[int, ...]:
    """The members in the circle's order, the same for all who know the set-up's id."""

    def place(member: int) -> bytes:
        return hashlib.blake2b(setup + member.to_bytes(4, "little"), digest_size=16, person=b"sums order").digest()

    return tuple(sorted(members, key=place))


def degree(members: int, colluders: int) -> int:
    """Partners of each one: 2 t + 2, two more for each doubling of the members, as some may die; at most all others."""
    return min(2 * colluders + 2 + 2 * ceil(log2(max(members, 2))), members - 1)


def partners(circle: Sequence[int], reach: int) -> dict[int, tuple[int, ...]]:
    """Each member's partners in ascending order, `reach` of them: an even number, or all others."""
    if reach >= len(circle) - 1:
        return {member: tuple(sorted(set(circle) - {member})) for member in circle}
    count, half = len(circle), reach // 2
    return {
        member: tuple(sorted(circle[(place + step) % count] for step in range(-half, half + 1) if step))
        for place, member in enumerate(circle)
    }


def withstands(circle: Sequence[int], reach: int, left: Collection[int], colluders: int) -> bool:
    """True if the partners among `left` stay connected whichever `colluders` of them are taken out.

    Then the masks among the others hide everything but their sum. A circle falls apart where two gaps as wide as half
    the reach part it; so the cheapest two gaps with somebody left on both sides are looked for.
    """
    if reach >= len(circle) - 1:
        return True
    half, count = reach // 2, len(circle)
    kept = [member in left for member in circle]
    cost = [sum(kept[(start + step) % count] for step in range(half)) for start in range(count)]
    before = [0]
    for each in kept + kept:
        before.append(before[-1] + each)
    cheap = [start for start in range(count) if cost[start] <= colluders]
    for first, other in combinations(cheap, 2):
        if cost[first] + cost[other] > colluders or other - first < half or first + count - other < half:
            continue
        inside = before[other] - before[first + half]
        outside = before[first + count] - before[other + half]
        if inside and outside:
            return False
    return True
