"""top-k and random-k: which places they take, how often, and what hostile payloads come to."""

from __future__ import annotations

import math
import tracemalloc

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from p2pfl.compress import GAPS, LONG, largest, require_fit, words
from p2pfl.compress import make_compressor as build
from p2pfl.compress.sparse import PACKED
from p2pfl.errors import PeerFault, UserError

# The stride of the sample is 8 in the last one.
LENGTHS = (5, 300, 140_003)


def in_order(row):
    """The places of a row's values, the largest magnitude first."""
    return np.argsort(-np.abs(row.astype(np.float32)), kind="stable")


def floats(seed: int, size: int):
    return np.random.default_rng(seed).standard_normal(size).astype(np.float32)


def marked(size: int, every: int):
    """Which places are multiples of `every`."""
    return np.arange(size) % every == 0


ROWS = {
    "distinct": floats,
    "few magnitudes": lambda seed, size: np.round(floats(seed, size) * 2),
    "all equal": lambda _, size: np.full(size, -2.5, np.float32),
    "all zero": lambda _, size: np.zeros(size, np.float32),
    "ten not zero": lambda seed, size: np.where(marked(size, max(1, size // 10)), floats(seed, size), 0),
    "large where the sample looks": lambda seed, size: np.where(marked(size, 8), 9, floats(seed, size)),
    "small where the sample looks": lambda seed, size: np.where(marked(size, 8), 0, floats(seed, size)),
    "float64": lambda seed, size: np.random.default_rng(seed).standard_normal(size),
}


@pytest.mark.parametrize("kind", ROWS)
@pytest.mark.parametrize("size", LENGTHS)
def test_top_k_takes_the_largest_and_of_equal_ones_the_first(kind, size):
    rows = np.stack([ROWS[kind](seed, size) for seed in range(2)])
    orders = [in_order(row) for row in rows]
    for count in sorted({1, size // 100, size // 3, size - 1, size} - {0}):
        found = largest(rows, count)
        assert found.shape == (2, count)
        assert all(np.array_equal(places, np.sort(order[:count])) for places, order in zip(found, orders, strict=True))


@given(hnp.arrays("<f4", st.integers(1, 40), elements=st.sampled_from([0, -0.0, 1, -1, 2.5, -2.5, 1e-45])), st.data())
def test_top_k_of_a_few_values_is_what_sorting_gives(row, data):
    count = data.draw(st.integers(1, row.size))
    assert np.array_equal(largest(row[None], count)[0], np.sort(in_order(row)[:count]))


@pytest.mark.parametrize("spec", ["top-k:0.1", "random-k:0.1"])
def test_what_is_kept_is_exact_and_the_rest_is_zero(spec):
    row = floats(1, 1000)
    decoded = build(spec).decode(build(spec).encode(row, chance=5), 1000)
    assert np.count_nonzero(decoded) == 100
    assert (decoded[decoded != 0] == row[decoded != 0]).all()


@pytest.mark.parametrize(
    ("spec", "size", "kept"),
    [
        ("top-k:0.05", 0, 0),
        ("top-k:0.05", 1, 1),
        ("top-k:0.001", 100, 1),
        ("top-k:0.05", 2410, 121),
        ("top-k:0.1", 30, 3),
        ("top-k:1.0", 30, 30),
        ("random-k:7", 30, 7),
        ("random-k:7", 3, 3),
        ("random-k:0.5", 5, 3),
    ],
)
def test_a_fraction_is_rounded_and_at_least_one_value_is_kept(spec, size, kept):
    assert build(spec).kept(size) == kept


def test_a_count_above_the_number_of_values_is_the_users_mistake():
    require_fit(build("top-k:300"), 300)
    require_fit(build("random-k:1.0+q4+zstd"), 1)
    for spec in ("top-k:301", "random-k:301+q8", "top-k:301+q8+zstd"):
        with pytest.raises(UserError) as caught:
            require_fit(build(spec), 300)
        assert str(caught.value) == (
            f"gossip.compressor: 301 values to keep, of 300 that are shared (found {spec!r}); "
            "allowed: a count from 1 to 300, or a fraction in (0, 1]"
        )


# --- random-k ------------------------------------------------------------------------------------------------------


def places_of(spec: str, size: int, chances) -> np.ndarray:
    """Which of `size` values are taken, shape (chances, size)."""
    return build(spec).quantize_rows(np.ones((len(chances), size), np.float32), chances=chances) != 0


@pytest.mark.parametrize("size", [12, 13])
def test_random_k_takes_each_value_as_often_as_its_delta_says(size):
    """4 of 12, and 4 of 13: there the first three strata have 3 values and the last 4. Over 20,000 fixed chances."""
    share = places_of("random-k:4", size, range(20_000)).mean(axis=0)
    wanted = 1 / np.repeat(np.diff(np.arange(5) * size // 4), np.diff(np.arange(5) * size // 4))
    assert np.abs(share - wanted).max() < 5 * (0.25 / 20_000) ** 0.5
    assert build("random-k:4").delta(size) == pytest.approx(wanted.min(), abs=1e-9)
    assert build("random-k:4").delta(size) <= wanted.min()


@pytest.mark.parametrize(("kept", "size"), [(3, 10), (40_000, 100_001)])
def test_the_places_of_random_k_follow_from_the_seed_by_the_rule_of_the_format(kept, size):
    taken = np.flatnonzero(places_of(f"random-k:{kept}", size, [2**64 - 2])[0])
    drawn = [int(word) >> 32 for word in words([2**64 - 2], 0, kept)[0]]
    edges = [stratum * size // kept for stratum in range(kept + 1)]
    assert taken.tolist() == [
        first + (one * (last - first) >> 32) for one, first, last in zip(drawn, edges, edges[1:], strict=False)
    ]


def test_what_the_inner_compressor_draws_has_nothing_to_do_with_the_places():
    """Each value is half a step, rounded up in half of all cases, wherever in its stratum another one was taken."""
    rows = np.full((8000, 10), 1 + 2.0**-8, np.float32)
    taken = places_of("random-k:5", 10, range(8000))
    up = build("random-k:5+bf16").quantize_rows(rows, chances=range(8000)) > 1
    for first in range(4):
        at_first = taken[:, 2 * first]
        for other in range(4):
            share = up[:, 2 * other : 2 * other + 2].any(axis=1)[at_first].mean()
            assert abs(share - 0.5) < 5 * 0.5 / 4000**0.5


def test_any_seed_is_a_valid_one():
    compressor = build("random-k:5")
    good = compressor.encode(floats(1, 100), chance=0)
    assert np.count_nonzero(compressor.decode(b"\xff" * 8 + good[8:], 100)) == 5


# --- deltas, gammas and hostile payloads ---------------------------------------------------------------------------


def test_delta_is_the_share_kept_times_that_of_the_values_kept():
    q4 = build("q4").delta(10)
    assert build("top-k:10+q4").delta(100) == pytest.approx(0.1 * q4, rel=1e-6)
    assert build("random-k:10+q4").delta(100) == pytest.approx(0.1 * q4, rel=1e-6)
    assert build("top-k:10+q4+zstd").delta(100) == build("top-k:10+q4").delta(100)


def test_a_model_of_which_most_stands_still_takes_no_more_memory_than_another():
    vector = np.zeros(4 * LONG, np.float32)
    vector[::50] = 1e-3
    codec = build("top-k:0.1+q8")
    codec.encode(vector)
    tracemalloc.start()
    codec.encode(vector)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 3 * vector.nbytes


def test_a_float64_that_only_looks_as_large_costs_no_more_than_delta_allows():
    row = np.array([1.0 - 2.0**-26, 1.0])
    compressor = build("top-k:1")
    lost = np.square(row - compressor.decode(compressor.encode(row), 2)).sum()
    assert lost <= (1 - compressor.delta(2)) * np.square(row).sum()


@pytest.mark.parametrize(
    ("spec", "gamma"), [("top-k:10", 0.5), ("top-k:30", 1), ("random-k:10", 0.1), ("top-k:0.02+q8+zstd", 0.1)]
)
def test_gamma_is_five_times_the_density_or_the_density(spec, gamma):
    assert build(spec).gamma(100) == pytest.approx(gamma)


@pytest.mark.parametrize("spec", ["top-k:24", "top-k:24+q8"])
def test_places_that_no_encoder_sends_are_a_peer_fault(spec):
    compressor, rows = build(spec), np.stack([floats(seed, 2410) for seed in range(4)])
    payloads = compressor.encode_rows(rows)
    payloads[2, : compressor.places_bytes(2410)] = 255
    with pytest.raises(PeerFault, match="indices"):
        compressor.decode_rows(payloads, 2410)
    with pytest.raises(PeerFault, match="indices"):
        compressor.decode(payloads[2].tobytes(), 2410)


@pytest.mark.parametrize("spec", ["top-k:24", "random-k:24", "top-k:24+q8", "random-k:24+float16"])
def test_values_that_the_inner_compressor_refuses_are_a_peer_fault(spec):
    compressor = build(spec)
    payload = bytearray(compressor.encode(floats(1, 2410)))
    start = compressor.places_bytes(2410)
    payload[start : start + 4] = b"\xff\xff\xff\xff"
    with pytest.raises(PeerFault):
        compressor.decode(bytes(payload), 2410)


# -- Indices in bytes: sizes, round trips, and that no bytes give indices which no encoder writes.

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
