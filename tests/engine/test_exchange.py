"""One transaction on vectors: what it conserves, what both ends share bit for bit, and what is refused."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest
from msgspec.structs import replace
from pair import SIZE, Pair, correction, flow_of, picture

from p2pfl.compress import make_compressor
from p2pfl.core import (
    ApplyReply,
    Bootstrap,
    EdgeRecord,
    Fault,
    Refused,
    ReplyApplied,
    RequestApplied,
    ResetEdge,
    request_digest,
)
from p2pfl.engine import TILE, Codecs, EdgeState, image, neighbor_distance, restore
from p2pfl.methods import Tracking

SPECS = ["none", "float16", "q8", "q4"]


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("spec", SPECS)
def test_both_ends_hold_the_same_replicas_and_the_same_chain_bit_for_bit(spec, dtype):
    pair = Pair(spec=spec, dtype=dtype)
    for _ in range(5):
        pair.exchange()
        mine, theirs = pair.engines[0].state.edges[1], pair.engines[1].state.edges[0]
        assert mine.own.tobytes() == theirs.peer.tobytes()
        assert mine.peer.tobytes() == theirs.own.tobytes()
        assert mine.record.chain == theirs.record.chain
        assert mine.digest(initiator=True) == theirs.digest(initiator=False)


def test_exchanges_are_counted_and_an_edge_that_begins_anew_takes_none_back():
    """A report's contraction is measured by how many there were between two looks."""
    pair = Pair(spec="q4")
    for _ in range(3):
        pair.exchange()
    pair.run(0, ResetEdge(peer=1, incarnation=7))
    pair.run(1, ResetEdge(peer=0, incarnation=7))
    assert [engine.exchanges for engine in pair.engines] == [3, 3]


@pytest.mark.parametrize("samples", [(1, 1), (64, 64)])
def test_the_flow_has_the_same_bits_at_both_ends_in_float32(samples):
    """With n a power of two the division is exact, so what one end loses the other gains to the last bit."""
    pair = Pair(spec="q4", samples=samples)
    request = pair.freeze()
    initiator, responder = (engine.state for engine in pair.engines)
    responder.model[:] = 0.0
    reply = pair.apply_request(request).reply
    initiator.model[:] = 0.0
    pair.apply_reply(reply)
    gained, lost = responder.model * samples[1], -initiator.model * samples[0]
    assert np.any(gained)
    assert np.array_equal(gained, lost)


@pytest.mark.parametrize("spec", SPECS)
def test_an_exchange_conserves_the_weighted_sum_in_float64(spec):
    pair = Pair(spec=spec, dtype=np.float64)
    before = pair.total()
    for _ in range(50):
        pair.exchange(factor=10.0)
    assert np.abs(pair.total() - before).max() < 1e-11


@pytest.mark.long
@pytest.mark.parametrize(("spec", "bound"), [("none", 3e-7), ("q4", 3e-7)])
def test_in_float32_the_weighted_sum_drifts_by_roundings_only(spec, bound):
    """Measured over 1,000 exchanges between models that keep moving apart:
    relative to the mean size of sum n_i |x_i| it grows like 1.7e-7 sqrt(exchanges).
    """
    pair, chance = Pair(spec=spec), np.random.default_rng(1)
    before = pair.total()
    for _ in range(1000):
        push = chance.normal(size=SIZE).astype(np.float32) * np.float32(0.01)
        for engine, sign in zip(pair.engines, (3, -1), strict=True):
            engine.state.channels += np.float32(sign) * push
        before = before + (3 * 30 - 90) * push.astype(np.float64)
        pair.exchange(factor=10.0)
        pair.changes[0].clear()
        pair.changes[1].clear()
    scale = sum(e.state.samples * np.abs(e.state.model).mean() for e in pair.engines)
    drift = np.abs(pair.total() - before).max() / scale
    assert 0.0 < drift < bound * np.sqrt(1000)


def test_repeated_exchanges_bring_both_ends_to_the_weighted_mean():
    pair = Pair(spec="q8", dtype=np.float64)
    mean = pair.total() / 120
    for _ in range(200):
        pair.exchange()
    for engine in pair.engines:
        np.testing.assert_allclose(engine.state.model, mean, atol=1e-6)


def test_a_factor_of_zero_moves_replicas_and_no_model():
    pair = Pair()
    before = [engine.state.model.tobytes() for engine in pair.engines]
    pair.exchange(factor=0.0)
    assert [engine.state.model.tobytes() for engine in pair.engines] == before
    assert np.any(pair.engines[0].state.edges[1].peer)


def test_a_reset_empties_replicas_and_record_and_leaves_the_model():
    pair = Pair()
    pair.exchange()
    model = pair.engines[0].state.model.tobytes()
    assert pair.run(0, ResetEdge(peer=1, incarnation=7)) is None
    edge = pair.engines[0].state.edges[1]
    assert (edge.record.incarnation, edge.record.seq, edge.record.resyncs) == (7, 0, 1)
    assert not np.any(edge.own)
    assert not np.any(edge.peer)
    assert pair.engines[0].state.model.tobytes() == model


# -- refusals ---------------------------------------------------------------------------------------------------------


def nan_body(size):
    values = np.ones(size, "<f4")
    values[3] = np.nan
    return values.tobytes()


BAD_BODIES = {
    "empty": b"",
    "one byte short": bytes(4 * SIZE - 1),
    "one byte long": bytes(4 * SIZE + 1),
    "not a number": nan_body(SIZE),
    "infinite": np.full(SIZE, np.inf, "<f4").tobytes(),
    "far too long a vector": np.full(SIZE, 1e9, "<f4").tobytes(),
}


@pytest.mark.parametrize("body", BAD_BODIES.values(), ids=BAD_BODIES.keys())
def test_a_bad_request_is_refused_and_leaves_no_trace(body):
    pair = Pair(spec="none")
    pair.exchange()
    before = picture(pair.engines[1].state)
    bad = replace(pair.freeze(), body=body)
    event = pair.apply_request(bad)
    assert isinstance(event, Refused)
    assert (event.message, event.fault) == (bad, Fault.PAYLOAD)
    assert picture(pair.engines[1].state) == before
    assert len(pair.changes[1]) == 1


@pytest.mark.parametrize("body", BAD_BODIES.values(), ids=BAD_BODIES.keys())
def test_a_bad_reply_is_refused_and_leaves_no_trace(body):
    pair = Pair(spec="none")
    pair.exchange()
    reply = pair.apply_request(pair.freeze()).reply
    before = picture(pair.engines[0].state)
    event = pair.apply_reply(replace(reply, body=body))
    assert isinstance(event, Refused)
    assert event.fault is Fault.PAYLOAD
    assert picture(pair.engines[0].state) == before
    assert isinstance(pair.apply_reply(reply), ReplyApplied)


@pytest.mark.parametrize("spec", ["q8", "q4"])
def test_a_quantized_body_with_a_scale_that_is_no_number_is_refused(spec):
    pair = Pair(spec=spec)
    request = pair.freeze()
    bad = replace(request, body=np.array([np.nan], "<f4").tobytes() + bytes(request.body)[4:])
    before = picture(pair.engines[1].state)
    assert isinstance(pair.apply_request(bad), Refused)
    assert picture(pair.engines[1].state) == before


def test_an_audit_that_agrees_is_applied_and_one_that_does_not_is_refused():
    pair = Pair()
    pair.exchange()
    assert isinstance(pair.exchange(audit=True), ReplyApplied)
    pair.engines[1].state.edges[0].peer[5] = np.nextafter(pair.engines[1].state.edges[0].peer[5], np.float32(9))
    before = picture(pair.engines[1].state)
    event = pair.apply_request(pair.freeze(audit=True))
    assert isinstance(event, Refused)
    assert event.fault is Fault.AUDIT
    assert picture(pair.engines[1].state) == before


def test_a_whole_model_after_a_resync_passes_the_norm_check():
    pair = Pair(spec="none")
    pair.engines[0].state.channels *= 100
    assert isinstance(pair.apply_request(pair.freeze()), RequestApplied)


def test_a_model_of_zeros_takes_a_neighbor_that_has_learned():
    pair = Pair(spec="none")
    pair.engines[1].state.model[:] = 0.0
    assert isinstance(pair.apply_request(pair.freeze()), RequestApplied)


# How an exchange goes through memory: nothing moves before every check has passed, and what it takes beyond the state
# is bounded.


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
    monkeypatch.setattr("p2pfl.engine.state.SMALL", TILE if size == 2 * TILE + 77 else 0 if size == 300 else size)
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
    monkeypatch.setattr("p2pfl.engine.state.SMALL", 0)
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


# -- A neighbor's lies that would end a node, not only spoil its model: each is refused, and leaves no trace.


def told(request, **changes):
    """The request with a lie in it, its digest set right."""
    changed = replace(request, **changes)
    return replace(changed, digest=request_digest(changed))


@pytest.mark.parametrize("size", [1e20, 3e38])
def test_a_huge_model_is_refused_although_the_own_one_is_huge_too(size):
    """In float32 the square of the own norm is infinite, and any replica would pass below it."""
    pair = Pair(spec="none")
    pair.engines[1].state.model[:] = 1e19
    before = pair.engines[1].state.model.copy()
    lie = told(pair.freeze(), body=np.full(300, size, dtype="<f4").tobytes())
    assert isinstance(pair.apply_request(lie), Refused)
    np.testing.assert_array_equal(pair.engines[1].state.model, before)


def test_a_reply_with_a_smaller_scale_than_ours_is_refused():
    pair = Pair(beta=0.1)
    pair.engines[0].state.terms = (0.5,)
    reply = pair.apply_request(pair.freeze()).reply
    assert reply.terms == (0.5,)
    assert isinstance(pair.apply_reply(replace(reply, terms=(0.4,))), Refused)


def test_both_ends_scale_their_variates_by_the_larger_drift():
    """Whatever each has trained: the sum of n_i C_i stays zero."""
    pair = Pair(beta=0.1)
    pair.engines[0].state.terms, pair.engines[1].state.terms = (0.5,), (4.0,)
    pair.exchange()
    total = sum(e.state.samples * correction(e.state, 0.1).astype(np.float64) for e in pair.engines)
    assert correction(pair.engines[0].state, 0.1).any()
    np.testing.assert_allclose(total, 0.0, atol=1e-4)
