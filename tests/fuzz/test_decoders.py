"""Any bytes from a peer, a file or a person are read, or refused with an error of the decoder's list, and nothing else.

Random bytes seldom come far, so most cases are valid bytes, damaged: cut, doubled, overwritten, spliced. What all
decoders have in common is tried with the inputs of `many_inputs.py`: here with some, by `make fuzz` with a million.
"""

from __future__ import annotations

import ast
import contextlib
import re
import sys
import typing
from itertools import pairwise
from pathlib import Path

import many_inputs
import msgspec
import pytest
from decoders import DECODERS
from hypothesis import example, given
from hypothesis import strategies as st
from many_inputs import CORPUS, Trial, corpus, made, main
from message_kit import ASIDE, FRAMES, SAMPLES, damaged, outcome
from nacl.public import PrivateKey
from vitals_kit import ROW

from p2pfl.config import CharterError, edition_of
from p2pfl.core import Message, Request
from p2pfl.crypto.identity import Identity
from p2pfl.crypto.session import FederationBinding, Initiator, Responder, Session, SessionKeys, opening_tag
from p2pfl.errors import PeerFault
from p2pfl.limits import CHUNK_BYTES
from p2pfl.reporting import read as read_vitals
from p2pfl.wire import (
    KINDS,
    PREFIX_BYTES,
    Assembler,
    Offer,
    PartHeld,
    Receipt,
    SessionMessage,
    Side,
    Unknown,
    encode,
    from_header,
    split,
)

LIMIT = CHUNK_BYTES + 1000
LONG = Request(
    incarnation=1,
    seq=2,
    version=3,
    echo=None,
    weight=1,
    staleness=0,
    pace_s=0,
    audit=b"",
    body=bytes(LIMIT),
)
LONG_CHUNKS = [bytes(chunk) for chunk in split(LONG)]


anything = st.binary(max_size=300) | damaged(FRAMES)


@given(st.sampled_from(KINDS), st.binary(max_size=200) | damaged([raw[PREFIX_BYTES:] for raw in FRAMES]))
def test_a_header(kind, raw):
    message = outcome(from_header, kind, raw, memoryview(b"body"))
    assert isinstance(message, kind.message | PeerFault)
    if isinstance(message, SessionMessage):
        assert isinstance(encode(message)[0], bytes), "what was accepted can be said again"


@given(st.lists(anything | damaged(LONG_CHUNKS), max_size=6))
def test_chunks(chunks):
    feed_an_assembler(chunks)


@given(st.lists(st.sampled_from([*SAMPLES, LONG]), max_size=3), st.lists(st.integers(0, LIMIT), max_size=5))
def test_a_stream_cut_anywhere(messages, cuts):
    stream = b"".join(bytes(chunk) for message in messages for chunk in split(message))
    places = sorted({0, len(stream), *(cut for cut in cuts if cut < len(stream))})
    feed_an_assembler([stream[here:there] for here, there in pairwise(places)])


def feed_an_assembler(chunks):
    """After the first fault there are only faults."""
    assembler = Assembler(LIMIT)
    broken = False
    for chunk in chunks:
        result = outcome(assembler.feed, chunk)
        if isinstance(result, PeerFault):
            broken = True
        else:
            assert not broken
            assert all(isinstance(message, SessionMessage | Unknown) for message in result)
            assert 0 <= assembler.pending_bytes <= LIMIT


# --- on extension channels ----------------------------------------------------------------------------------------

CHANNELS = list(dict.fromkeys(channel for channel, *_ in ASIDE))


@pytest.mark.parametrize(("channel", "message", "wanted"), ASIDE, ids=lambda value: type(value).__name__)
def test_the_bytes_of_every_message_of_a_side_channel_are_pinned(channel, message, wanted):
    packed = channel.pack(message)
    assert (packed.channel, packed.body.hex()) == (channel.name, wanted)
    assert channel.unpack(packed.body) == message


@pytest.mark.parametrize("channel", CHANNELS, ids=repr)
def test_a_message_above_its_channel_s_bound_is_refused(channel):
    assert isinstance(outcome(channel.unpack, bytes(channel.most_bytes + 1)), PeerFault)


# --- before there is a session ------------------------------------------------------------------------------------

FEDERATION = FederationBinding(federation_id=bytes(32), sections=(("task", bytes(32)), ("edges", bytes(32))))
ALICE, BOB = Identity(bytes([1]) * 32), Identity(bytes([2]) * 32)
EPHEMERALS = PrivateKey(bytes([3]) * 32), PrivateKey(bytes([4]) * 32)


def make_ends():
    initiator = Initiator(ALICE, BOB.public, FEDERATION, ephemeral=EPHEMERALS[0])
    return initiator, Responder(BOB, frozenset({ALICE.public}).__contains__, FEDERATION, ephemeral=EPHEMERALS[1])


def exchange():
    initiator, responder = make_ends()
    m1 = initiator.first()
    m2 = responder.first(m1)
    return m1, m2, initiator.second(m2)


M1, M2, M3 = exchange()


@given(st.binary(min_size=32, max_size=32))
def test_a_first_handshake_message_with_any_point(point):
    assert isinstance(outcome(make_ends()[1].first, point + opening_tag(BOB.public, point)), bytes | PeerFault)


@given(st.binary(max_size=100) | damaged([M2]))
def test_a_second_handshake_message(raw):
    initiator, _ = make_ends()
    initiator.first()
    assert isinstance(outcome(initiator.second, raw), PeerFault) == (raw != M2)


@given(st.binary(max_size=100) | damaged([M3]))
def test_a_third_handshake_message(raw):
    _, responder = make_ends()
    responder.first(M1)
    assert isinstance(outcome(responder.third, raw), PeerFault) == (raw != M3)


@given(st.data())
def test_sealed_chunks(data):
    def keys(send, receive):
        return SessionKeys(send=send * 32, receive=receive * 32, session_id=bytes(32), peer_public=bytes(32))

    sender, receiver = Session(keys(b"a", b"b")), Session(keys(b"b", b"a"))
    for _ in range(3):
        good = sender.seal(b"chunk")
        raw = data.draw(st.binary(max_size=80) | damaged([good]))
        result = outcome(receiver.open, raw)
        assert isinstance(result, PeerFault) == (raw != good)
        if raw != good:
            assert isinstance(outcome(receiver.open, good), PeerFault)
            return


@pytest.mark.parametrize("message", SAMPLES, ids=lambda message: type(message).__name__)
def test_the_samples_are_valid_and_complete(message):
    """Else the cases above would only ever see refusals."""
    assert Assembler(LIMIT).feed(b"".join(encode(message)))[0].__class__ is type(message)
    assert {type(sample) for sample in SAMPLES} == {*typing.get_args(Message), Offer, Side, PartHeld, Receipt}


BAD_TOPOLOGY = b"\x99\x01\xc4\x20" + bytes(32) + b"\x01\xc4\x00\xa1\xff"
"""The beginning of a charter with a text that is none."""
BAD_PHASE = b"\xdc\x00\x14\x01\x01\x01\xa1\xff"
"""That of a row of vitals."""
DEEP_ROW = b"\xdc\x00\x40" + msgspec.msgpack.encode(ROW)[3:] + b"\x91" * 4000
"""A row with a field of a later version, nested deeper than Python can go."""


@pytest.mark.parametrize("read", [lambda raw: edition_of(bytes(96) + raw), lambda raw: read_vitals(raw + bytes(64))])
@given(raw=st.binary(max_size=300))
@example(raw=BAD_TOPOLOGY)
@example(raw=BAD_PHASE)
@example(raw=DEEP_ROW)
@example(raw=BAD_TOPOLOGY[:4] + bytes(32) + b"\x91" * 4000)
def test_what_anybody_may_send_before_it_is_proven_is_refused_or_read(read, raw):
    with contextlib.suppress(CharterError, PeerFault):
        read(raw)


# --- every decoder ------------------------------------------------------------------------------------------------

ROOT, FEW = Path(__file__).parents[2], 24
READS = re.compile(r"(decode|parse|unpack|read)(_\w+)?|from_(bytes|file|json|text|header|safetensors)|edition_of")
WHERE = ("wire", "net", "crypto", "config", "storage", "features", "learn", "reporting")
ELSEWHERE = {
    "read_answer": "waits for what `Proxy.judge` reads",
    **dict.fromkeys(("read_site", "read_folder", "read_own", "read_tables"), "call those that are tried, with a path"),
    **dict.fromkeys(("NoiseState.unpack", "AlikeState.unpack"), "leave it to `AlikeRounds.unpack`"),
    **dict.fromkeys(("WholeNumbers.decode", "Packing.unpack"), "turn numbers into numbers"),
    "GrownState.read": "its file is as the state of trees that another node gives",
    "read_samples": "checks arrays of the user's task",
    "Gauge.read": "gets figures of this process",
    "read_distances": "gets what `read_far` reads",
}
"""Functions with such a name that get no bytes, or leave them to one that is tried."""


@pytest.mark.parametrize("name", DECODERS)
def test_an_input_is_read_or_refused_and_takes_little(name):
    trial = Trial(DECODERS[name])
    for number in range(FEW):
        raw = made(trial.decoder, 0, number)
        try:
            trial(raw)
        except Exception as error:
            error.add_note(f"a line for the corpus:\n{name}\t{raw!r}")
            raise


@pytest.mark.parametrize(("name", "raw"), corpus(CORPUS))
def test_what_once_failed_is_read_or_refused(name, raw):
    Trial(DECODERS[name])(raw)


def test_every_decoder_of_the_product_is_tried():
    """A new one is called by a sample in `decoders.py`, directly or not, or stands in `ELSEWHERE` with the reason."""
    called = set()

    def note(frame, event, _):
        if event == "call":
            called.add((frame.f_code.co_filename, frame.f_code.co_qualname))

    sys.setprofile(note)
    try:
        for decoder in DECODERS.values():
            for sample in decoder.samples:
                decoder.read(sample)
    finally:
        sys.setprofile(None)
    folders = [*(f"p2pfl/{each}" for each in WHERE), "topologies", "sim"]
    lacking = [
        f"{path.relative_to(ROOT)}: {name}"
        for path in sorted(path for folder in folders for path in (ROOT / folder).rglob("*.py"))
        for name in functions(path)
        if READS.fullmatch(name.rpartition(".")[2]) and (str(path), name) not in called and name not in ELSEWHERE
    ]
    assert lacking == []


def functions(path):
    """The functions and methods of a module, by their qualified names."""
    for node in ast.parse(path.read_text("utf-8")).body:
        for inner in node.body if isinstance(node, ast.ClassDef) else [node]:
            if isinstance(inner, ast.FunctionDef | ast.AsyncFunctionDef):
                yield inner.name if inner is node else f"{node.name}.{inner.name}"


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("chrter\tb'x'\n", "no decoder is called 'chrter': did you mean 'charter'?"),
        ("charter\t'x'\n", "corpus.txt:1 is not a decoder's name, a tab and bytes as Python writes them"),
        (" " * (1 << 18) + "\n", "has 262,145 bytes: a corpus has at most 262,144"),
    ],
)
def test_a_wrong_corpus_is_one_clear_sentence(content, said, tmp_path, monkeypatch, capsys):
    (tmp_path / "corpus.txt").write_text(content)
    monkeypatch.setattr(many_inputs, "CORPUS", tmp_path / "corpus.txt")
    monkeypatch.setattr(sys, "argv", ["many_inputs.py", "--inputs", "1"])
    with pytest.raises(SystemExit, match="2"):
        main()
    assert said in capsys.readouterr().err.splitlines()[-1]
