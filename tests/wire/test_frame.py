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
from message_kit import D1, D3, GOLDEN, HELLO, REPLY, REQUEST
from msgspec.structs import replace

from p2pfl.core import Ask, Busy, Done, Hello, Message, Ready, Request, Resync, request_digest
from p2pfl.errors import PeerFault
from p2pfl.limits import MAX_HEADER_BYTES
from p2pfl.wire import (
    BY_MESSAGE,
    KINDS,
    PREFIX_BYTES,
    Offer,
    PartHeld,
    Prefix,
    Receipt,
    Side,
    Unknown,
    decode,
    decode_prefix,
    encode,
    encode_known,
    from_header,
    to_header,
)

counters = st.integers(0, 2**53 - 1)
amounts = st.floats(0, allow_nan=False, allow_infinity=False)
digests = st.binary(min_size=16, max_size=16)
digests_or_empty = digests | st.just(b"")
channels = st.from_regex(r"[a-z]{1,9}/[1-9]", fullmatch=True)
some_amounts = st.lists(amounts, max_size=3).map(tuple)

VALUES = {
    **dict.fromkeys(("pending", "echo", "closing", "level"), st.none() | counters),
    **dict.fromkeys(("weight", "factor", "pace_s"), amounts),
    **dict.fromkeys(("request_digest", "chain", "chain_before", "digest"), digests),
    **dict.fromkeys(("has_replicas", "done", "have_yours"), st.booleans()),
    **dict.fromkeys(("begun", "through"), st.binary(max_size=100)),
    **dict.fromkeys(("least", "most"), st.integers(0, 255)),
    "staleness": st.floats(0, 1),
    "retry_after_s": st.floats(0, 3600),
    "terms": some_amounts,
    "audit": digests_or_empty,
    "body": st.binary(max_size=2000),
    "lives": st.lists(st.tuples(counters, counters, counters), max_size=256).map(tuple),
    "channels": st.lists(channels, max_size=64).map(tuple),
    "channel": channels,
}
"""What a field of that name holds in a message; all others count."""


def any_of(message):
    own = {Hello: {"request_digest": digests_or_empty}, Request: {"digest": st.just(b"")}}.get(message, {})
    return st.builds(message, **{name: own.get(name, VALUES.get(name, counters)) for name in message.__struct_fields__})


MESSAGES = st.one_of(*map(any_of, BY_MESSAGE))


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


@pytest.mark.parametrize(("message", "prefix", "header", "body"), GOLDEN, ids=lambda value: type(value).__name__)
def test_the_bytes_of_the_version_before_differ_in_that_byte_alone(message, prefix, header, body):
    head, flat = encode(message, 9)
    assert (head + flat).hex() == f"703209{prefix[7:]}{header}{body}".replace(" ", "")
    assert decode_whole(head, flat) == received(message)


def test_a_request_that_was_applied_is_known_by_its_digest():
    request = received(REQUEST)
    raw = encode_known(request, 10)
    assert len(raw) == len(encode(replace(REQUEST, body=b""))[0]) + 16
    prefix = decode_prefix(raw[:PREFIX_BYTES], max_body_bytes=100)
    there = PREFIX_BYTES + prefix.header_bytes
    assert decode(prefix, raw[PREFIX_BYTES:there], raw[there:]) == replace(request, body=b"")
    short = prefix.__class__(**{name: getattr(prefix, name) for name in prefix.__struct_fields__} | {"body_bytes": 3})
    with pytest.raises(PeerFault, match="digest of 3 bytes"):
        decode(short, raw[PREFIX_BYTES:there], b"abc")


def test_every_message_has_a_kind_and_every_kind_a_golden_frame():
    assert (
        set(BY_MESSAGE)
        == {*typing.get_args(Message), Offer, Side, PartHeld, Receipt}
        == {type(row[0]) for row in GOLDEN}
    )


def test_a_header_has_exactly_the_fields_that_travel():
    for kind in KINDS:
        travelling = set(kind.message.__struct_fields__) - ({"body", "digest"} if kind.has_body else set())
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


def pack(*, magic=b"p2", version=9, code=2, flags=0, header_bytes=10, body_bytes=10):
    return struct.pack("<2sBBHIQ", magic, version, code, flags, header_bytes, body_bytes)


def test_a_prefix_within_the_limits_is_accepted():
    prefix = decode_prefix(pack(header_bytes=MAX_HEADER_BYTES, body_bytes=100), max_body_bytes=100)
    assert prefix == Prefix(code=2, kind=BY_MESSAGE[Request], header_bytes=65536, body_bytes=100, version=9)
    assert prefix.frame_bytes == 18 + 65536 + 100


@pytest.mark.parametrize(
    ("raw", "reason"),
    [
        (pack()[:-1], "17 bytes instead of 18"),
        (pack() + b"\0", "19 bytes instead of 18"),
        (pack(magic=b"P2"), "begins with"),
        (pack(version=1), "version 1, this node version 9 or 10"),
        (pack(version=0), "version 0, this node version 9 or 10"),
        (pack(version=8), "version 8, this node version 9 or 10"),
        (pack(code=0), "unknown type 0 with 10 bytes of header and 10 of body"),
        (pack(code=200), "unknown type 200 with"),
        (pack(flags=1), "unknown flags 0x1"),
        (pack(version=10, flags=3), "unknown flags 0x3"),
        (pack(version=10, flags=4), "unknown flags 0x4"),
        (pack(version=10, flags=1, code=4), "unknown flags 0x1"),
        (pack(version=10, flags=1, code=200), "unknown flags 0x1"),
        (pack(version=10, flags=2, code=3), "unknown flags 0x2"),
        (pack(version=10, flags=2, body_bytes=17), "limit 65536, 16"),
        (pack(header_bytes=MAX_HEADER_BYTES + 1), "limit 65536, 100"),
        (pack(header_bytes=2**32 - 1), "limit 65536, 100"),
        (pack(body_bytes=101), "limit 65536, 100"),
        (pack(body_bytes=2**64 - 1), "limit 65536, 100"),
        (pack(code=3, body_bytes=101), "limit 65536, 100"),
        *((pack(code=code, body_bytes=1), "limit 65536, 0") for code in (1, 4, 5, 6, 7, 8, 11, 12, 13, 14)),
    ],
)
def test_a_prefix_that_breaks_a_limit_is_refused_for_that_reason(raw, reason):
    with pytest.raises(PeerFault, match=reason):
        decode_prefix(raw, max_body_bytes=100)


def test_a_message_of_a_type_that_newer_software_may_have_is_left_out():
    prefix = decode_prefix(pack(code=200, body_bytes=0), max_body_bytes=100)
    assert decode(prefix, b"x" * 10, b"") == Unknown(code=200)


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
    (Offer(least=9, most=9, channels=()), "most"): [-1, 256, None, "9"],
    (Offer(least=9, most=9, channels=()), "channels"): [("a/1",) * 65, ("",), ("a" * 33,), ("A/1",), ("a\n",), None],
    (Side(channel="a/1", body=b""), "channel"): ["", "a" * 33, "A/1", b"a/1", None],
    (Side(channel="a/1", body=b""), "body"): [bytes(60 * 1024 + 1), 7, None],
    (PartHeld(size=1, digest=D1), "size"): [*COUNTERS_OUT, None],
    (PartHeld(size=1, digest=D1), "digest"): [*DIGESTS_OUT, b""],
    (Receipt(size=1), "size"): [*COUNTERS_OUT, None],
}


@pytest.mark.parametrize(
    ("message", "name"),
    OUT_OF_RANGE,
    ids=lambda value: type(value).__name__ if isinstance(value, Message | Offer | Side | PartHeld | Receipt) else value,
)
def test_a_value_out_of_range_is_refused_from_a_peer_and_never_sent(message, name):
    for value in OUT_OF_RANGE[message, name]:
        kind, raw = header_with(message, name, value)
        with pytest.raises(PeerFault):
            from_header(kind, raw, memoryview(b""))
        with pytest.raises(ValueError, match="cannot be sent"):
            to_header(replace(message, **{name: value}))


@pytest.mark.parametrize(
    ("message", "name", "values"),
    [
        (Busy(incarnation=0, seq=0, retry_after_s=1.0), "retry_after_s", (0.0, 3600.0)),
        (REQUEST, "staleness", (0.0, 1.0)),
        (REPLY, "factor", (0.0, sys.float_info.max)),
        (Done(version=1), "version", (0, 2**53 - 1)),
    ],
    ids=["a delay", "a fraction", "an amount", "a counter"],
)
def test_a_value_at_its_bound_is_sent_and_taken(message, name, values):
    for value in values:
        assert getattr(decode_whole(*encode(replace(message, **{name: value}))), name) == value


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
