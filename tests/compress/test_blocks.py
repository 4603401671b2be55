"""What is particular to `q8` and `q4`, and to stochastic rounding."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from p2pfl.compress import build, make_compressor
from p2pfl.errors import PeerFault

LARGEST = {"q8": 127, "q4": 7}
FLOAT32 = np.finfo(np.float32)


def payload_of(scale: float, codes: bytes) -> bytes:
    return np.array([scale], "<f4").tobytes() + codes


@given(
    spec=st.sampled_from(sorted(LARGEST)),
    vector=hnp.arrays("<f4", st.integers(1, 600), elements=st.floats(-(2.0**100), 2.0**100, width=32)),
)
def test_no_value_is_further_than_half_a_step_of_its_own_block(spec, vector):
    compressor = make_compressor(spec)
    decoded = compressor.decode(compressor.encode(vector), vector.size)
    for first in range(0, vector.size, 256):
        block = vector[first : first + 256].astype(np.float64)
        half_step = np.abs(block).max() / (LARGEST[spec] + 0.5) / 2
        assert np.abs(block - decoded[first : first + 256]).max() <= half_step * (1 + 1e-4) + 1e-35


@pytest.mark.parametrize(("spec", "least"), [("q8", 0.9999), ("q4", 0.985)])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_gaussian_vector_keeps_far_more_than_the_guarantee(spec, least, dtype):
    vector = np.random.default_rng(5).standard_normal(100_000).astype(dtype)
    compressor = make_compressor(spec)
    error = vector - compressor.decode(compressor.encode(vector), vector.size)
    assert 1 - (error @ error) / (vector @ vector) > max(least, compressor.delta(vector.size))


@pytest.mark.parametrize("spec", sorted(LARGEST))
def test_the_worst_block_attains_the_guaranteed_delta_and_no_less(spec):
    compressor = make_compressor(spec)
    block = np.full(256, 0.4999999)
    block[0] = LARGEST[spec] + 0.5
    error = block - compressor.decode(compressor.encode(block), 256)
    attained = 1 - (error @ error) / (block @ block)
    assert compressor.delta(256) < attained < compressor.delta(256) + 1e-3


def test_q4_takes_half_a_byte_a_value_and_a_scale_a_block():
    assert make_compressor("q4").size_bytes(2410) == 4 * 10 + 1205
    assert make_compressor("q8").size_bytes(257) == 4 * 2 + 257


@pytest.mark.parametrize("spec", sorted(LARGEST))
@pytest.mark.parametrize("value", [0.0, -0.0, float(FLOAT32.smallest_subnormal), -1e-38])
def test_zero_and_subnormal_blocks_become_positive_zeros(spec, value):
    compressor = make_compressor(spec)
    payload = compressor.encode(np.full(256, value, np.float32))
    assert payload[:4] == bytes(4)
    assert compressor.decode(payload, 256).tobytes() == bytes(1024)


@pytest.mark.parametrize("spec", sorted(LARGEST))
def test_the_largest_float32_survives(spec):
    compressor = make_compressor(spec)
    vector = np.array([FLOAT32.max, FLOAT32.min], np.float32)
    decoded = compressor.decode(compressor.encode(vector), 2)
    assert np.abs(decoded / vector - 1).max() < 0.5 / LARGEST[spec]


@pytest.mark.parametrize("spec", sorted(LARGEST))
@pytest.mark.parametrize("scale", [np.nan, -np.nan, np.inf, -np.inf, -1.0, -0.0, 1e-40, FLOAT32.max, 6e37])
def test_a_scale_no_encoder_sends_is_a_peer_fault(spec, scale):
    codes = {"q8": b"\x01", "q4": b"\x89"}[spec]
    with pytest.raises(PeerFault, match="scale"):
        make_compressor(spec).decode(payload_of(scale, codes), 1)


@pytest.mark.parametrize(
    ("spec", "codes", "size"),
    [("q8", b"\x01\x80", 2), ("q4", b"\x80", 2), ("q4", b"\x08", 2), ("q4", b"\x88\x98", 3), ("q4", b"\x08", 1)],
)
def test_a_code_that_does_not_exist_is_a_peer_fault(spec, codes, size):
    with pytest.raises(PeerFault, match="code"):
        make_compressor(spec).decode(payload_of(1.0, codes), size)


# --- stochastic rounding -------------------------------------------------------------------------------------------

STOCHASTIC = {"q8:stochastic": 127, "q4:stochastic": 7, "q2:stochastic": 1}
ROWS = 4000


def quantized(spec, vector, count=ROWS):
    """What as many chances make of the vector, float64."""
    rows = np.broadcast_to(np.asarray(vector, np.float32), (count, len(vector)))
    return build(spec).quantize_rows(rows, chances=range(count)).astype(np.float64)


@pytest.mark.parametrize("spec", sorted(STOCHASTIC))
def test_a_value_goes_to_one_of_its_two_neighbors_and_nothing_is_clipped(spec):
    vector = np.random.default_rng(1).uniform(-1, 1, 256).astype(np.float32)
    steps = quantized(spec, vector, 50) / (np.abs(vector).max() / STOCHASTIC[spec])
    exact = vector.astype(np.float64) / (np.abs(vector).max() / STOCHASTIC[spec])
    assert np.abs(steps - np.rint(steps)).max() < 1e-4
    assert np.abs(steps - exact).max() < 1 + 1e-4
    assert np.abs(steps).max() == pytest.approx(STOCHASTIC[spec])


@pytest.mark.parametrize("spec", sorted(STOCHASTIC))
def test_in_expectation_every_value_is_itself(spec):
    """Five standard errors for 256 values, of fractions of a step that are as hard as they can be."""
    step = 1 / STOCHASTIC[spec]
    vector = np.concatenate([[1.0], step * np.linspace(0, 1, 255)]).astype(np.float32)
    errors = quantized(spec, vector) - vector
    fraction = vector / step - np.floor(vector / step)
    allowed = 5 * step * np.sqrt(fraction * (1 - fraction) / ROWS) + step * 2.0**-15
    assert (np.abs(errors.mean(axis=0)) <= allowed).all()


@pytest.mark.parametrize("spec", sorted(STOCHASTIC))
def test_levels_and_zeros_are_exact(spec):
    largest = STOCHASTIC[spec]
    vector = np.resize(np.arange(-largest, largest + 1), 512).astype(np.float32)
    assert (quantized(spec, vector, 100) == vector).all()


@pytest.mark.parametrize("spec", sorted(STOCHASTIC))
@pytest.mark.parametrize(("kind", "factor"), [("spread evenly", 2), ("halfway", 3)])
def test_the_squared_error_is_twice_that_of_nearest_in_the_mean_and_three_times_at_worst(spec, kind, factor):
    """The textbook's peak^2 / (3 L^2) with L steps over the whole range; here L = 2^b - 2."""
    textbook = 1 / (3 * (2 ** int(spec[1]) - 2) ** 2)
    step = 1 / STOCHASTIC[spec]
    values = np.full(255, step / 2) if kind == "halfway" else step * (np.arange(255) + 0.5) / 255
    vector = np.concatenate([[1.0], values]).astype(np.float32)
    errors = quantized(spec, vector) - vector
    assert (errors[:, 1:] ** 2).mean() == pytest.approx(factor * textbook, rel=0.01)


@pytest.mark.parametrize("spec", sorted(LARGEST))
def test_the_mean_squared_error_to_nearest_is_the_textbooks(spec):
    """peak^2 / (3 L^2) with L = 2^b - 1 steps over the whole range, of values that lie anywhere in it."""
    vector = np.random.default_rng(2).uniform(-1, 1, (2000, 256)).astype(np.float32)
    vector[:, 0] = 1
    errors = build(spec).quantize_rows(vector).astype(np.float64) - vector
    assert (errors[:, 1:] ** 2).mean() == pytest.approx(1 / (3 * (2 ** int(spec[1]) - 1) ** 2), rel=0.01)


@pytest.mark.parametrize("spec", sorted(STOCHASTIC))
def test_the_worst_block_attains_the_delta_of_stochastic_rounding(spec):
    largest = STOCHASTIC[spec]
    fraction = 1 / (1 + np.sqrt(1 + 255 / largest**2))
    vector = np.full(256, fraction, np.float32)
    vector[0] = largest
    errors = ((quantized(spec, vector) - vector) ** 2).sum(axis=1)
    attained = 1 - errors.mean() / (vector.astype(np.float64) @ vector)
    uncertain = 5 * errors.std() / np.sqrt(ROWS) / (vector.astype(np.float64) @ vector)
    guaranteed = build(spec).delta(256)
    assert guaranteed - uncertain < attained < guaranteed + 1e-3 + uncertain
    for other in (0.9, 1.1):
        near = np.where(vector == largest, vector, np.float32(fraction * other))
        share = ((quantized(spec, near) - near) ** 2).sum(axis=1).mean() / (near.astype(np.float64) @ near)
        assert 1 - share > guaranteed


@pytest.mark.parametrize("spec", sorted(STOCHASTIC))
def test_the_largest_float32_survives_stochastic_rounding(spec):
    vector = np.full(300, FLOAT32.min, np.float32)
    decoded = build(spec).decode(build(spec).encode(vector, chance=1), 300)
    assert np.abs(decoded / vector - 1).max() < 0.04


def test_stochastic_rounding_in_two_bits_is_no_contraction():
    assert build("q2:stochastic").delta(1000) == pytest.approx(-6.5, abs=1e-3)


@pytest.mark.parametrize(("codes", "size"), [("a8", 4), ("2a", 4), ("8a", 4), ("a2", 4)])
def test_a_two_bit_code_that_does_not_exist_is_a_peer_fault(codes, size):
    with pytest.raises(PeerFault, match="code -2"):
        build("q2:stochastic").decode(payload_of(1.0, bytes.fromhex(codes)), size)


@pytest.mark.parametrize(("codes", "size"), [("ab", 0), ("ea", 3), ("ba", 2), ("ae", 1), ("6a", 3), ("aaea", 7)])
def test_a_filling_after_two_bit_codes_that_is_not_code_0_is_a_peer_fault(codes, size):
    with pytest.raises(PeerFault, match=r"padding|bytes where"):
        build("q2:stochastic").decode(payload_of(1.0, bytes.fromhex(codes)), size)
