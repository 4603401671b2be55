"""The generators of `p2pfl.chance` for many (node, round) pairs at once: the same numbers, made cheaper.

Most of what a generator costs is numpy's SeedSequence, a hash of four words. Here it is computed for all pairs
together; the generators themselves are numpy's own. The hash is fixed: numpy promises that it never changes
(https://numpy.org/doc/stable/reference/random/compatibility.html), and the tests compare.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from typing import Any, cast

import numpy as np
from numpy.random.bit_generator import ISeedSequence
from numpy.typing import NDArray

Words = NDArray[np.uint32]
Integers = NDArray[np.integer[Any]]

_POOL = 4
_WORD = 0xFFFF_FFFF
_INIT_A, _MULT_A = 0x43B0D7E5, 0x931E8875
_INIT_B, _MULT_B = 0x8B51F9DD, 0x58F38DED
_MIX_L, _MIX_R = np.uint32(0xCA01F9DD), np.uint32(0x4973F715)
_SHIFT = np.uint32(16)


def generators(seed: int, purpose: str, *paths: Integers) -> Iterator[np.random.Generator]:
    """`generator(seed, purpose, *path)` for each path, one row of the columns `paths` (b,); entries below 2^32."""
    material = _Material()
    for words in _states(seed, purpose, paths):
        material.words = words
        yield np.random.Generator(np.random.PCG64(cast("Any", material)))  # any ISeedSequence will do


class _Material(ISeedSequence):
    """A seed sequence whose answer is already known."""

    words: NDArray[np.uint64]

    def generate_state(self, n_words: int, dtype: Any = np.uint32) -> NDArray[Any]:
        del n_words, dtype  # PCG64 asks for four words of 64 bits
        return self.words


def _states(seed: int, purpose: str, paths: tuple[Integers, ...]) -> NDArray[np.uint64]:
    """What each SeedSequence would give to PCG64, (b, 4)."""
    fixed = [*_words_of(seed), zlib.crc32(purpose.encode())]
    count = len(paths[0])
    entropy = [np.full(count, word, dtype=np.uint32) for word in fixed]
    entropy += [column.astype(np.uint32) for column in paths]
    pool = _mixed(entropy, count)
    factor = _INIT_B
    state = np.empty((count, 2 * _POOL), dtype=np.uint32)
    for place in range(2 * _POOL):
        value = pool[place % _POOL] ^ np.uint32(factor)
        factor = factor * _MULT_B & _WORD
        value *= np.uint32(factor)
        state[:, place] = value ^ (value >> _SHIFT)
    halves = state.astype(np.uint64)
    return np.ascontiguousarray(halves[:, 0::2] | (halves[:, 1::2] << np.uint64(32)))


def _mixed(entropy: list[Words], count: int) -> list[Words]:
    hashed = _Hash()
    pad = [np.zeros(count, dtype=np.uint32)] * (_POOL - len(entropy))
    pool = [hashed(words) for words in (entropy + pad)[:_POOL]]
    for source in range(_POOL):
        for target in range(_POOL):
            if source != target:
                pool[target] = _mix(pool[target], hashed(pool[source]))
    for words in entropy[_POOL:]:
        for target in range(_POOL):
            pool[target] = _mix(pool[target], hashed(words))
    return pool


class _Hash:
    """Each word is hashed with another constant."""

    def __init__(self) -> None:
        self._factor = _INIT_A

    def __call__(self, words: Words) -> Words:
        value = words ^ np.uint32(self._factor)
        self._factor = self._factor * _MULT_A & _WORD
        value *= np.uint32(self._factor)
        return value ^ (value >> _SHIFT)


def _mix(x: Words, y: Words) -> Words:
    value: Words = x * _MIX_L - y * _MIX_R
    return value ^ (value >> _SHIFT)


def _words_of(seed: int) -> list[int]:
    """A whole number in words of 32 bits, the lowest first."""
    words = [seed & _WORD]
    while seed := seed >> 32:
        words.append(seed & _WORD)
    return words
