"""Many vectors at once: the same bytes and the same bits as one after the other, for the codecs of values."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from p2pfl.compress import make_compressor as build
from p2pfl.errors import PeerFault

SPECS = (*("none", "float16", "bf16", "q8", "q4", "q2", "sign", "rotate+q4", "rotate+q8", "rotate+sign"),)
SIZES = (0, 1, 2, 5, 255, 256, 257, 513, 2410)
FLOAT32 = np.finfo(np.float32)
SPECIAL = (0.0, -0.0, 1e-45, -1e-45, 1e-38, -1e-38, 6e-8, 65504.0, -65520.0, 7.5, -0.5, 3e38, float(FLOAT32.min))


@pytest.fixture(params=SPECS)
def compressor(request):
    return build(request.param)


def finite(dtype: str, size: int):
    """A few rows of one size, whose values fill everything between and hold special ones."""
    bits = 8 * int(dtype[-1])
    element = st.one_of(st.sampled_from(SPECIAL), st.floats(width=bits, allow_nan=False, allow_infinity=False))
    moderate = st.floats(-100, 100, width=bits)
    shape = st.tuples(st.integers(0, 4), st.just(size))
    return st.one_of(
        *(hnp.arrays(dtype, shape, elements=each, fill=each) for each in (element, moderate)),
        st.integers(0, 99).map(lambda seed: np.random.default_rng(seed).standard_normal((3, size)).astype(dtype)),
    )


def some_rows(count: int, size: int, seed: int = 1):
    """Rows whose lengths differ, the first of them zero."""
    rows = np.random.default_rng(seed).standard_normal((count, size)) * np.arange(count)[:, None]
    return rows.astype(np.float32)


def one_by_one(compressor, rows):
    """Payloads and decoded rows as the functions for one vector give them."""
    payloads = [compressor.encode(row, chance=chance) for chance, row in enumerate(rows)]
    decoded = [compressor.decode(payload, rows.shape[1]) for payload in payloads]
    return b"".join(payloads), b"".join(row.tobytes() for row in decoded)


@given(
    spec=st.sampled_from(SPECS),
    rows=st.tuples(st.sampled_from(("<f4", "<f8")), st.sampled_from(SIZES)).flatmap(lambda one: finite(*one)),
)
def test_rows_equal_single_vectors_to_the_last_bit(spec, rows):
    compressor = build(spec)
    count, size = rows.shape
    payloads, decoded = one_by_one(compressor, rows)
    found = compressor.encode_rows(rows, chances=range(len(rows)))
    assert (found.shape, found.dtype) == ((count, compressor.size_bytes(size)), np.uint8)
    assert found.tobytes() == payloads
    assert compressor.decode_rows(found, size).tobytes() == decoded
    assert compressor.quantize_rows(rows, chances=range(len(rows))).tobytes() == decoded


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_what_payloads_decode_to_is_filled_in_on_the_way_even_over_the_rows(compressor, dtype):
    for size in [5, 256, 2410, 70_000]:
        rows = some_rows(4, size).astype(dtype)
        wanted = compressor.encode_rows(rows, chances=range(4))
        decoded = rows.copy() if dtype == np.float32 else np.full((4, size), 7, np.float32)
        source = decoded if dtype == np.float32 else rows
        assert compressor.encode_rows(source, chances=range(4), decoded=decoded).tobytes() == wanted.tobytes()
        assert decoded.tobytes() == compressor.decode_rows(wanted, size).tobytes()


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_one_value_that_is_not_finite_refuses_all_rows(compressor, dtype):
    good = some_rows(28, 2410).astype(dtype)
    for bad, place in product([np.nan, -np.nan, np.inf, -np.inf], [(0, 0), (27, 2409)]):
        rows = good.copy()
        rows[place] = bad
        for refuses in (compressor.encode_rows, compressor.quantize_rows):
            with pytest.raises(ValueError, match="NaN or infinity"):
                refuses(rows, chances=range(28))


HOSTILE = {
    "none": [(0, "0000807f"), (9636, "0000c0ff")],
    "float16": [(0, "007c"), (4818, "01fe")],
    "q8": [(36, "00000080"), (0, "0000807f"), (40, "80"), (2449, "80")],
    "q4": [(36, "000080bf"), (0, "01000000"), (40, "08"), (40, "80"), (1244, "08")],
    "q2": [(36, "000080bf"), (0, "01000000"), (341, "04"), (643, "80")],
    "sign": [(36, "000080bf"), (0, "01000000"), (341, "04"), (341, "80")],
    "rotate+q8": [(44, "00000080"), (8, "0000807f"), (48, "80")],
    "rotate+sign": [(12, "00000080"), (317, "04")],
}


@pytest.mark.parametrize(("spec", "place", "bytes_"), [(spec, *one) for spec, all_ in HOSTILE.items() for one in all_])
def test_one_hostile_payload_among_many_is_a_peer_fault(spec, place, bytes_):
    compressor = build(spec)
    good = compressor.encode_rows(some_rows(70, 2410), chances=range(70))
    hostile = bytes.fromhex(bytes_)
    for row in (0, 33, 69):
        payloads = good.copy()
        payloads[row, place : place + len(hostile)] = np.frombuffer(hostile, np.uint8)
        with pytest.raises(PeerFault):
            compressor.decode_rows(payloads, 2410)


def test_rows_of_another_shape_or_type_are_refused(compressor):
    for wrong in [np.ones(3), np.ones((3, 3), np.int32), np.ones((3, 3), np.float16)]:
        for refuses in (compressor.encode_rows, compressor.quantize_rows):
            with pytest.raises(ValueError, match="expected rows"):
                refuses(wrong, chances=range(3))
        with pytest.raises(ValueError, match="expected rows"):
            compressor.decode_rows(wrong, 3)


def test_an_out_of_another_shape_or_type_is_refused(compressor):
    for out in [np.ones((2, 3), np.float32), np.ones((3, 3))]:
        rows = np.ones((3, 3), np.float32)
        with pytest.raises(ValueError, match="expected out"):
            compressor.quantize_rows(rows, chances=range(3), out=out)
        with pytest.raises(ValueError, match="expected out"):
            compressor.encode_rows(rows, chances=range(3), decoded=out)
        with pytest.raises(ValueError, match="expected out"):
            compressor.decode_rows(compressor.encode_rows(rows, chances=range(3)), 3, out)


def test_float16_rows_are_rounded_at_every_value_and_every_boundary():
    every = np.arange(65_536, dtype=np.uint16).view(np.float16)
    values = np.unique(every[np.isfinite(every)].astype(np.float32))
    between = (values[1:] + values[:-1]) / 2
    near = [np.nextafter(each, side) for each in (values, between) for side in (FLOAT32.min, FLOAT32.max)]
    rows = np.concatenate([values, between, *near, np.float32([-0.0, -1e-45, 65_520, FLOAT32.max])])[None]
    compressor = build("float16")
    wanted = np.clip(rows, -65_504, 65_504).astype(np.float16).astype(np.float32)
    assert compressor.quantize_rows(rows, chances=range(len(rows))).tobytes() == wanted.tobytes()
    assert (
        compressor.decode_rows(compressor.encode_rows(rows, chances=range(len(rows))), rows.size).tobytes()
        == wanted.tobytes()
    )


def plain_payload(spec: str, row) -> bytes:
    """The definition, a block and a value at a time."""
    largest, scales, codes = {"q8": 127, "q4": 7}[spec], [], []
    for first in range(0, row.size, 256):
        block = row[first : first + 256]
        scale = np.abs(block).max() / np.float32(largest + 0.5)
        scale = scale if scale >= FLOAT32.smallest_normal else np.float32(0)
        inverse = np.float32(1) / scale if scale else np.float32(0)
        scales.append(scale)
        codes += [int(min(max(np.rint(value * inverse), -largest), largest)) for value in block]
    if spec == "q4":
        halves = [code + 8 for code in codes] + [8] * (len(codes) % 2)
        codes = [low | high << 4 for low, high in zip(halves[::2], halves[1::2], strict=True)]
    return np.array(scales, "<f4").tobytes() + bytes(code % 256 for code in codes)


@pytest.mark.parametrize("spec", ["q8", "q4"])
@pytest.mark.parametrize("size", SIZES)
def test_payloads_of_blocks_are_what_the_definition_says(spec, size):
    rows = some_rows(4, size, seed=size)
    halves = np.random.default_rng(size).integers(-255, 256, (4, size)) / np.float32(2)
    tiny = rows * np.float32(1e-38)
    for each in (rows, halves.astype(np.float32), tiny):
        found = build(spec).encode_rows(each)
        assert [one.tobytes() for one in found] == [plain_payload(spec, row) for row in each]
