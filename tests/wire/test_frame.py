"""Messages become frames and come back the same; the bytes are pinned; what is out of range is refused."""

from __future__ import annotations

import struct
import sys
import typing

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from p2pfl.core.messages import (
    Ask,
    Busy,
    CharterAsked,
    CharterPart,
    CharterTold,
    Done,
    Hello,
    LivesTold,
    Message,
    ProposalPart,
    ProposalsHeld,
    Ready,
    Reply,
    Request,
    Resign,
    Resync,
    VitalsTold,
    request_digest,
)
from p2pfl.errors import PeerFault
from p2pfl.wire import PREFIX_BYTES, Prefix, decode, decode_prefix, encode
from p2pfl.wire.headers import BY_MESSAGE, KINDS, MAX_HEADER_BYTES, from_header, to_header

D1, D2, D3 = (bytes([number]) * 16 for number in (1, 2, 3))

HELLO = Hello(
    incarnation=1,
    seq=300,
    pending=None,
    request_digest=b"",
    has_replicas=True,
    chain=D1,
    chain_before=D2,
    version=70000,
    closing=None,
    level=None,
    done=False,
    have_yours=True,
    generation=2,
    life=70001,
    process=70002,
    trained=9,
    bound=40,
    begun=b"\x07",
    through=b"\x02",
)
REQUEST = Request(
    incarnation=1,
    seq=2,
    version=3,
    echo=None,
    weight=0.5,
    staleness=1.0,
    pace_s=0.25,
    terms=(3.0,),
    audit=b"",
    body=b"\x01\x02\x03",
)
REPLY = Reply(
    incarnation=1,
    seq=2,
    request_digest=D3,
    version=4,
    factor=0.125,
    pace_s=2.0,
    terms=(0.125,),
    weight=0.75,
    body=b"\xff",
)

# Prefix, header and body apart. Changing any of these means another protocol: raise its version along with them.
GOLDEN = [
    (
        HELLO,
        "7032 08 01 0000 4b000000 0000000000000000",
        (
            "dc001301cd012cc0c400c3c41001010101010101010101010101010101c41002020202020202020202020202020202"
            "ce00011170c0c0c2c302ce00011171ce000111720928c40107c40102"
        ),
        "",
    ),
    (
        REQUEST,
        "7032 08 02 0000 2c000000 0300000000000000",
        "99010203c0cb3fe0000000000000cb3ff0000000000000cb3fd000000000000091cb4008000000000000c400",
        "010203",
    ),
    (
        REPLY,
        "7032 08 03 0000 3b000000 0100000000000000",
        (
            "980102c4100303030303030303030303030303030304cb3fc0000000000000cb4000000000000000"
            "91cb3fc0000000000000cb3fe8000000000000"
        ),
        "ff",
    ),
    (Ready(version=128), "7032 08 04 0000 0c000000 0000000000000000", "98cc80c0c0000000c400c400", ""),
    (
        Ready(version=9, closing=3, trained=8, bound=40, known=70003, begun=b"\x0f", through=b"\x01"),
        "7032 08 04 0000 11000000 0000000000000000",
        "980903c00828ce00011173c4010fc40101",
        "",
    ),
    (Ready(version=0, level=2), "7032 08 04 0000 0b000000 0000000000000000", "9800c002000000c400c400", ""),
    (Resync(incarnation=5), "7032 08 05 0000 02000000 0000000000000000", "9105", ""),
    (
        Ask(incarnation=1, seq=2, request_digest=D3),
        "7032 08 06 0000 15000000 0000000000000000",
        "930102c41003030303030303030303030303030303",
        "",
    ),
    (
        Busy(incarnation=1, seq=2, retry_after_s=1.5),
        "7032 08 07 0000 0c000000 0000000000000000",
        "930102cb3ff8000000000000",
        "",
    ),
    (Done(version=9), "7032 08 08 0000 02000000 0000000000000000", "9109", ""),
    (LivesTold(lives=((3, 1, 70001),)), "7032 08 09 0000 0a000000 0000000000000000", "9191930301ce00011171", ""),
    (Resign(process=7, other_ms=9), "7032 08 0a 0000 03000000 0000000000000000", "920709", ""),
    (CharterTold(version=3, fingerprint=D1), "7032 08 0b 0000 14000000 0000000000000000", f"9203c410{'01' * 16}", ""),
    (CharterAsked(version=2), "7032 08 0c 0000 02000000 0000000000000000", "9102", ""),
    (CharterPart(size=9, offset=4, part=b"ab"), "7032 08 0d 0000 07000000 0000000000000000", "930904c4026162", ""),
    (ProposalsHeld(held=b"\x05", agreed=b""), "7032 08 0f 0000 06000000 0000000000000000", "92c40105c400", ""),
    (
        ProposalPart(member=2, size=9, offset=4, part=b"ab"),
        "7032 08 10 0000 08000000 0000000000000000",
        "94020904c4026162",
        "",
    ),
    (VitalsTold(rows=((3, b"row"),)), "7032 08 0e 0000 09000000 0000000000000000", "91919203c403726f77", ""),
]

counters = st.integers(0, 2**53 - 1)
amounts = st.floats(0, allow_nan=False, allow_infinity=False)
digests = st.binary(min_size=16, max_size=16)
digests_or_empty = digests | st.just(b"")
bodies = st.binary(max_size=2000)
bitmaps = st.binary(max_size=100)

MESSAGES = st.one_of(
    st.builds(
        Hello,
        incarnation=counters,
        seq=counters,
        pending=st.none() | counters,
        request_digest=digests_or_empty,
        has_replicas=st.booleans(),
        chain=digests,
        chain_before=digests,
        version=counters,
        closing=st.none() | counters,
        level=st.none() | counters,
        done=st.booleans(),
        have_yours=st.booleans(),
        generation=counters,
        life=counters,
        process=counters,
        trained=counters,
        bound=counters,
        begun=bitmaps,
        through=bitmaps,
    ),
    st.builds(
        Request,
        incarnation=counters,
        seq=counters,
        version=counters,
        echo=st.none() | counters,
        weight=amounts,
        staleness=st.floats(0, 1),
        pace_s=amounts,
        terms=st.lists(amounts, max_size=3).map(tuple),
        audit=digests_or_empty,
        body=bodies,
    ),
    st.builds(
        Reply,
        incarnation=counters,
        seq=counters,
        request_digest=digests,
        version=counters,
        factor=amounts,
        pace_s=amounts,
        terms=st.lists(amounts, max_size=3).map(tuple),
        body=bodies,
    ),
    st.builds(
        Ready,
        version=counters,
        closing=counters | st.none(),
        level=counters | st.none(),
        trained=counters,
        bound=counters,
        known=counters,
        begun=bitmaps,
        through=bitmaps,
    ),
    st.builds(LivesTold, lives=st.lists(st.tuples(counters, counters, counters), max_size=256).map(tuple)),
    st.builds(Resign, process=counters, other_ms=counters),
    st.builds(
        VitalsTold,
        rows=st.lists(st.tuples(counters, st.binary(min_size=1, max_size=384)), max_size=16).map(tuple),
    ),
    st.builds(Resync, incarnation=counters),
    st.builds(Ask, incarnation=counters, seq=counters, request_digest=digests),
    st.builds(Busy, incarnation=counters, seq=counters, retry_after_s=st.floats(0, 3600)),
    st.builds(Done, version=counters),
    st.builds(CharterTold, version=counters, fingerprint=st.binary(max_size=32)),
    st.builds(CharterAsked, version=counters),
    st.builds(ProposalsHeld, held=bitmaps, agreed=digests_or_empty),
    st.builds(ProposalPart, member=counters, size=counters, offset=counters, part=st.binary(min_size=1, max_size=100)),
    st.builds(CharterPart, size=counters, offset=counters, part=st.binary(min_size=1, max_size=100)),
)


def decode_whole(head, body):
    prefix = decode_prefix(head[:PREFIX_BYTES], max_body_bytes=len(body))
    return decode(prefix, head[PREFIX_BYTES:], body)


def received(message):
    """How the far end sees it: a request with its digest."""
    if isinstance(message, Request):
        return replace(message, digest=request_digest(message))
    return message


@given(MESSAGES)
def test_every_message_comes_back_as_it_was(message):
    head, body = encode(message)
    assert decode_whole(head, body) == received(message)


@pytest.mark.parametrize(("message", "prefix", "header", "body"), GOLDEN, ids=lambda value: type(value).__name__)
def test_the_bytes_of_every_message_are_pinned(message, prefix, header, body):
    head, flat = encode(message)
    assert head[:PREFIX_BYTES] == bytes.fromhex(prefix)
    assert head[PREFIX_BYTES:] == bytes.fromhex(header)
    assert flat == bytes.fromhex(body)
    assert decode_whole(head, flat) == received(message)


def test_every_message_has_a_kind_and_every_kind_a_golden_frame():
    assert set(BY_MESSAGE) == set(typing.get_args(Message)) == {type(row[0]) for row in GOLDEN}


def test_a_header_has_exactly_the_fields_that_travel():
    for kind in KINDS:
        travelling = set(kind.message.__struct_fields__) - {"body", "digest"}
        assert set(kind.header.__struct_fields__) == travelling


def test_headers_stay_below_a_hundred_bytes_in_the_first_billion_rounds():
    big = 10**9
    hello = replace(HELLO, incarnation=big, seq=big, pending=big, request_digest=D3, version=big)
    request = replace(REQUEST, incarnation=big, seq=big, version=big, echo=big, audit=D1)
    reply = replace(REPLY, incarnation=big, seq=big, version=big)
    assert max(len(to_header(message)) for message in (request, reply)) < 100
    assert len(to_header(hello)) < 130  # once in a session


def test_the_body_is_not_copied():
    vector = np.arange(1000, dtype=np.float32)
    _, body = encode(replace(REQUEST, body=vector))
    assert np.shares_memory(np.frombuffer(body, np.float32), vector)
    decoded = decode_whole(*encode(replace(REQUEST, body=vector)))
    assert np.shares_memory(np.frombuffer(decoded.body, np.float32), vector)


@pytest.mark.parametrize("body", [b"", bytearray(), memoryview(b""), np.empty(0, np.float32)])
def test_an_empty_body_is_a_body(body):
    head, flat = encode(replace(REPLY, body=body))
    assert flat.nbytes == 0
    assert decode_whole(head, flat).body == b""


def test_a_decoded_body_cannot_be_written_to():
    head, _ = encode(REPLY)
    assert decode_whole(head, bytearray(b"x")).body.readonly


def test_numpys_floats_travel_as_floats():
    message = replace(REPLY, factor=np.float64(0.25))
    assert decode_whole(*encode(message)).factor == 0.25


# --- limits -------------------------------------------------------------------------------------------------------


def pack(*, magic=b"p2", version=8, code=2, flags=0, header_bytes=10, body_bytes=10):
    return struct.pack("<2sBBHIQ", magic, version, code, flags, header_bytes, body_bytes)


def test_a_prefix_within_the_limits_is_accepted():
    prefix = decode_prefix(pack(header_bytes=MAX_HEADER_BYTES, body_bytes=100), max_body_bytes=100)
    assert prefix == Prefix(kind=BY_MESSAGE[Request], header_bytes=65536, body_bytes=100)
    assert prefix.frame_bytes == 18 + 65536 + 100


@pytest.mark.parametrize(
    ("raw", "reason"),
    [
        (pack()[:-1], "17 bytes instead of 18"),
        (pack() + b"\0", "19 bytes instead of 18"),
        (pack(magic=b"P2"), "begins with"),
        (pack(version=1), "version 1, this node version 8"),
        (pack(version=0), "version 0, this node version 8"),
        (pack(code=0), "unknown type 0"),
        (pack(code=200), "unknown type 200"),
        (pack(flags=1), "unknown flags 0x1"),
        (pack(header_bytes=MAX_HEADER_BYTES + 1), "limit 65536, 100"),
        (pack(header_bytes=2**32 - 1), "limit 65536, 100"),
        (pack(body_bytes=101), "limit 65536, 100"),
        (pack(body_bytes=2**64 - 1), "limit 65536, 100"),
        (pack(code=3, body_bytes=101), "limit 65536, 100"),
        *((pack(code=code, body_bytes=1), "limit 65536, 0") for code in (1, 4, 5, 6, 7, 8)),
    ],
)
def test_a_prefix_that_breaks_a_limit_is_refused_for_that_reason(raw, reason):
    with pytest.raises(PeerFault, match=reason):
        decode_prefix(raw, max_body_bytes=100)


@pytest.mark.parametrize(("header", "body"), [(b"x" * 9, bytes(10)), (b"x" * 10, bytes(11)), (b"", b"")])
def test_a_frame_that_is_not_as_long_as_announced_is_refused(header, body):
    with pytest.raises(PeerFault, match="not as long"):
        decode(decode_prefix(pack(), max_body_bytes=100), header, body)


# --- the header ---------------------------------------------------------------------------------------------------


def header_with(message, name, value):
    """The header of `message` with one field put to anything at all."""
    kind = BY_MESSAGE[type(message)]
    values = [value if each == name else getattr(message, each) for each in kind.header.__struct_fields__]
    return kind, msgspec.msgpack.encode(values)


COUNTERS_OUT = [-1, 2**53, 2**64 - 1, 1.0, True, "1", b"1", [], {}]
FLOATS_OUT = [-0.5, -sys.float_info.min, float("nan"), float("inf"), float("-inf"), None, "1", True]
DIGESTS_OUT = [bytes(15), bytes(17), bytes(1), "x" * 16, None, 0]
OUT_OF_RANGE = {
    (HELLO, "incarnation"): [*COUNTERS_OUT, None],
    (HELLO, "pending"): COUNTERS_OUT,
    (HELLO, "request_digest"): DIGESTS_OUT,
    (HELLO, "has_replicas"): [0, 1, None, "true"],
    (HELLO, "chain"): [*DIGESTS_OUT, b""],
    (HELLO, "chain_before"): [*DIGESTS_OUT, b""],
    (REQUEST, "seq"): [*COUNTERS_OUT, None],
    (REQUEST, "echo"): COUNTERS_OUT,
    (REQUEST, "weight"): FLOATS_OUT,
    (REQUEST, "staleness"): [*FLOATS_OUT, 1.0000001, 2],
    (REQUEST, "pace_s"): FLOATS_OUT,
    (REQUEST, "audit"): DIGESTS_OUT,
    (REPLY, "request_digest"): [*DIGESTS_OUT, b""],
    (REPLY, "version"): [*COUNTERS_OUT, None],
    (REPLY, "factor"): FLOATS_OUT,
    (REPLY, "pace_s"): FLOATS_OUT,
    (Ready(version=0), "version"): [*COUNTERS_OUT, None],
    (Ready(version=0), "closing"): COUNTERS_OUT,
    (Ready(version=0), "level"): COUNTERS_OUT,
    (Resync(incarnation=0), "incarnation"): [*COUNTERS_OUT, None],
    (Ask(incarnation=0, seq=0, request_digest=D1), "request_digest"): [*DIGESTS_OUT, b""],
    (Busy(incarnation=0, seq=0, retry_after_s=0), "retry_after_s"): [*FLOATS_OUT, 3600.001],
    (Done(version=0), "version"): [*COUNTERS_OUT, None],
}


@pytest.mark.parametrize(
    ("message", "name", "value"),
    [(message, name, value) for (message, name), values in OUT_OF_RANGE.items() for value in values],
    ids=lambda value: type(value).__name__ if isinstance(value, Message) else repr(value),
)
def test_a_value_out_of_range_is_refused_from_a_peer_and_never_sent(message, name, value):
    kind, raw = header_with(message, name, value)
    with pytest.raises(PeerFault):
        from_header(kind, raw, memoryview(b""))
    with pytest.raises(ValueError, match="cannot be sent"):
        to_header(replace(message, **{name: value}))


def test_trailing_missing_or_additional_fields_are_refused():
    for message, *_ in GOLDEN:
        kind, raw = header_with(message, "", None)
        values = msgspec.msgpack.decode(raw)
        for wrong in ([*values, 0], values[:-1], [], None, dict(enumerate(values)), [values]):
            with pytest.raises(PeerFault):
                from_header(kind, msgspec.msgpack.encode(wrong), memoryview(b""))
        for wrong in (raw + b"\0", raw[:-1], b""):
            with pytest.raises(PeerFault):
                from_header(kind, wrong, memoryview(b""))


@pytest.mark.parametrize("nested", [b"\x91", b"\x81\x01", b"\xdd\xff\xff\xff\xff", b"\xdf\xff\xff\xff\xff"])
def test_a_deep_or_boastful_header_is_refused_at_once(nested):
    for kind in KINDS:
        with pytest.raises(PeerFault):
            from_header(kind, nested * (MAX_HEADER_BYTES // len(nested)), memoryview(b""))


def test_a_decoded_request_names_itself_by_its_digest():
    decoded = decode_whole(*encode(REQUEST))
    assert decoded.digest == request_digest(REQUEST) != b""
    assert decode_whole(*encode(replace(REQUEST, digest=D1))).digest == decoded.digest
