"""An open session: everything but the next chunk, in order, ends it."""

from __future__ import annotations

import gc
from itertools import pairwise
from types import FunctionType, ModuleType

import pytest
from nacl.bindings import crypto_secretstream_xchacha20poly1305_TAG_PUSH

from p2pfl.crypto.session import MAX_SEALED_BYTES, Session, SessionKeys
from p2pfl.errors import PeerFault
from p2pfl.limits import CHUNK_BYTES

FORTH, BACK = bytes(range(32)), bytes(range(32, 64))


def make_pair(**options):
    session_id = bytes(32)
    keys = SessionKeys(send=FORTH, receive=BACK, session_id=session_id, peer_public=b"b" * 32)
    mirrored = SessionKeys(send=BACK, receive=FORTH, session_id=session_id, peer_public=b"a" * 32)
    return Session(keys, **options), Session(mirrored, **options)


def assert_dead(session):
    for call in (lambda: session.seal(b"x"), lambda: session.open(bytes(100))):
        with pytest.raises(PeerFault, match="dead"):
            call()


def test_chunks_arrive_in_both_directions_in_order():
    left, right = make_pair()
    chunks = [b"", b"one", memoryview(b"two"), bytes(CHUNK_BYTES)]
    for chunk in chunks:
        assert right.open(left.seal(chunk)) == (bytes(chunk), False)
        assert left.open(right.seal(chunk)) == (bytes(chunk), False)
    assert left.peer_public == b"b" * 32
    assert left.session_id == right.session_id


def test_no_sealed_chunk_exceeds_the_declared_maximum():
    left, _ = make_pair()
    assert len(left.seal(bytes(CHUNK_BYTES))) == MAX_SEALED_BYTES


def test_the_same_chunk_never_looks_the_same_twice():
    left, right = make_pair()
    sealed = [left.seal(b"same"), left.seal(b"same"), right.seal(b"same"), make_pair()[0].seal(b"same")]
    assert len({item[-21:] for item in sealed}) == 4


TAMPERED = {
    "replayed": lambda first, second, _: [first, second, second],
    "dropped or overtaken": lambda first, _, third: [first, third],
    "first repeated": lambda first, *_: [first, first],
    "started late": lambda _, second, __: [second],
    "cut": lambda first, second, _: [first, second[:-1]],
    "cut to nothing": lambda first, *_: [first, b""],
    "first cut within its header": lambda first, *_: [first[:23]],
    "first cut after its header": lambda first, *_: [first[:24]],
    "extended": lambda first, second, _: [first, second + b"\0"],
    "header repeated": lambda first, second, _: [first, first[:24] + second],
    "over long": lambda first, *_: [first, bytes(MAX_SEALED_BYTES + 1)],
}


@pytest.mark.parametrize("tamper", TAMPERED.values(), ids=TAMPERED)
def test_a_stream_that_was_tampered_with_ends_the_session(tamper):
    left, right = make_pair()
    *good, bad = tamper(*(left.seal(bytes([number]) * 9) for number in range(3)))
    for sealed in good:
        right.open(sealed)
    with pytest.raises(PeerFault):
        right.open(bad)
    assert_dead(right)


@pytest.mark.parametrize("place", range(24 + 17 + 5))
def test_every_flipped_byte_is_found(place):
    left, right = make_pair()
    sealed = bytearray(left.seal(b"chunk"))
    sealed[place] ^= 0x01
    with pytest.raises(PeerFault):
        right.open(bytes(sealed))
    assert_dead(right)


def test_a_chunk_sent_back_to_its_sender_is_refused():
    left, _ = make_pair()
    with pytest.raises(PeerFault):
        left.open(left.seal(b"mine"))
    assert_dead(left)


def test_a_chunk_of_another_session_under_the_same_keys_is_refused():
    left, right = make_pair()
    right.open(left.seal(b"first"))
    other, _ = make_pair()
    other.seal(b"first")
    with pytest.raises(PeerFault):
        right.open(other.seal(b"second"))


def test_the_final_chunk_says_so_and_nothing_may_follow_it():
    left, right = make_pair()
    sealed = left.seal(b"bye", final=True)
    assert right.open(sealed) == (b"bye", True)
    assert left.open(right.seal(b"bye", final=True)) == (b"bye", True)
    with pytest.raises(PeerFault, match="after the final one"):
        right.open(sealed)
    assert_dead(right)


@pytest.mark.parametrize("final", [True, False])
def test_sealing_what_the_protocol_forbids_is_our_own_mistake(final):
    left, _ = make_pair()
    left.seal(b"", final=final)
    with pytest.raises(ValueError, match="chunk"):
        left.seal(b"" if final else bytes(CHUNK_BYTES + 1))
    assert_dead(left)


def test_a_tag_that_no_node_of_ours_sets_is_refused(monkeypatch):
    left, right = make_pair()
    monkeypatch.setattr("p2pfl.crypto.session._MESSAGE", crypto_secretstream_xchacha20poly1305_TAG_PUSH)
    sealed = left.seal(b"pushed")
    monkeypatch.undo()
    with pytest.raises(PeerFault, match="unknown tag"):
        right.open(sealed)


def stream_key(state):
    return bytes(state.statebuf[0:32])


def test_both_ends_change_the_key_each_time_the_threshold_is_passed():
    left, right = make_pair(rekey_bytes=30)
    keys = []
    for _ in range(9):
        assert right.open(left.seal(b"ten bytes."))[0] == b"ten bytes."
        assert stream_key(left._outbound) == stream_key(right._inbound)
        keys.append(stream_key(left._outbound))
    assert [before != after for before, after in pairwise(keys)] == [False, True, False] * 2 + [False, True]


def bytes_within(thing):
    """Every bytes object that can be reached from `thing` through attributes, containers and buffers."""
    seen, rest = {}, [thing]
    while rest:
        found = rest.pop()
        if id(found) not in seen and not isinstance(found, type | ModuleType | FunctionType):
            seen[id(found)] = found
            rest += gc.get_referents(found)
            rest += [bytes(found.statebuf)] if hasattr(found, "statebuf") else []
    return [found for found in seen.values() if isinstance(found, bytes)]


@pytest.mark.parametrize("key", [FORTH, BACK], ids=["forth", "back"])
def test_no_key_of_a_direction_outlives_its_first_chunk(key):
    """From it and a recording, everything up to the first change of keys could be read."""
    left, right = make_pair()
    assert [any(key in found for found in bytes_within(one)) for one in (left, right)].count(True) == 1
    right.open(left.seal(b"first"))
    left.open(right.seal(b"first"))
    assert not [found for one in (left, right) for found in bytes_within(one) if key in found]


def test_two_calls_at_once_in_one_direction_are_our_own_mistake():
    left, right = make_pair()
    with left._out_lock, pytest.raises(RuntimeError, match="at once"):
        left.seal(b"x")
    assert right.open(left.seal(b"x")) == (b"x", False)
