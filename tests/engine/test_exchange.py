"""One transaction on vectors: what it conserves, what both ends share bit for bit, and what is refused."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
from msgspec.structs import replace

from p2pfl.core.events import Refused, ReplyApplied, RequestApplied, ResetEdge
from p2pfl.core.limits import Fault

sys.path.insert(0, str(Path(__file__).parent))
from pair import SIZE, Pair, picture

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
