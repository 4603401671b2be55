"""What is particular to `sign` and `q2`, whose codes are planes of bits, and to `q8` and `q4`."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from p2pfl.compress import make_compressor as build
from p2pfl.errors import PeerFault

FLOAT32 = np.finfo(np.float32)
PLANES = {"sign": 1, "q2": 2}


def payload_of(scale: float, codes: bytes) -> bytes:
    return np.array([scale], "<f4").tobytes() + codes


def blocks_of(vector):
    return [vector[first : first + 256] for first in range(0, vector.size, 256)]


def loss(vector, decoded) -> float:
    return float(np.square(np.float64(vector) - decoded).sum())


def drawn(size: int, seed: int, freedom: float, exponent: int):
    return (np.random.default_rng(seed).standard_t(freedom, size).clip(-1e6, 1e6) * 2.0**exponent).astype(np.float32)


def within_range():
    """A few values among equal ones, or many of light to heavy tails."""
    magnitude = st.floats(2.0**-60, 2.0**60, width=32)
    element = st.one_of(st.just(0.0), magnitude, magnitude.map(np.negative))
    some = hnp.arrays("<f4", st.integers(1, 600), elements=element, fill=element)
    many = st.builds(drawn, st.integers(1, 600), st.integers(0, 999), st.floats(1, 20), st.integers(-40, 40))
    return st.one_of(some, many)


@given(vector=within_range())
def test_the_scale_of_sign_is_the_mean_magnitude_and_a_bit_says_which_values_are_negative(vector):
    decoded = build("sign").decode(build("sign").encode(vector), vector.size)
    for block, found in zip(blocks_of(vector), blocks_of(decoded), strict=True):
        scale = np.abs(block, dtype=np.float64).mean()
        assert np.allclose(found, np.where(block < 0, -scale, scale), rtol=1e-5, atol=0)


@pytest.mark.parametrize("size", [1, 2, 100, 256, 1000])
def test_one_value_among_zeros_attains_the_delta_of_sign(size):
    vector = np.zeros(size, np.float32)
    vector[size // 2] = -3
    compressor = build("sign")
    attained = 1 - loss(vector, compressor.decode(compressor.encode(vector), size)) / 9
    block = min(256, size) if size <= 256 else 256
    assert compressor.delta(size) < attained == pytest.approx(1 / block, abs=1e-6)


@given(vector=within_range())
def test_q2_gives_every_value_the_nearest_of_four_levels(vector):
    payload = build("q2").encode(vector)
    decoded = build("q2").decode(payload, vector.size)
    scales = np.frombuffer(payload, "<f4", -(-vector.size // 256))
    for block, found, scale in zip(blocks_of(vector), blocks_of(decoded), scales, strict=True):
        levels = np.float32([-4, -1, 1, 4]) * scale
        nearest = np.abs(np.float64(block)[:, None] - levels).min(axis=1)
        assert np.isin(found, levels).all()
        assert np.allclose(np.abs(block - np.float64(found)), nearest, rtol=1e-6, atol=1e-6 * float(scale))


@given(vector=within_range())
def test_q2_loses_no_more_than_the_signs_alone(vector):
    """Hence its delta of 1/B."""
    q2, sign = (loss(vector, build(spec).decode(build(spec).encode(vector), vector.size)) for spec in ("q2", "sign"))
    assert q2 <= sign + 1e-5 * float((np.float64(vector) ** 2).sum())


def best_possible(block) -> float:
    """The least loss of levels -4, -1, 1, 4 with any bound between, by trying them all."""
    magnitudes = np.sort(np.abs(np.float64(block)))[::-1]
    high = np.arange(block.size)
    products = magnitudes.sum() + 3 * np.concatenate([[0], np.cumsum(magnitudes)[:-1]])
    return float((magnitudes**2).sum() - (products**2 / (block.size + 15 * high)).max())


@pytest.mark.parametrize("kind", ["normal", "laplace", "t"])
def test_the_scale_of_q2_is_close_to_the_best_there_is(kind):
    chance = np.random.default_rng(4)
    rows = {"normal": chance.normal, "laplace": chance.laplace, "t": lambda size: chance.standard_t(4, size)}[kind]
    rows = rows(size=(200, 256)).astype(np.float32)
    found = loss(rows, build("q2").quantize_rows(rows))
    assert sum(best_possible(row) for row in rows) <= found * (1 + 1e-6)
    assert found < 1.05 * sum(best_possible(row) for row in rows)


@pytest.mark.parametrize("spec", sorted(PLANES))
def test_a_value_takes_a_bit_of_each_plane_and_a_block_a_scale(spec):
    assert [build(spec).size_bytes(size) for size in (0, 1, 8, 9, 256, 257, 2410)] == [
        4 * scales + PLANES[spec] * plane
        for scales, plane in ((0, 0), (1, 1), (1, 1), (1, 2), (1, 32), (2, 33), (10, 302))
    ]


@pytest.mark.parametrize("spec", sorted(PLANES))
@pytest.mark.parametrize("size", [1, 3, 255, 256, 300])
def test_blocks_of_the_largest_floats_keep_their_direction(spec, size):
    vector = np.where(np.arange(size) % 3 == 1, FLOAT32.max, FLOAT32.min).astype(np.float32)
    decoded = build(spec).decode(build(spec).encode(vector), size)
    assert np.isfinite(decoded).all()
    assert np.abs(decoded / vector - 1).max() < 0.06


@pytest.mark.parametrize("spec", sorted(PLANES))
def test_what_shares_a_call_with_the_largest_floats_is_not_touched_by_them(spec):
    rows = np.random.default_rng(6).standard_normal((3, 600)).astype(np.float32)
    wanted = build(spec).encode_rows(rows)
    rows[1, 256:] = FLOAT32.max
    found = build(spec).encode_rows(rows)
    assert (found[[0, 2]] == wanted[[0, 2]]).all()
    assert (found[1, :4] == wanted[1, :4]).all()


CODES = {"sign": b"\x01", "q2": b"\x01\x01", "q8": b"\x01", "q4": b"\x89"}


@pytest.mark.parametrize("spec", CODES)
@pytest.mark.parametrize("scale", [np.nan, -np.nan, np.inf, -np.inf, -1.0, -0.0, 1e-40])
def test_a_scale_no_encoder_sends_is_a_peer_fault(spec, scale):
    with pytest.raises(PeerFault, match="scale"):
        build(spec).decode(payload_of(scale, CODES[spec]), 1)


@pytest.mark.parametrize(("spec", "scale"), [("q2", 8.6e37), ("q8", 6e37), ("q4", 6e37), ("q4", FLOAT32.max)])
def test_a_scale_whose_values_would_be_infinite_is_a_peer_fault(spec, scale):
    with pytest.raises(PeerFault, match="scale"):
        build(spec).decode(payload_of(scale, CODES[spec]), 1)


@pytest.mark.parametrize(
    ("spec", "codes", "size"),
    [
        ("sign", "02", 1),
        ("sign", "80", 7),
        ("sign", "ff02", 9),
        ("q2", "0200", 1),
        ("q2", "0002", 1),
        ("q2", "ff01ff80", 15),
    ],
)
def test_a_filling_that_is_not_zero_is_a_peer_fault(spec, codes, size):
    with pytest.raises(PeerFault, match="padding"):
        build(spec).decode(np.array([1], "<f4").tobytes() + bytes.fromhex(codes), size)


@pytest.mark.parametrize("size", [65_537, 131_080, 200_001])
def test_the_filling_of_a_large_vector_is_looked_at_as_well(size):
    payload = bytearray(build("q2").encode(np.ones(size, np.float32)))
    payload[-1] |= 0x80
    if size % 8:
        with pytest.raises(PeerFault, match="padding"):
            build("q2").decode(bytes(payload), size)
    else:
        assert build("q2").decode(bytes(payload), size)[-1] > 1


def plain_sign(row) -> bytes:
    """The definition, a block and a value at a time."""
    scales = [np.float32(np.abs(np.float64(block)).mean()) for block in blocks_of(row)]
    bits = 0
    for place, value in enumerate(row):
        bits |= int(value < 0) << place
    return np.array(scales, "<f4").tobytes() + bits.to_bytes((row.size + 7) // 8, "little")


@pytest.mark.parametrize("size", [1, 5, 8, 255, 256, 257, 2410])
def test_payloads_of_sign_are_what_the_definition_says(size):
    """Of small whole numbers, whose sums are exact in whatever order they are taken."""
    rows = np.random.default_rng(size).integers(-50, 51, (4, size)).astype(np.float32)
    assert [one.tobytes() for one in build("sign").encode_rows(rows)] == [plain_sign(row) for row in rows]


# -- What is particular to `q8` and `q4`.

LARGEST = {"q8": 127, "q4": 7}


@given(
    spec=st.sampled_from(sorted(LARGEST)),
    vector=hnp.arrays("<f4", st.integers(1, 600), elements=st.floats(-(2.0**100), 2.0**100, width=32)),
)
def test_no_value_is_further_than_half_a_step_of_its_own_block(spec, vector):
    compressor = build(spec)
    decoded = compressor.decode(compressor.encode(vector), vector.size)
    for first in range(0, vector.size, 256):
        block = vector[first : first + 256].astype(np.float64)
        half_step = np.abs(block).max() / (LARGEST[spec] + 0.5) / 2
        assert np.abs(block - decoded[first : first + 256]).max() <= half_step * (1 + 1e-4) + 1e-35


@pytest.mark.parametrize("spec", sorted(LARGEST))
def test_the_worst_block_attains_the_guaranteed_delta_and_no_less(spec):
    compressor = build(spec)
    block = np.full(256, 0.4999999)
    block[0] = LARGEST[spec] + 0.5
    error = block - compressor.decode(compressor.encode(block), 256)
    attained = 1 - (error @ error) / (block @ block)
    assert compressor.delta(256) < attained < compressor.delta(256) + 1e-3


@pytest.mark.parametrize("spec", CODES)
@pytest.mark.parametrize(
    "value", [0.0, -0.0, -float(FLOAT32.smallest_subnormal), float(FLOAT32.smallest_subnormal), -1e-38]
)
def test_zero_and_subnormal_blocks_become_positive_zeros(spec, value):
    payload = build(spec).encode(np.full(300, value, np.float32))
    assert payload[:8] == bytes(8)
    assert build(spec).decode(payload, 300).tobytes() == bytes(1200)


@pytest.mark.parametrize("spec", sorted(LARGEST))
def test_the_largest_float32_survives(spec):
    compressor = build(spec)
    vector = np.array([FLOAT32.max, FLOAT32.min], np.float32)
    decoded = compressor.decode(compressor.encode(vector), 2)
    assert np.abs(decoded / vector - 1).max() < 0.5 / LARGEST[spec]


@pytest.mark.parametrize(
    ("spec", "codes", "size"),
    [("q8", b"\x01\x80", 2), ("q4", b"\x80", 2), ("q4", b"\x08", 2), ("q4", b"\x88\x98", 3), ("q4", b"\x08", 1)],
)
def test_a_code_that_does_not_exist_is_a_peer_fault(spec, codes, size):
    with pytest.raises(PeerFault, match="code"):
        build(spec).decode(payload_of(1.0, codes), size)


@pytest.mark.parametrize("spec", sorted(LARGEST))
def test_the_mean_squared_error_to_nearest_is_the_textbooks(spec):
    """peak^2 / (3 L^2) with L = 2^b - 1 steps over the whole range, of values that lie anywhere in it."""
    vector = np.random.default_rng(2).uniform(-1, 1, (2000, 256)).astype(np.float32)
    vector[:, 0] = 1
    errors = build(spec).quantize_rows(vector).astype(np.float64) - vector
    assert (errors[:, 1:] ** 2).mean() == pytest.approx(1 / (3 * (2 ** int(spec[1]) - 1) ** 2), rel=0.01)
