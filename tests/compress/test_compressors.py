"""One suite for every compressor."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from p2pfl.compress import SPECS, make_compressor
from p2pfl.errors import PeerFault, UserError

SIZES = (0, 1, 2, 255, 256, 257, 65_535, 65_536, 65_537)


@pytest.fixture(params=SPECS)
def compressor(request):
    return make_compressor(request.param)


def moderate(dtype: str, bits: int):
    """Zeros and values of either sign whose magnitudes every compressor documents as within its range."""
    magnitude = st.floats(2.0**-13, 60_000, width=bits)
    return hnp.arrays(
        dtype, st.integers(0, 600), elements=st.one_of(st.just(0.0), magnitude, magnitude.map(lambda x: -x))
    )


def energy(vector) -> float:
    return float(np.square(vector, dtype=np.float64).sum())


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_payload_has_exactly_the_announced_size(compressor, size, dtype):
    vector = np.random.default_rng(size).standard_normal(size).astype(dtype)
    payload = compressor.encode(vector)
    assert type(payload) is bytes
    assert len(payload) == compressor.size_bytes(size)
    decoded = compressor.decode(payload, size)
    assert (decoded.shape, decoded.dtype, decoded.flags.writeable) == ((size,), np.float32, True)


@given(spec=st.sampled_from(SPECS), vector=st.one_of(moderate("<f4", 32), moderate("<f8", 64)))
def test_a_round_trip_contracts_by_delta(spec, vector):
    compressor = make_compressor(spec)
    decoded = compressor.decode(compressor.encode(vector), vector.size)
    assert energy(vector - decoded) <= (1 - compressor.delta(vector.size)) * energy(vector)


@given(spec=st.sampled_from(SPECS), vector=moderate("<f4", 32))
def test_decoding_gives_the_same_bits_from_bytes_and_from_unaligned_memory(spec, vector):
    compressor = make_compressor(spec)
    payload = compressor.encode(vector)
    shifted = memoryview(b"\x00" + payload)[1:]
    once, again = compressor.decode(payload, vector.size), compressor.decode(shifted, vector.size)
    assert once.tobytes() == again.tobytes()


@given(
    spec=st.sampled_from(SPECS),
    vector=hnp.arrays("<f4", st.integers(0, 600), elements=st.floats(width=32, allow_nan=False, allow_infinity=False)),
)
def test_every_finite_vector_decodes_to_a_finite_vector_that_is_no_further_than_zero(spec, vector):
    compressor = make_compressor(spec)
    decoded = compressor.decode(compressor.encode(vector), vector.size)
    assert np.isfinite(decoded).all()
    assert energy(np.float64(vector) - decoded) <= energy(vector) * (1 + 1e-12)


@given(spec=st.sampled_from(SPECS), size=st.integers(0, 600), data=st.data())
def test_any_bytes_give_a_finite_vector_or_a_peer_fault(spec, size, data):
    compressor = make_compressor(spec)
    right = compressor.size_bytes(size)
    payload = data.draw(st.one_of(st.binary(max_size=50), st.binary(min_size=right, max_size=right)))
    try:
        decoded = compressor.decode(payload, size)
    except PeerFault:
        return
    assert len(payload) == right
    assert decoded.shape == (size,)
    assert np.isfinite(decoded).all()


@pytest.mark.parametrize("difference", [-1, 1, 4])
def test_a_payload_of_another_length_is_a_peer_fault(compressor, difference):
    payload = compressor.encode(np.ones(300, np.float32)) + bytes(4)
    with pytest.raises(PeerFault, match="bytes where"):
        compressor.decode(payload[: compressor.size_bytes(300) + difference], 300)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_vector_that_is_not_finite_is_refused(compressor, bad, dtype):
    vector = np.ones(300, dtype)
    vector[299] = bad
    with pytest.raises(ValueError, match="NaN or infinity"):
        compressor.encode(vector)


@pytest.mark.parametrize("vector", [np.ones((2, 2)), np.ones(3, np.int32), np.ones(3, np.float16)])
def test_a_matrix_or_another_type_is_refused(compressor, vector):
    with pytest.raises(ValueError, match="expected a float32 or float64 vector"):
        compressor.encode(vector)


def test_float64_beyond_the_range_of_float32_saturates(compressor):
    decoded = compressor.decode(compressor.encode(np.array([1e300, -1e300])), 2)
    assert np.isfinite(decoded).all()
    assert decoded[0] == -decoded[1] >= 65504


def test_a_strided_vector_is_encoded_like_its_copy(compressor):
    strided = np.random.default_rng(1).standard_normal(1200).astype(np.float32)[::2]
    assert compressor.encode(strided) == compressor.encode(strided.copy())


def test_an_unknown_spec_names_the_key_and_what_is_allowed():
    with pytest.raises(UserError) as caught:
        make_compressor("q3")
    assert str(caught.value) == ("gossip.compressor: unknown compressor (found 'q3'); allowed: none, float16, q8, q4")
