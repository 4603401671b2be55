"""What is particular to `q8` and `q4`."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from p2pfl.compress import make_compressor as build
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


@pytest.mark.parametrize("spec", sorted(LARGEST))
@pytest.mark.parametrize("value", [0.0, -0.0, float(FLOAT32.smallest_subnormal), -1e-38])
def test_zero_and_subnormal_blocks_become_positive_zeros(spec, value):
    compressor = build(spec)
    payload = compressor.encode(np.full(256, value, np.float32))
    assert payload[:4] == bytes(4)
    assert compressor.decode(payload, 256).tobytes() == bytes(1024)


@pytest.mark.parametrize("spec", sorted(LARGEST))
def test_the_largest_float32_survives(spec):
    compressor = build(spec)
    vector = np.array([FLOAT32.max, FLOAT32.min], np.float32)
    decoded = compressor.decode(compressor.encode(vector), 2)
    assert np.abs(decoded / vector - 1).max() < 0.5 / LARGEST[spec]


@pytest.mark.parametrize("spec", sorted(LARGEST))
@pytest.mark.parametrize("scale", [np.nan, -np.nan, np.inf, -np.inf, -1.0, -0.0, 1e-40, FLOAT32.max, 6e37])
def test_a_scale_no_encoder_sends_is_a_peer_fault(spec, scale):
    codes = {"q8": b"\x01", "q4": b"\x89"}[spec]
    with pytest.raises(PeerFault, match="scale"):
        build(spec).decode(payload_of(scale, codes), 1)


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
