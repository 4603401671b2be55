"""How an exchange goes through memory: nothing moves before every check has passed, and what it takes beyond the state
is bounded.
"""

from __future__ import annotations

import sys
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from msgspec.structs import replace

from p2pfl.compress import make_compressor
from p2pfl.core.events import ApplyReply, Bootstrap, Refused, ReplyApplied, RequestApplied
from p2pfl.core.messages import EdgeRecord
from p2pfl.engine import state as state_module
from p2pfl.engine.arithmetic import Codecs, neighbor_distance
from p2pfl.engine.changes import image, restore
from p2pfl.engine.state import TILE, EdgeState
from p2pfl.methods import Tracking

sys.path.insert(0, str(Path(__file__).parent))
from pair import Pair, flow_of, picture

SPECS = ["none", "float16", "q8", "q4"]


class Counting:
    """A compressor that notes what is asked of it."""

    def __init__(self, spec):
        self.inner = make_compressor(spec)
        self.calls = []

    def __getattr__(self, name):
        return getattr(self.inner, name)

    def encode(self, vector, **options):
        self.calls.append("encode" if options.get("decoded") is None else "encode and decode")
        return self.inner.encode(vector, **options)

    def decode(self, *arguments):
        self.calls.append("decode")
        return self.inner.decode(*arguments)


@pytest.mark.parametrize("spec", SPECS)
def test_each_small_payload_is_encoded_once_and_decoded_once_at_each_end(spec):
    pair = Pair(spec=spec)
    codecs = [Counting(spec), Counting(spec)]
    for engine, codec in zip(pair.engines, codecs, strict=True):
        engine.codecs = Codecs(codec)
    pair.exchange()
    assert codecs[0].calls == ["encode", "decode", "decode"]
    assert codecs[1].calls == ["decode", "encode and decode"]


def plainly_exchanged(state, decoded, factor, scale):
    """The reference: whole vectors, one operation after the other; first what came, then what went."""
    scalar, (edge,) = state.model.dtype.type, state.edges.values()
    edge.peer += decoded[0]
    edge.own += decoded[1]
    move = edge.peer - edge.own
    if factor:
        move *= scalar(factor)
        state.channels += move / scalar(state.samples)
        if scale:
            edge.kept["flow"] = flow_of(edge) + move * scalar(scale)


@pytest.mark.parametrize("beta", [0.0, 0.1])
@pytest.mark.parametrize("factor", [0.0, 11.3])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("size", [1, 300, TILE - 1, TILE, TILE + 1, 2 * TILE + 77])
def test_tiles_change_no_bit_of_what_whole_vectors_give(monkeypatch, size, dtype, factor, beta):
    monkeypatch.setattr(state_module, "SMALL", TILE if size == 2 * TILE + 77 else 0 if size == 300 else size)
    pair = Pair(spec="q4", size=size, dtype=dtype, beta=beta)
    for index in (0, 1):
        pair.train(index, pair.engines[index].state.model * dtype(0.9), samples=70 + index)
    pair.exchange(factor=3.0)
    images = [image(engine.state, with_replicas=True) for engine in pair.engines]
    twins = [restore(taken.header, taken.arrays, taken.blobs) for taken in images]
    request = pair.freeze()
    reply = pair.apply_request(request, factor).reply
    pair.apply_reply(reply)
    decoded = [make_compressor("q4").decode(message.body, size) for message in (request, reply)]
    scale = 1 / reply.terms[0] if beta and reply.terms[0] else 0.0
    plainly_exchanged(twins[0], decoded[::-1], factor, scale)
    plainly_exchanged(twins[1], decoded, factor, scale)
    for twin, engine, peer in zip(twins, pair.engines, (1, 0), strict=True):
        state = engine.state
        assert state.model.tobytes() == twin.model.tobytes()
        assert flow_of(state.edges[peer]).tobytes() == flow_of(twin.edges[peer]).tobytes()
        assert state.edges[peer].own.tobytes() == twin.edges[peer].own.tobytes()
        assert state.edges[peer].peer.tobytes() == twin.edges[peer].peer.tobytes()


def exchanged(spec, count):
    """The state of two nodes after exchanges that also fill flows."""
    pair = Pair(spec=spec, size=TILE + 77, method=Tracking())
    for _ in range(count):
        for index in (0, 1):
            pair.train(index, pair.engines[index].state.model * np.float32(0.9))
        pair.exchange()
    return [image(engine.state, with_replicas=True) for engine in pair.engines]


@pytest.mark.parametrize(
    "spec",
    ["none", "float16", "bf16", "q8", "q4", "q2", "sign", "rotate+q2", "q4+zstd"],
)
def test_payloads_decoded_in_tiles_give_the_bits_of_payloads_decoded_whole(monkeypatch, spec):
    """With two channels, so that a tile spans both; what is drawn at random does not depend on tiles either."""
    found = exchanged(spec, 2)
    monkeypatch.setattr(state_module, "SMALL", 0)
    for first, other in zip(found, exchanged(spec, 2), strict=True):
        assert first.header == other.header
        assert {name: array.tobytes() for name, array in first.arrays.items()} == {
            name: array.tobytes() for name, array in other.arrays.items()
        }


def short_of_the_end(body):
    """A payload of `none` that is in order up to its last value."""
    return bytes(body)[:-4] + np.array([np.nan], "<f4").tobytes()


HUGE = np.full(300, 1e12, "<f4").tobytes()
FAULTS = {
    "the payload": lambda message: replace(message, body=short_of_the_end(message.body)),
    "the replica's norm": lambda message: replace(message, body=HUGE),
    "a replica that is no number": lambda message: replace(message, body=np.full(300, 3e38, "<f4").tobytes()),
    "the scale of the variates": lambda message: replace(message, terms=(1e-300,)),
}


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS.keys())
def test_a_message_refused_at_any_check_leaves_every_bit_and_the_next_exchange_as_they_were(fault, dtype):
    pair, twin = (Pair(spec="none", dtype=dtype, beta=0.1, seed=3) for _ in range(2))
    for both in (pair, twin):
        both.train(1, both.engines[1].state.model * dtype(0.9))
        both.exchange()
    request = pair.freeze()
    before = picture(pair.engines[1].state)
    assert isinstance(pair.apply_request(fault(request)), Refused)
    assert picture(pair.engines[1].state) == before
    reply = pair.apply_request(request).reply
    before = picture(pair.engines[0].state)
    assert isinstance(pair.apply_reply(fault(reply)), Refused)
    assert picture(pair.engines[0].state) == before
    assert isinstance(pair.apply_reply(reply), ReplyApplied)
    twin.exchange()
    for one, other in zip(pair.engines, twin.engines, strict=True):
        assert picture(one.state) == picture(other.state)


@pytest.mark.parametrize("end", ["request", "reply"])
def test_a_move_that_would_end_nowhere_is_refused_after_the_replicas_were_computed_and_leaves_every_bit(end):
    """The last check of all: by then everything that the exchange leads to stands in memory."""
    pair = Pair(spec="none", samples=(1, 1))
    pair.exchange(factor=0.1)
    request, factor = pair.freeze(), 1e30
    engine = pair.engines[1 if end == "request" else 0]
    if end == "request":
        before = picture(engine.state)
        assert isinstance(pair.apply_request(request, factor), Refused)
    else:
        reply = pair.apply_request(request, 0.1).reply
        before = picture(engine.state)
        assert isinstance(pair.apply_reply(replace(reply, factor=factor)), Refused)
    assert picture(engine.state) == before


def test_a_model_that_cannot_be_encoded_leaves_every_bit():
    """By then the neighbor's payload was decoded."""
    pair = Pair(spec="none")
    request = pair.freeze()
    pair.engines[1].state.model[7] = np.inf
    before = picture(pair.engines[1].state)
    with pytest.raises(ValueError, match="NaN or infinity"):
        pair.apply_request(request)
    assert picture(pair.engines[1].state) == before


def taken(run):
    """What a call took beyond what stood there before: at most, and after it."""
    tracemalloc.reset_peak()
    before, _ = tracemalloc.get_traced_memory()
    result = run()
    after, peak = tracemalloc.get_traced_memory()
    return result, peak - before, after - before


@pytest.mark.parametrize("spec", ["q4", *(pytest.param(spec, marks=pytest.mark.long) for spec in ("none", "q8"))])
def test_an_exchange_takes_little_more_than_its_payloads(spec):
    """A node holds 2 vectors, and 2 more for each edge; numpy reports to tracemalloc."""
    size = 64 * TILE
    pair = Pair(spec=spec, size=size, beta=0.1)
    model_bytes, payload_bytes = 4 * size, pair.codecs.default.size_bytes(size)
    allowed = payload_bytes + 0.2 * model_bytes
    pair.exchange()  # which makes the tiles, and flows
    tracemalloc.start()
    try:
        for _ in range(2):
            request, peak, _ = taken(pair.freeze)
            assert peak <= allowed
            applied, peak, _ = taken(lambda request=request: pair.apply_request(request))
            assert peak <= allowed
            _, peak, kept = taken(lambda reply=applied.reply: pair.run(0, ApplyReply(peer=1, reply=reply)))
            assert peak <= allowed
            assert kept < 0.01 * model_bytes
    finally:
        tracemalloc.stop()
    assert isinstance(applied, RequestApplied)


def test_a_round_is_taken_in_without_another_vector():
    size = 16 * TILE
    pair = Pair(size=size, beta=0.1)
    engine = pair.engines[0]
    ended = engine.state.model * np.float32(0.9)
    tracemalloc.start()
    try:
        pair.train(0, ended)
        _, peak, _ = taken(lambda: pair.train(0, ended))
    finally:
        tracemalloc.stop()
    assert peak <= 1.25 * 4 * size  # one is the start, which the trainer brings


@pytest.mark.parametrize("size", [TILE - 1, TILE, 2 * TILE + 77])
def test_a_start_from_the_neighbors_and_the_distance_to_them_do_not_depend_on_tiles(size):
    pair = Pair(spec="none", size=size)
    pair.exchange(factor=0.0)
    state = pair.engines[0].state
    state.channels *= np.float32(0.5)
    theirs = state.edges[1].peer.astype(np.float64)
    away = np.linalg.norm(state.model - theirs) / np.linalg.norm(state.model.astype(np.float64))
    assert neighbor_distance(pair.engines[0].state, [1]) == pytest.approx(away, rel=1e-5)
    state.edges[2] = EdgeState(EdgeRecord(), np.zeros_like(state.model), state.model * np.float32(3))
    expected = np.median([state.edges[1].peer, state.edges[2].peer], axis=0)
    pair.run(0, Bootstrap(peers=(1, 2)))
    assert state.model.tobytes() == expected.tobytes()
