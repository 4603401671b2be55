"""Exchanges without replicas: one fragment at a time, by which both ends move by the same difference."""

from __future__ import annotations

import numpy as np
import pytest
from msgspec.structs import replace
from pair import Pair, picture, replayed

from p2pfl.compress import make_compressor
from p2pfl.core import ApplyReply, ApplyRequest, Bootstrap, Fault, Freeze, Refused
from p2pfl.engine import (
    Codecs,
    Engine,
    FragmentMean,
    NodeState,
    distance,
    image,
    neighbor_distance,
    norm,
    recode,
    restore,
)
from p2pfl.methods import Tracking

SPECS = ("fragment:3", "fragment:3+bf16", "fragment:1")


def moved(before, after):
    """The places at which a vector has changed."""
    return set(np.flatnonzero(before != after).tolist())


@pytest.mark.parametrize("spec", SPECS)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_an_exchange_moves_one_fragment_at_both_ends_by_opposite_differences(spec, dtype):
    pair, count = Pair(spec=spec, dtype=dtype, beta=0.1), make_compressor(spec).count
    for engine, terms in zip(pair.engines, ((0.5,), (0.25,)), strict=True):
        engine.state.terms = terms  # as after a round each
    start, seen = pair.total(), set()
    for step in range(count):
        before = [engine.state.model.copy() for engine in pair.engines]
        pair.exchange()
        first, second = (moved(old, e.state.model) for old, e in zip(before, pair.engines, strict=True))
        part = pair.codecs.default.slices((step + 1 + 1) % count, 300)[0]
        assert first == second == set(range(300)[part])
        seen |= first
    assert len(seen) == 300
    np.testing.assert_allclose(pair.total(), start, rtol=0, atol=1e-4 if dtype == np.float32 else 1e-12)
    flows = [engine.state.edges[1 - index].kept["flow"] for index, engine in enumerate(pair.engines)]
    assert flows[0].any()
    np.testing.assert_array_equal(flows[0], -flows[1])


def test_whole_models_meet_at_their_weighted_mean_and_stay_there():
    """Thirty exchanges of one fragment in three; float32 payloads leave nothing between the ends."""
    pair = Pair(spec="fragment:3", dtype=np.float64)
    mean = pair.total() / 120
    for _ in range(60):
        pair.exchange()
    for engine in pair.engines:
        np.testing.assert_allclose(engine.state.model, mean, atol=1e-6)


def test_rounded_values_leave_the_mean_where_it_is_and_a_floor_between_the_ends():
    """bfloat16 has steps of 2^-8 of a value; the ends come within half of one of each other, and no closer."""
    pair = Pair(spec="fragment:3+bf16", dtype=np.float64)
    total = pair.total()
    for _ in range(120):
        pair.exchange()
    models = [engine.state.model for engine in pair.engines]
    np.testing.assert_allclose(pair.total(), total, atol=1e-11)
    assert 2.0**-13 < distance(*models) / norm(models[0]) < 2.0**-8
    equal = pair.engines[0].state.model.copy()
    pair.engines[1].state.channels[:] = equal
    pair.exchange()
    assert all(np.array_equal(engine.state.model, equal) for engine in pair.engines), "equal values are rounded alike"


@pytest.mark.parametrize("spec", SPECS)
def test_the_log_and_a_snapshot_give_back_the_same_bits(spec):
    """After every step, also between a frozen fragment and its answer."""
    pair = Pair(spec=spec, beta=0.1)

    def look():
        for engine in pair.engines:
            found = image(engine.state, with_replicas=True)
            assert not [name for name in found.arrays if name.startswith(("own.", "peer."))]
            state = restore(found.header, found.arrays, found.blobs)
            state.fit_replicas(pair.codecs.need_replicas)
            assert picture(state) == picture(engine.state)

    for _ in range(4):
        look()
        request = pair.freeze()
        look()
        reply = pair.apply_request(request).reply
        look()
        pair.apply_reply(reply)
    pair.freeze()
    look()
    for index, engine in enumerate(pair.engines):
        state = replayed(pair.start[index], pair.changes[index], pair.codecs, pair.method)
        state.fit_replicas(pair.codecs.need_replicas)
        assert picture(state) == picture(engine.state)


def test_neither_end_holds_more_than_the_model_and_tiles():
    pair = Pair(spec="fragment:10", size=200_000)
    pair.exchange()
    state = pair.engines[0].state
    edge = state.edges[1]
    assert edge.own.nbytes == edge.peer.nbytes == state.scratch.nbytes == 0


@pytest.mark.parametrize("lie", ["another turn", "another code", "too short", "none of them", "not finite"])
def test_what_is_not_the_fragment_whose_turn_it_is_is_refused_and_leaves_no_trace(lie):
    pair = Pair(spec="fragment:3")
    pair.exchange()
    request = pair.freeze()
    body = bytes(request.body)
    fragments = pair.codecs.default
    values = np.full(100, 7.0, np.float32)
    bad = {
        "another turn": lambda: bytes(fragments.encode_fragment(values, 2, chance=0)),
        "another code": lambda: bytes(make_compressor("float16").encode(np.ones(len(body) // 2))),
        "too short": lambda: body[:-1],
        "none of them": lambda: body[:4] + b"\x03" + body[5:],
        "not finite": lambda: body[:-4] + np.float32(np.nan).tobytes(),
    }[lie]()
    assert lie == "too short" or len(bad) == len(body)
    before = [picture(engine.state) for engine in pair.engines]
    event = pair.apply_request(replace(request, body=bad))
    assert isinstance(event, Refused)
    assert event.fault is Fault.PAYLOAD
    reply = replace(pair.apply_request(request).reply, body=bad)
    refused = pair.apply_reply(reply)
    assert isinstance(refused, Refused)
    assert refused.fault is Fault.PAYLOAD
    assert picture(pair.engines[0].state) == before[0]


def test_a_fragment_has_the_same_slice_of_each_channel():
    pair = Pair(spec="fragment:3", method=Tracking())
    for number, engine in enumerate(pair.engines):
        engine.state.channels[300:] = np.arange(300) * (number + 1)
    before = pair.engines[0].state.channels.copy()
    pair.exchange()
    places = moved(before, pair.engines[0].state.channels)
    assert places == set(range(200, 300)) | set(range(500, 600))


def test_the_distance_is_that_of_the_fragments_seen():
    pair = Pair(spec="fragment:3")
    state = pair.engines[0].state
    assert neighbor_distance(state, [1]) is None
    before = [engine.state.model.copy() for engine in pair.engines]
    pair.exchange(factor=0.0)
    apart = distance(before[0][200:], before[1][200:])
    assert neighbor_distance(state, [1]) == pytest.approx(apart * 3**0.5 / norm(state.model))
    for _ in range(2):
        pair.exchange(factor=0.0)
    assert neighbor_distance(state, [1]) == pytest.approx(distance(*before) / norm(state.model))


def test_with_a_compressor_that_needs_replicas_an_edge_that_has_none_begins_anew():
    pair = Pair(spec="fragment:3", beta=0.1)
    pair.exchange()
    engine = pair.engines[0]
    recode(engine, Codecs(make_compressor("q4")))
    edge = engine.state.edges[1]
    assert edge.own.size == edge.peer.size == 300
    assert not edge.record.has_replicas


def test_without_the_need_an_edge_drops_its_replicas_and_goes_on():
    pair = Pair(spec="q4")
    pair.exchange()
    engine = pair.engines[0]
    chain = engine.state.edges[1].record.chain
    recode(engine, Codecs(make_compressor("fragment:3")))
    edge = engine.state.edges[1]
    assert edge.own.size == edge.peer.size == 0
    assert (edge.record.has_replicas, edge.record.seq, edge.record.chain) == (True, 1, chain)


def test_a_joining_node_starts_from_the_mean_of_what_it_was_shown():
    pair = Pair(spec="fragment:3")
    theirs, newcomer = pair.engines[0].state.model.copy(), pair.engines[1]
    own = newcomer.state.model.copy()
    for step in range(3):
        request = pair.freeze()
        event = pair.run(1, applied(request, gather=True))
        pair.apply_reply(event.reply)
        if step == 1:
            pair.engines[0].state.channels += 2.0  # a third fragment of a later model
    np.testing.assert_array_equal(newcomer.state.model, own)
    assert newcomer.gathering is not None
    pair.run(1, Bootstrap(peers=(0,)))
    expected = theirs + np.where(np.arange(300) // 100 == 1, 2.0, 0.0)
    np.testing.assert_allclose(newcomer.state.model, expected, atol=1e-6)
    assert newcomer.gathering is None


def test_a_joining_node_keeps_what_it_was_shown_while_it_fills_the_replicas_of_other_edges():
    """Its edge to member 2 has replicas, that to member 0 has shown two fragments of three."""
    pair = Pair(spec="fragment:3")
    theirs, newcomer = pair.engines[0].state.model, pair.engines[1]
    newcomer.state.change_edges((2,), ())
    recode(newcomer, Codecs(pair.codecs.default, {2: make_compressor("none")}))
    third = Engine(
        index=2, state=NodeState.new(np.full(300, 7, np.float32), 10, (1,)), codecs=Codecs(make_compressor("none"))
    )
    for _ in range(2):
        pair.apply_reply(pair.run(1, applied(pair.freeze(), gather=True)).reply)
        asked = pair.run(1, freeze(2, newcomer.state.edges[2].record.seq + 1)).request
        reply = third.run(replace(applied(asked), peer=1)).event.reply
        pair.run(1, ApplyReply(peer=2, reply=reply, gather=True))
    pair.run(1, Bootstrap(peers=(0, 2)))
    expected = np.where(np.arange(300) // 100 == 1, 7.0, theirs)
    np.testing.assert_allclose(newcomer.state.model, expected, atol=1e-6)


def freeze(peer, seq):
    place = {"incarnation": 0, "seq": seq, "version": 1, "echo": None}
    return Freeze(peer=peer, weight=15.0, staleness=0.0, pace_s=0.0, audit=False, **place)


def applied(request, **more):
    return ApplyRequest(peer=0, request=request, factor=0.0, weight=15.0, version=1, pace_s=0.0, **more)


def test_what_nobody_has_shown_stays_the_node_s_own():
    pair = Pair(spec="fragment:3")
    request, state = pair.freeze(), pair.engines[1].state
    gathering = FragmentMean(state.channels)
    gathering.take(pair.codecs.bodies(state, 0, request.body))
    result = gathering.result(state.channels)
    np.testing.assert_array_equal(result[:200], state.model[:200])
    np.testing.assert_array_equal(result[200:], pair.engines[0].state.model[200:])
