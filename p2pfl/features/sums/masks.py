"""The masks of one sum: a stream of each member's own, and one for each pair of partners, which cancels in the sum.

    y_j = x_j + PRG(b_j) + sum over partners q of sign(j, q) PRG(s_jq)   (mod 2^64)

is equation (2) of Bonawitz et al. 2017 (doi 10.1145/3133956.3133982), with a sparse graph of partners as in Bell et al.
2020 (eprint 2020/704). The arithmetic is parted from the stream, and has its modulus as an argument, so that a test can
put all values of the stream in its place.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import TypeAlias

import numpy as np
from nacl.bindings import (
    crypto_aead_chacha20poly1305_ietf_ABYTES,
    crypto_aead_chacha20poly1305_ietf_encrypt,
    crypto_aead_chacha20poly1305_ietf_NPUBBYTES,
    crypto_scalarmult,
    crypto_scalarmult_base,
)
from numpy.typing import NDArray

Words: TypeAlias = NDArray[np.uint64]
"""A vector of whole numbers modulo 2^64; (d,) `<u8`."""
KEY_BYTES = 32
COMMITMENT_BYTES = 16
WORD_BYTES = 8
MODULUS = 2**64
NONCE = bytes(crypto_aead_chacha20poly1305_ietf_NPUBBYTES)


def stream(seed: bytes, size: int) -> Words:
    """(size,) words of ChaCha20's key stream under a 32-byte seed, which serves this one vector only."""
    sealed = crypto_aead_chacha20poly1305_ietf_encrypt(bytes(size * WORD_BYTES), None, NONCE, seed)
    return np.frombuffer(sealed[:-crypto_aead_chacha20poly1305_ietf_ABYTES], "<u8")


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
