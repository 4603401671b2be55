"""One suite for every compressor and for chains of them."""

from __future__ import annotations

import tracemalloc
from functools import cache
from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from p2pfl.compress import EXAMPLES, STAGES, allowed, list_stages, require_fit, require_replicas
from p2pfl.compress import make_compressor as build
from p2pfl.errors import PeerFault, UserError

SPECS = (
    *EXAMPLES,
    "top-k:1.0+q4",
    "top-k:7",
    "top-k:0.3+rotate+q2",
    "top-k:0.02+bf16+zstd",
    "random-k:5+sign",
    "random-k:1.0",
    "random-k:0.3+rotate+q4+zstd",
    "rotate+q8",
    "sign+zstd",
    "float16+zstd",
)
DRAWING = tuple(spec for spec in SPECS if build(spec).random)
CERTAIN = tuple(spec for spec in SPECS if spec not in DRAWING)
SIZES = (0, 1, 2, 7, 255, 256, 257, 4095, 4097, 65_535, 65_536, 65_537, 140_000)
SMALL_BYTES = 65_536


@pytest.fixture(params=SPECS)
def compressor(request):
    return build(request.param)


def moderate(dtype: str, bits: int):
    """Zeros and values of either sign whose magnitudes every compressor documents as within its range."""
    magnitude = st.floats(2.0**-13, 60_000, width=bits)
    return hnp.arrays(
        dtype, st.integers(0, 600), elements=st.one_of(st.just(0.0), magnitude, magnitude.map(lambda x: -x))
    )


def energy(vector) -> float:
    return float(np.square(vector, dtype=np.float64).sum())


def heavy_tailed(*shape: int, seed: int = 0):
    return drawn(shape, seed).copy()


@cache
def drawn(shape, seed):
    """The same for every compressor: drawing takes longer than what some of them do."""
    return np.random.default_rng(seed).standard_t(3, shape).astype(np.float32)


# --- what goes in and comes out ------------------------------------------------------------------------------------


@pytest.mark.parametrize("spec", SPECS)
def test_a_compressor_says_by_which_spec_it_is_made(spec):
    made = build(spec)
    assert made.spec == spec
    assert made.source
    assert all(0 < made.gamma(size) <= 1 and made.delta(size) <= 1 for size in SIZES)


def test_a_payload_has_exactly_the_announced_size_or_no_more_than_it(compressor):
    for size in SIZES:
        vector = heavy_tailed(size)
        payload = compressor.encode(vector.astype(np.float64), chance=size)
        assert bytes(payload) == bytes(compressor.encode(vector, chance=size))
        announced = compressor.size_bytes(size)
        assert len(payload) == announced if compressor.fixed else 0 < len(payload) <= announced
        assert isinstance(payload, bytes) if len(payload) <= SMALL_BYTES else payload.readonly
        decoded = compressor.decode(payload, size)
        assert (decoded.shape, decoded.dtype, decoded.flags.writeable) == ((size,), np.float32, True)


def test_what_it_decodes_to_is_told_on_the_way_and_goes_where_it_is_wanted(compressor):
    for size in SIZES:
        vector = heavy_tailed(size)
        told, out = np.full((2, size), 7, np.float32)
        payload = compressor.encode(vector, chance=3, decoded=told)
        assert bytes(payload) == bytes(compressor.encode(vector, chance=3))
        assert compressor.decode(payload, size, out).base is out.base
        assert told.tobytes() == out.tobytes() == compressor.decode(payload, size).tobytes()


def test_rows_are_what_their_payloads_decode_to(compressor):
    for count, size in [(0, 5), (1, 0), (3, 1), (9, 255), (3, 257), (28, 2410), (257, 256), (2, 131_073)]:
        rows = heavy_tailed(count, size)
        chances = [2**63 + 17 * row for row in range(count)]
        payloads = [compressor.encode(row, chance=chance) for row, chance in zip(rows, chances, strict=True)]
        wanted = b"".join(compressor.decode(payload, size).tobytes() for payload in payloads)
        assert compressor.quantize_rows(rows, chances=chances).tobytes() == wanted
        if compressor.fixed:
            assert compressor.encode_rows(rows, chances=chances).tobytes() == b"".join(payloads)
        into = rows.copy()
        assert compressor.quantize_rows(into, chances=chances, out=into) is into
        assert into.tobytes() == wanted


def test_rows_and_payloads_may_be_strided_in_memory(compressor):
    for size in [5, 257, 2410]:
        rows = heavy_tailed(80, 2 * size)[::4, ::2]
        chances = list(range(20))
        wide = np.full((40, size + 3), 7, np.float32)
        out = wide[::2, 1:-2]
        compressor.quantize_rows(rows, chances=chances, out=out)
        wanted = compressor.quantize_rows(rows.copy(), chances=chances).tobytes()
        assert out.tobytes() == wanted
        out[:] = 7
        assert (wide == 7).all()
        if compressor.fixed:
            payloads = compressor.encode_rows(rows, chances=chances)
            shifted = np.full((20, payloads.shape[1] + 3), 255, np.uint8)[:, 1:-2]
            shifted[:] = payloads
            assert compressor.decode_rows(shifted, size).tobytes() == wanted


@given(spec=st.sampled_from(SPECS), vector=moderate("<f4", 32))
def test_decoding_gives_the_same_bits_from_bytes_and_from_unaligned_memory(spec, vector):
    compressor = build(spec)
    payload = compressor.encode(vector)
    shifted = memoryview(b"\x00" + payload)[1:]
    once, again = compressor.decode(payload, vector.size), compressor.decode(shifted, vector.size)
    assert once.tobytes() == again.tobytes()


def test_a_strided_vector_is_encoded_like_its_copy(compressor):
    strided = heavy_tailed(1200)[::2]
    assert compressor.encode(strided) == compressor.encode(strided.copy())


@pytest.mark.parametrize("spec", CERTAIN)
def test_no_chance_changes_what_draws_nothing(spec):
    vector = heavy_tailed(3000)
    assert build(spec).encode(vector, chance=1) == build(spec).encode(vector, chance=2)
    assert build(spec).quantize_rows(vector[None]).shape == (1, 3000)


@pytest.mark.parametrize("spec", DRAWING)
def test_the_chance_alone_decides_what_is_drawn(spec):
    vector = heavy_tailed(3000)
    assert build(spec).encode(vector, chance=2**64 - 1) == build(spec).encode(vector, chance=2**64 - 1)
    assert build(spec).encode(vector, chance=1) != build(spec).encode(vector, chance=2)


@pytest.mark.parametrize("spec", DRAWING)
def test_rows_that_draw_want_a_chance_each(spec):
    for chances in [None, [1], [1, 2, 3]]:
        with pytest.raises(ValueError, match="a chance for each"):
            build(spec).quantize_rows(heavy_tailed(2, 300), chances=chances)


# --- how much is lost ----------------------------------------------------------------------------------------------


@given(spec=st.sampled_from(CERTAIN), vector=st.one_of(moderate("<f4", 32), moderate("<f8", 64)))
def test_a_round_trip_contracts_by_delta(spec, vector):
    compressor = build(spec)
    decoded = compressor.decode(compressor.encode(vector), vector.size)
    assert energy(vector - decoded) <= (1 - compressor.delta(vector.size)) * energy(vector)


VECTORS = {
    "gaussian": lambda size: np.random.default_rng(1).standard_normal(size),
    "heavy-tailed": lambda size: np.random.default_rng(2).standard_t(2, size),
    "one value": lambda size: np.eye(1, size, size // 3)[0],
    "all equal": lambda size: np.full(size, 0.3),
    "a peak above halves": lambda size: np.where(np.arange(size) % 256 == 5, 1.0, 0.07),
}


@pytest.mark.parametrize("spec", DRAWING)
@pytest.mark.parametrize("kind", VECTORS)
def test_round_trips_that_draw_contract_by_delta_in_the_mean(spec, kind):
    """Over 1,000 chances; five standard errors are allowed, and all seeds are fixed."""
    compressor = build(spec)
    for size in (1, 257, 1000):
        vector = VECTORS[kind](size).astype(np.float32)
        rows = np.broadcast_to(vector, (1000, size))
        decoded = compressor.quantize_rows(rows, chances=range(1000, 2000))
        errors = np.square(rows - decoded, dtype=np.float64).sum(axis=1)
        allowed = (1 - compressor.delta(size)) * energy(vector)
        assert errors.mean() <= allowed * (1 + 1e-6) + 5 * errors.std() / len(errors) ** 0.5


def test_stochastic_rounding_is_unbiased():
    compressor, vector = build("bf16"), heavy_tailed(600)
    decoded = compressor.quantize_rows(np.broadcast_to(vector, (4000, 600)), chances=range(4000))
    errors = decoded.astype(np.float64) - vector
    for block in (slice(0, 256), slice(256, 512), slice(512, 600)):
        assert np.abs(errors.mean(axis=0)[block]).max() <= 5 * errors.std(axis=0)[block].max() / 4000**0.5


@given(
    spec=st.sampled_from(CERTAIN),
    vector=hnp.arrays("<f4", st.integers(0, 600), elements=st.floats(width=32, allow_nan=False, allow_infinity=False)),
)
def test_every_finite_vector_decodes_to_a_finite_vector_that_is_no_further_than_zero(spec, vector):
    compressor = build(spec)
    decoded = compressor.decode(compressor.encode(vector), vector.size)
    assert np.isfinite(decoded).all()
    assert energy(np.float64(vector) - decoded) <= energy(vector) * (1 + 1e-12)


@given(
    spec=st.sampled_from(DRAWING),
    vector=hnp.arrays("<f4", st.integers(0, 600), elements=st.floats(width=32, allow_nan=False, allow_infinity=False)),
    chance=st.integers(0, 2**64 - 1),
)
def test_every_finite_vector_decodes_to_a_finite_vector_whatever_is_drawn(spec, vector, chance):
    compressor = build(spec)
    assert np.isfinite(compressor.decode(compressor.encode(vector, chance=chance), vector.size)).all()


@pytest.mark.parametrize("spec", [spec for spec in CERTAIN if "-k" not in spec])
def test_float64_beyond_the_range_of_float32_saturates(spec):
    decoded = build(spec).decode(build(spec).encode(np.array([1e300, -1e300])), 2)
    assert np.isfinite(decoded).all()
    assert decoded[0] == -decoded[1] >= 65504


def test_what_float32_loses_of_a_float64_is_within_its_delta():
    vector, exact = np.full(100, 1 / 3), build("none")
    lost = np.sum((vector - exact.decode(exact.encode(vector), 100)) ** 2)
    assert 0.0 < lost <= (1.0 - exact.delta(100)) * np.sum(vector**2)


def test_zeros_decode_to_zeros(compressor):
    assert not compressor.decode(compressor.encode(np.zeros(700, np.float32)), 700).any()


# --- what is refused -----------------------------------------------------------------------------------------------


def test_a_vector_that_is_not_finite_is_refused(compressor):
    for bad in [np.nan, np.inf, -np.inf]:
        for size, place in [(300, 0), (300, 299), (140_000, 139_999)]:
            for dtype in (np.float32, np.float64):
                vector = np.ones(size, dtype)
                vector[place] = bad
                for refuses in (compressor.encode, lambda one: compressor.quantize_rows(one[None], chances=[1])):
                    with pytest.raises(ValueError, match="NaN or infinity"):
                        refuses(vector)


def test_a_matrix_or_another_type_is_refused(compressor):
    for vector in [np.ones((2, 2)), np.ones(3, np.int32), np.ones(3, np.float16)]:
        with pytest.raises(ValueError, match="expected a float32 or float64 vector"):
            compressor.encode(vector)


def test_a_payload_of_another_length_is_a_peer_fault(compressor):
    for size in [0, 1, 300, 5000]:
        payload = compressor.encode(heavy_tailed(size))
        for other in {payload[:-1], payload[: len(payload) // 2], payload + bytes(1), payload + bytes(4)} - {payload}:
            with pytest.raises(PeerFault):
                compressor.decode(other, size)


@given(spec=st.sampled_from(SPECS), size=st.integers(0, 600), data=st.data())
def test_any_bytes_give_a_finite_vector_or_a_peer_fault(spec, size, data):
    compressor = build(spec)
    right = compressor.size_bytes(size)
    payload = data.draw(st.one_of(st.binary(max_size=50), st.binary(min_size=right, max_size=right)))
    decoded_or_refused(compressor, payload, size)


def decoded_or_refused(compressor, payload, size) -> None:
    try:
        decoded = compressor.decode(payload, size)
    except PeerFault:
        return
    assert len(payload) == compressor.size_bytes(size) or not compressor.fixed
    assert decoded.shape == (size,)
    assert np.isfinite(decoded).all()


def test_what_is_too_short_or_too_long_costs_no_memory(compressor):
    size = 2_000_000
    right = compressor.size_bytes(size)
    for payload in (b"", bytes(11), b"\x01" + bytes(11), bytes(right + 1)):
        peak = peak_bytes(lambda payload=payload: decoded_or_refused(compressor, payload, size))
        assert peak < 100_000


def test_decoding_takes_no_more_than_a_few_times_the_vector(compressor):
    vector, out = heavy_tailed(500_000), np.empty(500_000, np.float32)
    payload = compressor.encode(vector, chance=1)
    assert peak_bytes(lambda: compressor.decode(payload, vector.size, out)) < 4 * vector.nbytes


def peak_bytes(do) -> int:
    tracemalloc.start()
    do()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return peak


# -- Many vectors at once: the same bytes and the same bits as one after the other, for the codecs of values.

VALUE_SPECS = ("none", "float16", "bf16", "q8", "q4", "q2", "sign", "rotate+q4", "rotate+q8", "rotate+sign")
ROW_SIZES = (0, 1, 2, 5, 255, 256, 257, 513, 2410)
FLOAT32 = np.finfo(np.float32)
SPECIAL = (0.0, -0.0, 1e-45, -1e-45, 1e-38, -1e-38, 6e-8, 65504.0, -65520.0, 7.5, -0.5, 3e38, float(FLOAT32.min))


@pytest.fixture(params=VALUE_SPECS)
def value_codec(request):
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
    spec=st.sampled_from(VALUE_SPECS),
    rows=st.tuples(st.sampled_from(("<f4", "<f8")), st.sampled_from(ROW_SIZES)).flatmap(lambda one: finite(*one)),
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
def test_what_payloads_decode_to_is_filled_in_on_the_way_even_over_the_rows(value_codec, dtype):
    for size in [5, 256, 2410, 70_000]:
        rows = some_rows(4, size).astype(dtype)
        wanted = value_codec.encode_rows(rows, chances=range(4))
        decoded = rows.copy() if dtype == np.float32 else np.full((4, size), 7, np.float32)
        source = decoded if dtype == np.float32 else rows
        assert value_codec.encode_rows(source, chances=range(4), decoded=decoded).tobytes() == wanted.tobytes()
        assert decoded.tobytes() == value_codec.decode_rows(wanted, size).tobytes()


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_one_value_that_is_not_finite_refuses_all_rows(value_codec, dtype):
    good = some_rows(28, 2410).astype(dtype)
    for bad, place in product([np.nan, -np.nan, np.inf, -np.inf], [(0, 0), (27, 2409)]):
        rows = good.copy()
        rows[place] = bad
        for refuses in (value_codec.encode_rows, value_codec.quantize_rows):
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


def test_rows_of_another_shape_or_type_are_refused(value_codec):
    for wrong in [np.ones(3), np.ones((3, 3), np.int32), np.ones((3, 3), np.float16)]:
        for refuses in (value_codec.encode_rows, value_codec.quantize_rows):
            with pytest.raises(ValueError, match="expected rows"):
                refuses(wrong, chances=range(3))
        with pytest.raises(ValueError, match="expected rows"):
            value_codec.decode_rows(wrong, 3)


def test_an_out_of_another_shape_or_type_is_refused(value_codec):
    for out in [np.ones((2, 3), np.float32), np.ones((3, 3))]:
        rows = np.ones((3, 3), np.float32)
        with pytest.raises(ValueError, match="expected out"):
            value_codec.quantize_rows(rows, chances=range(3), out=out)
        with pytest.raises(ValueError, match="expected out"):
            value_codec.encode_rows(rows, chances=range(3), decoded=out)
        with pytest.raises(ValueError, match="expected out"):
            value_codec.decode_rows(value_codec.encode_rows(rows, chances=range(3)), 3, out)


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
@pytest.mark.parametrize("size", ROW_SIZES)
def test_payloads_of_blocks_are_what_the_definition_says(spec, size):
    rows = some_rows(4, size, seed=size)
    halves = np.random.default_rng(size).integers(-255, 256, (4, size)) / np.float32(2)
    tiny = rows * np.float32(1e-38)
    for each in (rows, halves.astype(np.float32), tiny):
        found = build(spec).encode_rows(each)
        assert [one.tobytes() for one in found] == [plain_payload(spec, row) for row in each]


# -- From a spec to a compressor, and what the catalog says about its stages.


def test_an_unknown_spec_names_the_key_the_reason_and_what_is_allowed():
    with pytest.raises(UserError) as caught:
        build("q8+top-k:0.1")
    assert str(caught.value) == (
        f"gossip.compressor: q8+top-k: top-k comes before q8 (found 'q8+top-k:0.1'); allowed: {allowed()}"
    )


@pytest.mark.parametrize("spec", ["q8:stochastic", "top-k:0.1+rotate+q2:stochastic+zstd"])
def test_an_option_that_is_gone_says_what_to_use(spec):
    with pytest.raises(UserError, match=r"q\d:stochastic is gone: use q\d"):
        build(spec)


@pytest.mark.parametrize(
    ("spec", "reason"),
    [
        (
            "fragment:8+q4",
            "only bf16 may follow fragment, or nothing: there is no replica to keep what a code leaves out",
        ),
        ("fragment:8+zstd", "only bf16 may follow fragment, or nothing"),
        ("fragment", "say how many, as in fragment:8+bf16"),
        ("fragment:0.5", "a whole number from 1 to 4096"),
        ("fragment:5000", "a whole number from 1 to 4096"),
    ],
)
def test_fragments_are_exact_or_without_bias_and_a_whole_number_of_them(spec, reason):
    with pytest.raises(UserError, match="fragment") as caught:
        build(spec)
    assert reason in str(caught.value)


def test_more_fragments_than_values_are_refused():
    with pytest.raises(UserError, match="8 fragments of 7 values"):
        require_fit(build("fragment:8"), 7)


def test_a_robust_rule_is_refused_where_nothing_is_left_of_any_neighbor():
    with pytest.raises(UserError, match="mixes the replicas of all neighbors, and fragments leave none") as caught:
        require_replicas(build("fragment:8"), "hampel")
    assert caught.value.allowed == "a compressor with replicas, such as q4, or gossip.rule = mean"
    require_replicas(build("q4"), "hampel")


@pytest.mark.parametrize("spec", EXAMPLES)
def test_every_example_is_a_contraction_at_every_size(spec):
    assert all(0 < build(spec).delta(size) <= 1 for size in (0, 1, 2, 255, 256, 257, 2410, 10**8))


def test_every_word_of_the_grammar_has_its_line_its_example_and_its_paper():
    words = list(list_stages())
    assert {stage.name for stage, _ in words} == {*STAGES, "none"}
    for stage, source in words:
        assert stage.name in stage.shown
        assert build(stage.shown).spec == stage.shown
        assert len(source) > 5
        assert len(stage.means) < 100


@pytest.mark.parametrize(
    ("spec", "size_bytes"),
    [
        ("none", 400_000_000),
        ("float16", 200_000_000),
        ("q8", 100_000_000 + 4 * 390_625),
        ("q4", 50_000_000 + 4 * 390_625),
        ("random-k:0.01", 8 + 4_000_000),
        ("top-k:0.01", 4_000_000 + (6 * 1_000_000 + 1_000_000 + 1_562_499 + 7) // 8),
        ("top-k:0.5", 200_000_000 + 12_500_000),
        ("top-k:1.0+q8", 100_000_000 + 4 * 390_625),
        ("q8+zstd", 1 + 100_000_000 + 4 * 390_625),
        ("fragment:8+bf16", 8 + 2 * (12_500_000 + 7)),
    ],
)
def test_sizes_of_a_hundred_million_parameters(spec, size_bytes):
    assert build(spec).size_bytes(100_000_000) == size_bytes
