"""What is particular to `rotate`."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from p2pfl.compress import Float32, Rotation, bits, seeds_of, words
from p2pfl.compress import make_compressor as build
from p2pfl.errors import PeerFault

EXACT = Rotation(Float32())
FLOAT32 = np.finfo(np.float32)


def energy(vector) -> float:
    return float(np.square(vector, dtype=np.float64).sum())


def kept(compressor, vector, chances=range(20)) -> float:
    """Delta over some chances."""
    rows = np.broadcast_to(vector.astype(np.float32), (len(chances), vector.size))
    return 1 - energy(rows - compressor.quantize_rows(rows, chances=chances)) / energy(rows)


# --- the definition, one value at a time ---------------------------------------------------------------------------


def plain_windows(size):
    """Start and length of each."""
    length = min(4096, 1 << (size.bit_length() - 1))
    windows = [(start, length) for start in range(0, size - length + 1, length)]
    if rest := size % length:
        last = next(each for each in (1 << power for power in range(13)) if each >= rest and each >= min(256, length))
        windows.append((size - last, last))
    return windows


def plain_columns(matrix):
    apart = len(matrix) // 2
    while apart:
        for row in range(len(matrix)):
            if not row & apart:
                upper, lower = matrix[row], matrix[row + apart]
                matrix[row] = [np.float32(a + b) for a, b in zip(upper, lower, strict=True)]
                matrix[row + apart] = [np.float32(a - b) for a, b in zip(upper, lower, strict=True)]
        apart //= 2
    return matrix


def plain_transform(window, height):
    """Columns of `height` rows, transposed, columns again."""
    width = len(window) // height
    matrix = plain_columns([list(window[row * width : (row + 1) * width]) for row in range(height)])
    turned = plain_columns([list(column) for column in zip(*matrix, strict=True)])
    return [np.float32(value) * np.float32(len(window) ** -0.5) for row in turned for value in row]


def plain_flips(seed, count):
    drawn = words([seed], 0, count // 64 + 1)[0].tolist()
    return [drawn[i // 64] >> i % 64 & 1 for i in range(count)]


def plain_rotation(vector, seed, *, back):
    values, windows, first = list(vector), [], 0
    for start, length in plain_windows(len(vector)):
        windows.append((start, length, first))
        first += length
    flips = plain_flips(seed, first)
    for start, length, bit in reversed(windows) if back else windows:
        window, flip = values[start : start + length], flips[bit : bit + length]
        height = 1 << (length.bit_length() // 2)
        if back:
            window = plain_transform(window, length // height)
            window = [-v if f else v for v, f in zip(window, flip, strict=True)]
        else:
            window = plain_transform([-v if f else v for v, f in zip(window, flip, strict=True)], height)
        values[start : start + length] = window
    return np.array(values, np.float32)


@pytest.mark.parametrize("size", [1, 2, 3, 4, 7, 8, 31, 32, 33, 100, 128, 300, 513, 700])
def test_payload_and_decoded_bits_are_what_the_definition_says(size):
    vector = np.random.default_rng(size).standard_normal(size).astype(np.float32)
    payload = EXACT.encode(vector, chance=size)
    seed = int.from_bytes(payload[:8], "little")
    assert seed == int(words([size], 0, 1)[0, 0])
    rotated = np.frombuffer(payload[8:], "<f4")
    assert rotated.tobytes() == plain_rotation(vector, seed, back=False).tobytes()
    assert EXACT.decode(payload, size).tobytes() == plain_rotation(rotated, seed, back=True).tobytes()


# --- what it is for ------------------------------------------------------------------------------------------------


@given(
    size=st.integers(1, 700),
    seed=st.integers(0, 2**64 - 1),
    scale=st.floats(1e-20, 1e20),
)
def test_lengths_are_kept_and_every_vector_comes_back(size, seed, scale):
    vector = np.random.default_rng(seed).standard_t(2, size) * scale
    payload = EXACT.encode(vector, chance=seed)
    assert energy(np.frombuffer(payload[8:], "<f4")) == pytest.approx(energy(vector), rel=1e-5)
    assert np.sqrt(energy(EXACT.decode(payload, size) - vector)) < 2e-6 * np.sqrt(energy(vector))


ADVERSARIAL = {
    "one value": lambda size: np.eye(1, size, size // 2)[0],
    "the last value": lambda size: np.eye(1, size, size - 1)[0],
    "one value of each block": lambda size: (np.arange(size) % 256 == 3).astype(float),
    "heavy tails": lambda size: np.random.default_rng(1).standard_cauchy(size),
}


@pytest.mark.parametrize(("spec", "least"), [("sign", 0.60), ("q2", 0.86), ("q4", 0.984), ("q8", 0.9999)])
@pytest.mark.parametrize("kind", ADVERSARIAL)
@pytest.mark.parametrize("size", [1024, 2410, 4096, 5000])
def test_no_vector_is_much_worse_than_a_gaussian_one(spec, least, kind, size):
    assert kept(build(f"rotate+{spec}"), ADVERSARIAL[kind](size)) > least


def test_the_guarantee_is_that_of_the_inner_codec_less_rounding():
    for spec in ("sign", "q2", "q4", "q8"):
        for size in (0, 1, 300, 5000):
            rotated = build(f"rotate+{spec}")
            inner = rotated.inner
            assert inner.delta(size) - 1e-4 < rotated.delta(size) < inner.delta(size)
            assert rotated.gamma(size) == inner.gamma(size)
            assert rotated.size_bytes(size) == inner.size_bytes(size) + 8


# --- the ends of the range -----------------------------------------------------------------------------------------


@given(
    spec=st.sampled_from(("rotate+sign", "rotate+q2", "rotate+q4", "rotate+q8")),
    vector=hnp.arrays("<f4", st.integers(1, 300), elements=st.floats(width=32, allow_nan=False, allow_infinity=False)),
    chance=st.integers(0, 2**64 - 1),
)
def test_every_finite_vector_decodes_to_a_vector_that_is_no_further_than_zero(spec, vector, chance):
    decoded = build(spec).decode(build(spec).encode(vector, chance=chance), vector.size)
    assert np.isfinite(decoded).all()
    assert energy(np.float64(vector) - decoded) <= energy(vector) * (1 + 1e-9) + 1e-70


@pytest.mark.parametrize("size", [1, 300, 4096, 9000])
def test_vectors_beyond_the_range_keep_their_direction(size):
    rows = np.random.default_rng(3).standard_normal((3, size)).astype(np.float32)
    rows[1] *= FLOAT32.max / np.abs(rows[1]).max()
    decoded = build("rotate+q8").quantize_rows(rows, chances=[1, 2, 3]).astype(np.float64)
    cosine = [
        one @ row / np.sqrt(energy(one) * energy(row)) for one, row in zip(decoded, rows.astype(float), strict=True)
    ]
    assert min(cosine) > 0.999
    assert np.abs(decoded[[0, 2]] - rows[[0, 2]]).max() < 0.2


@pytest.mark.parametrize("size", [2, 300, 5000])
def test_a_payload_whose_sums_overflow_is_a_peer_fault(size):
    inner = np.full(-(-size // 256), FLOAT32.max / 127.5, "<f4").tobytes() + bytes([127]) * size
    with pytest.raises(PeerFault, match="not finite"):
        build("rotate+q8").decode(bytes(8) + inner, size)


# -- Chance that both ends compute.


def test_words_are_those_of_the_reference_implementation_of_splitmix64():
    """Seed 1234567 as in https://rosettacode.org/wiki/Pseudo-random_numbers/Splitmix64; seed 0 as in java.util."""
    assert words([1234567], 0, 3).tolist() == [[6457827717110365317, 3203168211198807973, 9817491932198370423]]
    assert words([0], 0, 3).tolist() == [[0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4, 0x06C45D188009454F]]


def test_a_word_depends_on_its_seed_and_place_alone():
    seeds = [0, 7, 2**64 - 1]
    every = words(seeds, 0, 50)
    for row, seed in enumerate(seeds):
        assert words([seed], 13, 20).tolist() == [every[row, 13:33].tolist()]


@pytest.mark.parametrize(("first", "count"), [(0, 0), (0, 1), (0, 64), (1, 63), (1, 64), (63, 2), (130, 200)])
def test_bits_are_those_of_the_words_from_the_lowest_on(first, count):
    drawn = words([3, 2**63], 0, 8).tolist()
    wanted = [[row[i // 64] >> i % 64 & 1 for i in range(first, first + count)] for row in drawn]
    assert bits(np.array([3, 2**63], np.uint64), first, count).tolist() == wanted


@pytest.mark.parametrize("chances", [None, [], [1], [1, 2, 3]])
def test_every_row_wants_a_chance(chances):
    with pytest.raises(ValueError, match="a chance for each of 2 rows"):
        seeds_of(chances, 2)
