"""zstd around another payload: what it stores, and which frames are refused before they cost memory."""

from __future__ import annotations

import subprocess
import sys
import tracemalloc

import numpy as np
import pytest

from p2pfl.compress import _library, compress_frame, decompress_frame
from p2pfl.compress import make_compressor as build
from p2pfl.errors import PeerFault

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

SIZE = 3000
PLAIN, PACKED = b"\x00", b"\x01"


def some(size: int = SIZE):
    return np.random.default_rng(1).standard_t(3, size).astype(np.float32)


def inner(vector=None) -> bytes:
    return bytes(build("q4").encode(some() if vector is None else vector))


def framed(data: bytes, **options) -> bytes:
    parameters = {getattr(zstd.CompressionParameter, name): value for name, value in options.items()}
    return zstd.compress(data, options=parameters)


def test_a_payload_is_packed_where_that_is_shorter():
    payload = build("q4+zstd").encode(some())
    assert payload[:1] == PACKED
    assert len(payload) < 0.9 * len(inner())
    assert zstd.decompress(payload[1:]) == inner()


def test_a_payload_that_cannot_be_packed_costs_one_byte():
    noise = np.random.default_rng(1).integers(-127, 128, SIZE).astype(np.float32)
    payload = build("q8+zstd").encode(noise)
    assert payload == PLAIN + build("q8").encode(noise)
    assert len(payload) == build("q8+zstd").size_bytes(SIZE)


def test_a_long_payload_goes_through_in_pieces():
    vector = some(1_000_000)
    vector[300_000:700_000] = 0
    payload = build("q8+zstd").encode(vector)
    assert payload[:1] == PACKED
    assert bytes(zstd.decompress(payload[1:])) == bytes(build("q8").encode(vector))
    assert build("q8+zstd").decode(payload, vector.size).tobytes() == build("q8").quantize_rows(vector[None]).tobytes()


@pytest.mark.parametrize("level", [-7, 1, 3, 19])
@pytest.mark.parametrize("checksum", [0, 1])
def test_frames_of_any_level_are_read(level, checksum):
    vector = some()
    vector[100:-100] = 0
    frame = framed(inner(vector), compression_level=level, checksum_flag=checksum)
    assert len(frame) < 600
    assert build("q4+zstd").decode(PACKED + frame, SIZE).tobytes() == build("q4").decode(inner(vector), SIZE).tobytes()


GOOD = framed(inner())
ZEROS = bytes(len(inner()))
SKIPPABLE = b"\x50\x2a\x4d\x18\x02\x00\x00\x00ab"
REFUSED = {
    "nothing": b"",
    "no frame": PACKED,
    "an unknown marker": b"\x02" + inner(),
    "a short plain payload": PLAIN + inner()[:-1],
    "a long plain payload": PLAIN + inner() + b"a",
    "a frame cut off": PACKED + GOOD[:-1],
    "a frame cut in its header": PACKED + GOOD[:5],
    "a byte after the frame": PACKED + GOOD + b"a",
    "an empty frame after the frame": PACKED + GOOD + framed(b""),
    "a skippable frame after the frame": PACKED + GOOD + SKIPPABLE,
    "a skippable frame before the frame": PACKED + SKIPPABLE + GOOD,
    "two frames that hold it together": PACKED + framed(ZEROS[:1000]) + framed(ZEROS[1000:]),
    "a frame of less": PACKED + framed(ZEROS[:-1]),
    "a frame of more": PACKED + framed(ZEROS + b"a"),
    "a frame of much more": PACKED + framed(bytes(10_000_000)),
    "a frame that does not say how much": PACKED + framed(ZEROS, content_size_flag=0),
    "a frame no shorter than its content": PACKED + framed(np.random.default_rng(0).bytes(len(inner()))),
    "a wrong checksum": PACKED + framed(inner(), checksum_flag=1)[:-1] + b"a",
    "no frame but bytes": PACKED + b"abcdefghijklmnop",
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_payload_that_is_not_one_frame_of_the_size_due_is_a_peer_fault(name):
    with pytest.raises(PeerFault):
        build("q4+zstd").decode(REFUSED[name], SIZE)


def test_zeros_in_a_frame_would_have_been_read():
    """Else the cases above might be refused for what they hold."""
    assert not build("zstd").decode(PACKED + framed(bytes(4 * SIZE)), SIZE).any()


def test_every_payload_is_read_however_little_it_gains_by_packing():
    noise = np.random.default_rng(1).integers(-127, 128, 900).astype(np.float32)
    for zeros in range(200):
        vector = np.concatenate([noise, np.zeros(zeros, np.float32)])
        decoded = build("q8+zstd").decode(build("q8+zstd").encode(vector), vector.size)
        assert decoded.tobytes() == build("q8").quantize_rows(vector[None]).tobytes()


def test_what_follows_a_frame_is_refused_where_a_piece_of_input_ends_with_the_frame(monkeypatch):
    monkeypatch.setattr("p2pfl.compress.entropy.INPUT_BYTES", len(GOOD))
    assert build("q4+zstd").decode(PACKED + GOOD, SIZE).any()
    with pytest.raises(PeerFault, match="follows"):
        build("q4+zstd").decode(PACKED + GOOD + b"a", SIZE)


def lying_frame(claimed: int, window_log: int | None = None) -> bytes:
    """A header that claims much, and one block of zeros."""
    window = b"" if window_log is None else bytes([(window_log - 10) << 3])
    descriptor = bytes([0x80 | (0x20 if window_log is None else 0)])
    return b"\x28\xb5\x2f\xfd" + descriptor + window + claimed.to_bytes(4, "little") + b"\x0b\x00\x00\x00"


def blocks(*sizes: int) -> bytes:
    """Blocks of one repeated zero each (RFC 8878, 3.1.1.2): last | type 1 << 1 | size << 3, and the byte."""
    last = [number == len(sizes) for number in range(1, len(sizes) + 1)]
    headers = [(ends | 1 << 1 | size << 3).to_bytes(3, "little") for ends, size in zip(last, sizes, strict=True)]
    return b"".join(header + b"\0" for header in headers)


def holding(claimed: int, *sizes: int, window_log: int | None = None) -> bytes:
    return PACKED + lying_frame(claimed, window_log)[:-4] + blocks(*sizes)


DUE = 4 * SIZE


def test_a_frame_of_blocks_that_hold_what_the_header_says_would_have_been_read():
    assert not build("zstd").decode(holding(DUE, DUE - 9, 9), SIZE).any()


@pytest.mark.parametrize(
    "sizes", [(DUE, DUE), (DUE, 1), (DUE - 1, 1, 1), (DUE - 1, 9, 9), (DUE, 0, 1), (9,), (DUE - 1,)]
)
def test_a_frame_whose_blocks_hold_more_or_less_than_its_header_says_is_a_peer_fault(sizes):
    assert zstd.get_frame_info(holding(DUE, *sizes)[1:]).decompressed_size == DUE
    with pytest.raises(PeerFault):
        build("zstd").decode(holding(DUE, *sizes), SIZE)


BLOCK = 128 << 10
LARGE = 100_000
"""With a window smaller than this the library hands out what it has decoded before it compares with what was said."""


@pytest.mark.parametrize("sizes", [(BLOCK, BLOCK, BLOCK, BLOCK, 0), (BLOCK, BLOCK, BLOCK, 9000, 9), (BLOCK,) * 40])
def test_a_large_frame_that_holds_more_than_its_header_says_is_a_peer_fault(sizes):
    whole = (BLOCK, BLOCK, BLOCK, 4 * LARGE - 3 * BLOCK)
    assert not build("zstd").decode(holding(4 * LARGE, *whole, window_log=17), LARGE).any()
    with pytest.raises(PeerFault, match="more than it says"):
        build("zstd").decode(holding(4 * LARGE, *sizes, window_log=17), LARGE)


class EndsEarly:
    """A library that would not compare what a frame holds with what its header says."""

    eof = False
    needs_input = True
    unused_data = b""

    def decompress(self, given, most):
        self.eof = True
        return bytes(min(9, most))


def test_memory_that_no_frame_has_filled_is_never_decoded(monkeypatch):
    """It would hold what this process had there before."""
    monkeypatch.setattr(_library(), "ZstdDecompressor", lambda **_: EndsEarly())
    with pytest.raises(PeerFault, match="ends early"):
        build("zstd").decode(holding(DUE, DUE), SIZE)


def test_the_header_of_the_lying_frames_is_what_it_should_be():
    assert zstd.get_frame_info(lying_frame(SIZE)).decompressed_size == SIZE
    assert zstd.get_frame_info(lying_frame(SIZE, 27)).decompressed_size == SIZE


@pytest.mark.parametrize("claimed", [1, SIZE, 2**31])
@pytest.mark.parametrize("window_log", [None, 10, 22, 27, 31])
def test_a_small_frame_that_claims_much_is_refused_before_memory_is_taken(claimed, window_log):
    payload = PACKED + lying_frame(claimed, window_log)
    tracemalloc.start()
    with pytest.raises(PeerFault):
        build("zstd").decode(payload, 10_000_000)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 100_000


def test_a_window_larger_than_the_content_needs_is_refused_before_memory_is_taken():
    """The library takes it for a frame that is not there as a whole yet, so the last byte is missing here."""
    for window_log, reason in ((14, "truncated"), (15, "too much memory"), (31, "too much memory")):
        with pytest.raises(PeerFault, match=reason):
            build("zstd").decode(PACKED + lying_frame(4 * SIZE, window_log)[:-1], SIZE)


def test_no_frame_is_made_with_a_window_that_would_be_refused():
    data = np.random.default_rng(1).integers(0, 4, 5_000_000, np.uint8)
    out = np.empty(data.size, np.uint8)
    used = compress_frame(data, out, level=9)
    assert np.array_equal(decompress_frame(out[:used], data.size), data)


def test_a_frame_that_does_not_fit_is_given_up():
    data = np.frombuffer(np.random.default_rng(1).bytes(1_000_000), np.uint8)
    assert compress_frame(data, np.empty(data.size - 1, np.uint8)) is None


def test_the_library_is_loaded_only_for_chains_that_use_it():
    code = (
        "import sys, numpy as np, p2pfl.compress as c\n"
        "loaded = lambda: any('zstd' in name and not name.startswith('p2pfl') for name in sys.modules)\n"
        "c.make_compressor('top-k:0.1+q8').encode(np.ones(9, np.float32))\n"
        "assert not loaded()\n"
        "c.make_compressor('q8+zstd').encode(np.ones(9, np.float32))\n"
        "assert loaded()\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
