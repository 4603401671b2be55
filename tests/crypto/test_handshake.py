"""Everything the handshake refuses. Its bytes are pinned by the page of test vectors."""

from __future__ import annotations

import dataclasses
import gc
import itertools
from types import FunctionType, ModuleType

import pytest
from nacl.bindings import (
    crypto_aead_chacha20poly1305_ietf_decrypt,
    crypto_aead_chacha20poly1305_ietf_encrypt,
)
from nacl.public import PrivateKey

from p2pfl.crypto import OTHERS, FederationMismatch, HandshakeFault, UnlistedKey
from p2pfl.crypto.identity import Identity
from p2pfl.crypto.session import (
    M1_BYTES,
    NONCE,
    FederationBinding,
    Initiator,
    Leg,
    Responder,
    Session,
    digest,
    examine,
    introduce,
    m2_bytes,
    m3_bytes,
    opening_tag,
)

NAMES = ("federation", "task", "training", "gossip", "node", "edges", "model")
FEDERATION = FederationBinding(
    federation_id=bytes([1]) * 32,
    sections=tuple((name, bytes([place]) * 32) for place, name in enumerate(NAMES, start=2)),
)
ALICE, BOB, CAROL, MALLORY = (Identity(bytes([number]) * 32) for number in (11, 12, 13, 14))
LISTED = frozenset({ALICE.public, BOB.public, CAROL.public}).__contains__
E_ALICE, E_BOB = PrivateKey(bytes([21]) * 32), PrivateKey(bytes([22]) * 32)


def make_initiator(identity=ALICE, peer=BOB, federation=FEDERATION):
    return Initiator(identity, peer.public, federation, ephemeral=E_ALICE)


def make_responder(identity=BOB, allowed=LISTED, federation=FEDERATION):
    return Responder(identity, allowed, federation, ephemeral=E_BOB)


def run(initiator, responder):
    """All three messages and both ends' keys."""
    m1 = initiator.first()
    m2 = responder.first(m1)
    m3 = initiator.second(m2)
    return (m1, m2, m3), initiator.keys, responder.third(m3)


(M1, M2, M3), GOOD_KEYS, _ = run(make_initiator(), make_responder())


def initiator_awaiting_m2():
    initiator = make_initiator()
    initiator.first()
    return initiator


def responder_awaiting_m3():
    responder = make_responder()
    responder.first(M1)
    return responder


# Who is asked to take the message, and the message that would have been right.
STEPS = {
    "m1": (lambda: make_responder().first, M1),
    "m2": (lambda: initiator_awaiting_m2().second, M2),
    "m3": (lambda: responder_awaiting_m3().third, M3),
}
each_step = pytest.mark.parametrize(("make_step", "message"), STEPS.values(), ids=STEPS)


def assert_refused(step, message):
    """It is a peer's fault, and nothing can be done with the object afterwards."""
    with pytest.raises(HandshakeFault):
        step(message)
    with pytest.raises(RuntimeError, match="once"):
        step(message)


# --- what is accepted ---------------------------------------------------------------------------------------------


def test_both_ends_get_the_same_keys_and_know_each_other():
    initiator, responder = Initiator(ALICE, BOB.public, FEDERATION), Responder(BOB, LISTED, FEDERATION)
    _, ours, theirs = run(initiator, responder)
    assert (ours.send, ours.receive, ours.session_id) == (theirs.receive, theirs.send, theirs.session_id)
    assert len({ours.send, ours.receive, ours.session_id}) == 3
    assert (ours.peer_public, theirs.peer_public) == (BOB.public, ALICE.public)
    left, right = Session(ours), Session(theirs)
    assert right.open(left.seal(b"hello")) == (b"hello", False)
    assert left.open(right.seal(b"hello")) == (b"hello", False)


def test_the_lengths_of_all_messages_are_known_beforehand():
    assert [len(M1), len(M2), len(M3)] == [M1_BYTES, m2_bytes(FEDERATION), m3_bytes(FEDERATION)]
    assert [len(M1), len(M2), len(M3)] == [48, 432, 400]


def test_fresh_ephemerals_make_every_handshake_different():
    runs = [run(Initiator(ALICE, BOB.public, FEDERATION), Responder(BOB, LISTED, FEDERATION)) for _ in range(2)]
    (first, keys, _), (second, others, _) = runs
    assert all(one != other for one, other in zip(first, second, strict=True))
    assert keys.session_id != others.session_id
    assert keys.send != others.send


def test_neither_identity_nor_federation_travels_in_the_clear():
    secrets = [ALICE.public, BOB.public, FEDERATION.federation_id, *(value for _, value in FEDERATION.sections)]
    assert not any(secret in message for secret in secrets for message in (M1, M2, M3))


def test_keys_do_not_show_in_a_representation():
    assert GOOD_KEYS.send.hex() not in repr(GOOD_KEYS)
    assert repr(GOOD_KEYS.send) not in repr(GOOD_KEYS)


# --- damage -------------------------------------------------------------------------------------------------------


@each_step
def test_every_flipped_bit_is_refused(make_step, message):
    for place, bit in itertools.product(range(len(message)), range(8)):
        damaged = bytearray(message)
        damaged[place] ^= 1 << bit
        with pytest.raises(HandshakeFault):
            make_step()(bytes(damaged))


@each_step
def test_every_truncation_and_extension_is_refused(make_step, message):
    for length in range(len(message)):
        with pytest.raises(HandshakeFault, match=r"instead of|not sealed"):
            make_step()(message[:length])
    for excess in (b"\0", message):
        assert_refused(make_step(), message + excess)


# --- messages in the wrong place ----------------------------------------------------------------------------------


@pytest.mark.parametrize("message", [M2, M3], ids=["m2", "m3"])
def test_a_replayed_message_is_refused_by_a_fresh_end(message):
    if message == M2:
        initiator = Initiator(ALICE, BOB.public, FEDERATION)
        initiator.first()
        assert_refused(initiator.second, message)
    else:
        responder = Responder(BOB, LISTED, FEDERATION)
        responder.first(M1)
        assert_refused(responder.third, message)


def test_a_replayed_m1_gives_its_sender_no_keys():
    responder = Responder(BOB, LISTED, FEDERATION)
    assert responder.first(M1) != M2
    assert_refused(responder.third, M3)


@each_step
def test_a_message_of_another_step_is_refused(make_step, message):
    for other in {M1, M2, M3} - {message}:
        assert_refused(make_step(), other)


def test_a_reflected_m1_is_refused():
    assert_refused(make_responder(identity=ALICE).first, M1)


def test_an_introduction_reflected_to_its_author_is_refused():
    """Even padded or cut to the right length, one role's introduction is not the other's."""
    assert_refused(initiator_awaiting_m2().second, bytes(E_BOB.public_key) + M3)
    assert_refused(responder_awaiting_m3().third, M2[32:])


def test_a_node_that_answers_itself_is_refused():
    with pytest.raises(ValueError, match="another node"):
        make_initiator(peer=ALICE)
    initiator = make_initiator(identity=BOB, peer=ALICE)
    initiator._peer_public = BOB.public  # what no correct dialer does
    m3 = initiator.second((responder := make_responder()).first(initiator.first()))
    with pytest.raises(HandshakeFault, match="this node itself"):
        responder.third(m3)


# --- the wrong peer -----------------------------------------------------------------------------------------------


def test_a_dialer_that_does_not_know_our_key_is_dropped_before_any_curve_arithmetic(monkeypatch):
    def refuse(*_):
        raise AssertionError("curve arithmetic for a stranger")

    monkeypatch.setattr("p2pfl.crypto.session.agree", refuse)
    monkeypatch.setattr("p2pfl.crypto.session.PrivateKey", refuse)
    assert_refused(Responder(CAROL, LISTED, FEDERATION).first, M1)


def test_a_listed_node_that_was_not_dialed_is_refused():
    initiator = initiator_awaiting_m2()
    m1 = make_initiator(peer=CAROL).first()
    initiator._m1 = m1  # as if Carol had guessed whom Alice dials and dressed m1 for herself
    with pytest.raises(HandshakeFault, match="another node answered"):
        initiator.second(make_responder(identity=CAROL).first(m1))
    with pytest.raises(RuntimeError, match="no keys"):
        _ = initiator.keys


def test_an_unlisted_key_is_refused_and_named():
    initiator, responder = make_initiator(identity=MALLORY), make_responder()
    m3 = initiator.second(responder.first(initiator.first()))
    with pytest.raises(UnlistedKey) as caught:
        responder.third(m3)
    assert caught.value.public == MALLORY.public


def test_a_key_is_called_unlisted_only_after_it_was_proved():
    responder = make_responder()
    forged = forge_introduction(responder, identity=MALLORY, public=CAROL.public)
    with pytest.raises(HandshakeFault, match="signature"):
        responder.third(forged)


def forge_introduction(responder, *, identity, public):
    """m3 by somebody who holds the session's secrets and signs with `identity` what `public` should have signed."""
    responder.first(M1)
    secrets, th2 = responder._pending

    class Impostor:
        pass

    impostor = Impostor()
    impostor.public, impostor.sign = public, identity.sign
    return introduce(Leg.of_initiator(secrets, th2), impostor, FEDERATION)


@pytest.mark.parametrize("wrong", ["seal_key", "mac_key", "transcript", "role"])
def test_an_introduction_depends_on_every_part_of_its_leg(wrong):
    leg = Leg("initiator", b"t" * 32, b"s" * 32, b"m" * 32)
    sealed = introduce(leg, ALICE, FEDERATION)
    assert examine(leg, sealed, FEDERATION).public == ALICE.public
    other = dataclasses.replace(leg, **{wrong: "responder" if wrong == "role" else b"x" * 32})
    with pytest.raises(HandshakeFault):
        examine(other, sealed, FEDERATION)


# --- a man in the middle ------------------------------------------------------------------------------------------


def test_an_m1_readdressed_to_another_listed_node_comes_to_nothing():
    """Carol's key is known to the man in the middle, so her mac1 is right; the transcripts differ all the same."""
    alice, carol = make_initiator(), make_responder(identity=CAROL)
    e_alice = alice.first()[:32]
    m2 = carol.first(e_alice + opening_tag(CAROL.public, e_alice))
    assert_refused(alice.second, m2)


@pytest.mark.parametrize(("repair_mac", "reason"), [(False, "MAC"), (True, "signature")])
def test_a_listed_liar_cannot_pass_on_what_another_node_said_to_it(repair_mac, reason):
    """Carol answers Alice honestly, then shows Alice's own introduction to Bob in a session of her own."""
    alice, carol = make_initiator(peer=CAROL), make_responder(identity=CAROL)
    m3 = alice.second(carol.first(alice.first()))
    heard = Leg.of_initiator(*carol._pending)
    plain = crypto_aead_chacha20poly1305_ietf_decrypt(m3, heard.transcript, NONCE, heard.seal_key)

    bob, carol = make_responder(), make_initiator(identity=CAROL)
    carol.second(bob.first(carol.first()))
    told = Leg.of_initiator(*bob._pending)
    if repair_mac:
        statement = told.statement(ALICE.public, plain[32 : 32 + FEDERATION.blinded_bytes])
        plain = plain[:-32] + digest("introduction", statement, key=told.mac_key)
    passed_on = crypto_aead_chacha20poly1305_ietf_encrypt(plain, told.transcript, NONCE, told.seal_key)
    with pytest.raises(HandshakeFault, match=reason):
        bob.third(passed_on)


# --- the curve ----------------------------------------------------------------------------------------------------

LOW_ORDER = [
    "0000000000000000000000000000000000000000000000000000000000000000",
    "0100000000000000000000000000000000000000000000000000000000000000",
    "e0eb7a7c3b41b8ae1656e3faf19fc46ada098deb9c32b1fd866205165f49b800",
    "5f9c95bca3508c24b1d0b1559c83ef5b04445cc4581c8e86d8224eddd09f1157",
    "ecffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f",
    "edffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f",
    "eeffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f",
]


@pytest.mark.parametrize("top_bit", [0, 0x80])
@pytest.mark.parametrize("point", LOW_ORDER)
def test_a_point_of_low_order_is_refused_from_either_end(point, top_bit):
    low = bytearray.fromhex(point)
    low[31] |= top_bit
    with pytest.raises(HandshakeFault, match="low order"):
        make_responder().first(bytes(low) + opening_tag(BOB.public, bytes(low)))
    with pytest.raises(HandshakeFault, match="low order"):
        initiator_awaiting_m2().second(bytes(low) + M2[32:])


def test_the_unused_top_bit_of_a_point_cannot_be_flipped():
    """X25519 ignores it, so the shared secret stays; the transcript does not."""
    flipped = bytearray(M1[:32])
    flipped[31] ^= 0x80
    m2 = make_responder().first(bytes(flipped) + opening_tag(BOB.public, bytes(flipped)))
    assert_refused(initiator_awaiting_m2().second, m2)


# --- another federation -------------------------------------------------------------------------------------------


def with_section(name, value):
    sections = tuple((each, value if each == name else old) for each, old in FEDERATION.sections)
    return FederationBinding(federation_id=bytes([99]) * 32, sections=sections)


def meet_with_another_federation(theirs):
    """What each end raises, the responder after the initiator's farewell."""
    initiator, responder = make_initiator(), make_responder(federation=theirs)
    with pytest.raises(FederationMismatch) as at_initiator:
        initiator.second(responder.first(initiator.first()))
    with pytest.raises(FederationMismatch) as at_responder:
        responder.third(at_initiator.value.farewell)
    with pytest.raises(RuntimeError, match="no keys"):
        _ = initiator.keys
    return at_initiator.value, at_responder.value


@pytest.mark.parametrize("name", NAMES)
def test_both_ends_name_the_section_that_differs(name):
    ours, theirs = meet_with_another_federation(with_section(name, bytes(32)))
    assert ours.sections == theirs.sections == (name,)
    assert (ours.peer_public, theirs.peer_public) == (BOB.public, ALICE.public)
    assert theirs.farewell == b""


def test_all_sections_that_differ_are_named_in_order():
    other = dict(FEDERATION.sections) | {"model": bytes(32), "task": bytes(32)}
    theirs = FederationBinding(federation_id=bytes(32), sections=tuple(other.items()))
    assert meet_with_another_federation(theirs)[0].sections == ("task", "model")


def test_a_federation_that_differs_in_its_id_alone_is_refused_as_such():
    theirs = dataclasses.replace(FEDERATION, federation_id=bytes(32))
    assert meet_with_another_federation(theirs)[1].sections == ("federation",)


def test_a_section_of_another_name_is_a_section_that_differs():
    renamed = tuple(("tasks" if name == "task" else name, value) for name, value in FEDERATION.sections)
    ours, theirs = meet_with_another_federation(dataclasses.replace(FEDERATION, sections=renamed))
    assert (ours.sections, theirs.sections) == (("task",), ("tasks",))


def test_another_number_of_sections_is_refused():
    fewer = dataclasses.replace(FEDERATION, sections=FEDERATION.sections[1:])
    m2 = make_responder(federation=fewer).first(M1)
    assert_refused(initiator_awaiting_m2().second, m2)


def test_a_table_that_only_one_end_has_is_named_by_it_and_known_to_be_missing_by_the_other():
    sections = (("privacy.epsilon", bytes(32)), ("privacy.delta", bytes([9]) * 32), *FEDERATION.sections)
    ours, theirs = meet_with_another_federation(FederationBinding(federation_id=bytes(32), sections=sections))
    assert {ours.sections, theirs.sections} == {("privacy.epsilon", "privacy.delta"), (OTHERS,)}
    assert any("[privacy]" in str(fault) for fault in (ours, theirs))


def test_more_sections_do_not_hide_one_that_differs():
    sections = (*with_section("task", bytes([7]) * 32).sections, ("privacy.epsilon", bytes(32)))
    ours, theirs = meet_with_another_federation(FederationBinding(federation_id=bytes(32), sections=sections))
    assert {ours.sections, theirs.sections} == {("task", "privacy.epsilon"), ("task",)}


def test_a_stranger_is_not_told_which_section_differs():
    initiator = make_initiator(identity=MALLORY, federation=with_section("task", bytes(32)))
    responder = make_responder()
    with pytest.raises(FederationMismatch) as caught:
        initiator.second(responder.first(initiator.first()))
    with pytest.raises(UnlistedKey):
        responder.third(caught.value.farewell)


def test_another_protocol_is_refused_at_its_first_message(monkeypatch):
    monkeypatch.setattr("p2pfl.crypto.session.PROTOCOL", "p2pfl/2")
    m1 = make_initiator().first()
    monkeypatch.undo()
    assert_refused(make_responder().first, m1)


def test_a_blinded_section_tells_nothing_across_sessions():
    one, two = FEDERATION.blind(b"1" * 32), FEDERATION.blind(b"2" * 32)
    parts = {blinded[place : place + 32] for blinded in (one, two) for place in range(0, len(blinded), 32)}
    assert len(parts) == 2 * (1 + len(NAMES))


@pytest.mark.parametrize(
    ("federation_id", "sections"),
    [
        (bytes(31), ()),
        (bytes(32), (("task", bytes(33)),)),
        (bytes(32), (("task", bytes(32)), ("task", bytes(32)))),
        (bytes(32), tuple((str(number), bytes(32)) for number in range(64))),
    ],
)
def test_a_binding_of_the_wrong_shape_is_our_own_mistake(federation_id, sections):
    with pytest.raises(ValueError, match=r"federation|section"):
        FederationBinding(federation_id=federation_id, sections=sections)


# --- single use ---------------------------------------------------------------------------------------------------


def test_no_step_runs_twice_or_out_of_order():
    initiator, responder = make_initiator(), make_responder()
    run(initiator, responder)
    for step in (
        initiator.first,
        lambda: initiator.second(M2),
        lambda: responder.first(M1),
        lambda: responder.third(M3),
        lambda: make_initiator().second(M2),
        lambda: make_responder().third(M3),
    ):
        with pytest.raises(RuntimeError, match="once"):
            step()


def reaches(thing, sought):
    """Whether `sought` can be reached from `thing` through attributes and containers."""
    seen, rest = {}, [thing]
    while rest:
        found = rest.pop()
        if found is sought:
            return True
        if id(found) not in seen and not isinstance(found, type | ModuleType | FunctionType):
            seen[id(found)] = found
            rest += gc.get_referents(found)
    return False


def test_an_ephemeral_key_is_let_go_by_the_step_that_uses_it():
    """It opens what was recorded, if found later."""
    initiator, responder = make_initiator(), make_responder()
    assert reaches(initiator, E_ALICE)
    assert reaches(responder, E_BOB)
    run(initiator, responder)
    assert not reaches(initiator, E_ALICE)
    assert not reaches(responder, E_BOB)
    assert responder._pending is None


def test_a_responder_whose_decision_fails_gives_no_keys():
    def fail(public):
        raise OSError("the list cannot be read")

    responder = make_responder(allowed=fail)
    responder.first(M1)
    with pytest.raises(OSError, match="cannot be read"):
        responder.third(M3)
    with pytest.raises(RuntimeError, match="dead"):
        responder.third(M3)


def test_the_name_of_a_session_is_pinned():
    assert GOOD_KEYS.session_id.hex() == "903a089d91dcf98af7258b69d208ff25ecb98830697102ccfa28eb2accbd50bb"


# --- who comes for the charter ------------------------------------------------------------------------------------


def receiving(allowed=LISTED, federation=FEDERATION):
    return Responder(BOB, allowed, federation, ephemeral=E_BOB, receives=True)


OTHER = FederationBinding(
    federation_id=bytes([9]) * 32, sections=(*FEDERATION.sections[:-1], ("model", bytes([9]) * 32))
)


def test_a_node_that_receives_visitors_has_keys_for_a_proven_stranger_and_says_why_there_is_no_session():
    initiator, responder = make_initiator(MALLORY), receiving()
    _, ours, theirs = run(initiator, responder)
    assert isinstance(responder.refusal, UnlistedKey)
    assert theirs.peer_public == MALLORY.public
    assert Session(theirs).open(Session(ours).seal(b"charter")) == (b"charter", False)


def test_a_node_that_receives_visitors_refuses_nobody_it_would_not_refuse():
    responder = receiving()
    run(make_initiator(), responder)
    assert responder.refusal is None


def test_a_visitor_need_not_train_the_same():
    visitor, responder = Initiator(ALICE, BOB.public, OTHER, control=True), receiving()
    run(visitor, responder)
    assert isinstance(responder.refusal, FederationMismatch)
    assert responder.refusal.sections == ("model",)


def test_a_visitor_talks_to_the_node_that_it_dialed_alone():
    visitor = Initiator(ALICE, CAROL.public, FEDERATION, control=True)
    visitor.first()
    assert_refused(visitor.second, M2)


@pytest.mark.parametrize("place", [0, 40, 200, -1])
def test_a_visitor_proves_who_it_is_like_anybody_else(place):
    visitor, responder = Initiator(MALLORY, BOB.public, OTHER, control=True), receiving()
    m3 = bytearray(visitor.second(responder.first(visitor.first())))
    m3[place] ^= 1
    assert_refused(responder.third, bytes(m3))


def test_without_receiving_a_visitor_is_refused():
    visitor, responder = Initiator(MALLORY, BOB.public, OTHER, control=True), make_responder()
    m3 = visitor.second(responder.first(visitor.first()))
    assert_refused(responder.third, m3)
