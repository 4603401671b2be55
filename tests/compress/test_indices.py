"""Indices in bytes: sizes, round trips, and that no bytes give indices which no encoder writes."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from p2pfl.compress.sparse import GAPS, PACKED
from p2pfl.errors import PeerFault

CODES = pytest.mark.parametrize("code", [PACKED, GAPS], ids=["packed", "gaps"])


def drawn(rows: int, count: int, size: int, seed: int = 0):
    rng = np.random.default_rng(seed)
    return np.array([np.sort(rng.choice(size, count, replace=False)) for _ in range(rows)]).reshape(rows, count)


def written(code, indices, size: int):
    out = np.full((len(indices), code.size_bytes(indices.shape[1], size)), 255, np.uint8)
    code.write(indices, size, out)
    return out


def bits_needed(count: int, size: int) -> float:
    """log2 of the number of ways to choose."""
    return (math.lgamma(size + 1) - math.lgamma(count + 1) - math.lgamma(size - count + 1)) / math.log(2)


@CODES
@given(st.integers(0, 400).flatmap(lambda size: st.tuples(st.just(size), st.integers(0, size))), st.integers(0, 9))
def test_what_was_written_is_read(code, shape, seed):
    size, count = shape
    indices = drawn(3, count, size, seed)
    assert np.array_equal(code.read(written(code, indices, size), count, size), indices)


@CODES
@pytest.mark.parametrize(("count", "size"), [(1, 10**7), (1500, 10**7), (1023, 8000), (1024, 8000), (3000, 12_001)])
def test_first_and_last_places_are_written_and_read(code, count, size):
    for indices in (np.arange(count), np.arange(size - count, size), drawn(1, count, size)[0]):
        assert np.array_equal(code.read(written(code, indices[None], size), count, size)[0], indices)


@given(st.integers(1, 10**8), st.floats(0, 0.25))
@example(41_296, 1 / 16)
def test_packed_indices_take_little_more_than_they_must(size, density):
    """Bits each: 0.604 where few are taken, 0.76 at a quarter. Besides, less than a byte, and Stirling's logarithm."""
    count = max(1, int(size * density))
    excess = 8 * PACKED.size_bytes(count, size) - bits_needed(count, size)
    assert excess <= (0.604 if count <= size / 12 else 0.76) * count + 0.5 * math.log2(count) + 10


@pytest.mark.parametrize("size", [1, 7, 8, 9, 1000])
def test_indices_never_take_more_than_a_bit_for_each_place(size):
    assert all(PACKED.size_bytes(count, size) <= -(-size // 8) for count in range(size + 1))
    assert PACKED.size_bytes(size, size) == PACKED.size_bytes(0, size) == 0


@CODES
@given(
    shape=st.sampled_from([(5, 100), (30, 100), (99, 100), (1, 9), (24, 2410), (1500, 9000), (3, 3), (0, 50)]),
    data=st.data(),
)
def test_any_bytes_give_increasing_indices_or_a_peer_fault(code, shape, data):
    """Half of the cases are valid bytes, damaged in a few places."""
    count, size = shape
    stored = written(code, drawn(2, count, size), size)
    if stored.size and data.draw(st.booleans()):
        stored[:] = np.frombuffer(data.draw(st.binary(min_size=stored.size, max_size=stored.size)), np.uint8).reshape(
            stored.shape
        )
    for _ in range(data.draw(st.integers(0, 3)) if stored.size else 0):
        stored.reshape(-1)[data.draw(st.integers(0, stored.size - 1))] ^= data.draw(st.integers(1, 255))
    try:
        indices = code.read(stored, count, size)
    except PeerFault:
        return
    assert indices.shape == (2, count)
    assert (np.diff(indices, axis=1) > 0).all()
    assert not indices.size or (indices.min() >= 0 and indices.max() < size)
    assert written(code, indices, size).tobytes() == stored.tobytes(), "there is one way to write them"


HOSTILE = {
    "one index too few": (PACKED, 30, 100, lambda raw: raw.__setitem__(0, raw[0] & (raw[0] - 1))),
    "the filling is not zero": (PACKED, 30, 101, lambda raw: raw.__setitem__(-1, raw[-1] | 0x80)),
    "another filling is not zero": (PACKED, 5, 100, lambda raw: raw.__setitem__(-1, raw[-1] | 0x80)),
    "gaps that lead too far": (GAPS, 1500, 9000, lambda raw: raw.__setitem__(slice(0, 1500), 255)),
    "one gap that leads too far": (GAPS, 1500, 9000, lambda raw: raw.__setitem__(1500 + 7, 255)),
}


@pytest.mark.parametrize("name", HOSTILE)
@pytest.mark.parametrize("row", [0, 2])
def test_one_hostile_row_is_a_peer_fault(name, row):
    code, count, size, damage = HOSTILE[name]
    stored = written(code, drawn(3, count, size), size)
    damage(stored[row])
    with pytest.raises(PeerFault):
        code.read(stored, count, size)


@CODES
def test_an_index_too_few_in_one_row_does_not_make_up_for_one_too_many_in_another(code):
    stored = written(code, drawn(2, 30, 100), 100)
    bits = np.unpackbits(stored, axis=1, bitorder="little")
    bits[0, bits[0].argmin()], bits[1, bits[1].argmax()] = 1, 0
    with pytest.raises(PeerFault, match="does not hold 30"):
        code.read(np.packbits(bits, axis=1, bitorder="little"), 30, 100)


def test_packed_indices_that_do_not_increase_or_end_too_late_are_a_peer_fault():
    """Of 2 indices below 9, the low bits (2 each) come first, plane by plane: then 2 + 2 bits in unary."""
    good = written(PACKED, np.array([[4, 5]]), 9)
    assert good.tolist() == [[0b0110_0010]]
    assert PACKED.read(good, 2, 9).tolist() == [[4, 5]]
    for swapped in (0b0110_0000, 0b0110_0001):
        with pytest.raises(PeerFault, match="not increasing"):
            PACKED.read(np.array([[swapped]], np.uint8), 2, 9)
    with pytest.raises(PeerFault, match="not below 9"):
        PACKED.read(np.array([[0b1010_0010]], np.uint8), 2, 9)
