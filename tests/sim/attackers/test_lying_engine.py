"""A liar's engine keeps to the protocol, sees what a neighbor sees, and cannot harm an honest one beyond its rule."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
from pair import asking

from p2pfl.aggregate import make_rule
from p2pfl.compress import make_compressor
from p2pfl.core import ApplyReply, ApplyRequest, Refused, ReplyApplied, RequestApplied
from p2pfl.engine import NORM_CEILING, Codecs, Engine, NodeState, RuleMixer
from sim import ATTACKS, BOAST, Deceiver, parse_attack

SIZE, SEED = 256, 3
HONEST, LIAR, OTHER = 0, 1, 2
FEDERATION = SimpleNamespace(
    edges=((HONEST, LIAR), (LIAR, OTHER), (HONEST, OTHER)),
    gossip=SimpleNamespace(rule="trimmed-mean:b=1"),
    seed=SEED,
)
REFUSED = ["nan", "wrong-shape"]
NEEDED = {"noise": "noise:1", "sleeper": "sleeper:sign-flip@1"}
"""how attacks are written that have no default."""


def engine_of(index, model, spec="q8"):
    peers = tuple(peer for peer in (HONEST, LIAR, OTHER) if peer != index)
    codecs = Codecs(make_compressor(spec))
    return Engine(index=index, state=NodeState.new(model, 10, peers), codecs=codecs)


def liar(attack, index=LIAR, league=(LIAR,), spec="q8"):
    model = np.random.default_rng(index).normal(size=SIZE).astype(np.float32)
    made = engine_of(index, model, spec)
    initial = np.zeros(SIZE, np.float32)
    of_itself = {"league": frozenset(league), "initial": initial, "slope": lambda model: (model @ model, 2 * model)}
    Deceiver(made, attack=parse_attack(attack), federation=FEDERATION, **of_itself)
    return made


def seen_by(engine, peer):
    """What its liar sees when it makes up a lie for that neighbor."""
    return engine.show.__self__.sight(engine.state.shown, peer)


def honest(index=HONEST, spec="q8"):
    return engine_of(index, np.random.default_rng(index).normal(size=SIZE).astype(np.float32), spec)


def ask(engine, peer, seq=1):
    return engine.run(asking(peer, seq=seq, weight=2.0)).event.request


def answer(engine, peer, request):
    operation = ApplyRequest(peer=peer, request=request, factor=0.0, weight=2.0, version=1, pace_s=0.0)
    return engine.run(operation).event


def exchange(one, other):
    """One transaction; `one` initiates."""
    replied = answer(other, one.index, ask(one, other.index, one.state.edges[other.index].record.seq + 1))
    assert isinstance(replied, RequestApplied)
    assert isinstance(one.run(ApplyReply(peer=other.index, reply=replied.reply)).event, ReplyApplied)


def test_a_lie_reaches_the_neighbor_in_place_of_the_model():
    one, other = honest(), liar("sign-flip:3")
    exchange(one, other)
    np.testing.assert_allclose(one.state.edges[LIAR].peer, -3 * other.state.model, atol=0.1)
    assert one.state.edges[LIAR].peer.tobytes() == other.state.edges[HONEST].own.tobytes()


def test_a_liar_sees_its_own_model_and_the_replicas_on_its_own_edges_alone():
    one, other = honest(), liar("alie")
    assert seen_by(other, HONEST).models == {}
    exchange(one, other)
    sight = seen_by(other, HONEST)
    assert set(sight.models) == {HONEST}
    assert sight.models[HONEST].tobytes() == one.state.edges[LIAR].own.tobytes()
    assert sight.models[HONEST].tobytes() != one.state.model.tobytes()
    assert sight.victim is sight.models[HONEST]
    assert (sight.own is other.state.shown, sight.rule, sight.seed) == (True, "trimmed-mean:b=1", SEED)


def test_a_mirror_shows_a_neighbor_what_that_one_has_shown_it():
    one, other = honest(), liar("mirror")
    for _ in range(8):
        exchange(one, other)
    np.testing.assert_allclose(one.state.edges[LIAR].peer, other.state.edges[HONEST].peer, atol=1e-3)
    np.testing.assert_allclose(one.state.edges[LIAR].peer, one.state.model, atol=1e-3)


@pytest.mark.parametrize(("rule", "told"), [("cs+:b=1", BOAST), ("mean", 2.0)])
def test_under_a_robust_rule_a_liar_boasts_of_its_weight_as_initiator_and_as_responder(rule, told):
    lying, asking = liar("sign-flip"), honest()
    known = make_rule(rule)
    lying.mixer = None if known is None else RuleMixer(known, NORM_CEILING)
    assert ask(lying, OTHER).weight == told
    assert answer(lying, HONEST, ask(asking, LIAR)).reply.weight == told


def test_another_liar_is_told_the_truth():
    other = liar("alie", index=HONEST, league=(HONEST, OTHER), spec="none")
    truth = np.frombuffer(ask(other, OTHER).body, np.float32)
    np.testing.assert_array_equal(truth, other.state.model)


@pytest.mark.parametrize("spec", ["none", "float16", "q8", "q4", "top-k:0.5+q8+zstd", "rotate+sign"])
@pytest.mark.parametrize("attack", REFUSED)
def test_what_is_no_model_is_refused_as_a_request_and_leaves_no_trace(attack, spec):
    one, other = honest(index=OTHER, spec=spec), liar(attack, spec=spec)
    before = one.state.model.copy()
    assert isinstance(answer(one, LIAR, ask(other, OTHER)), Refused)
    np.testing.assert_array_equal(one.state.model, before)
    assert not one.state.edges[LIAR].peer.any()


@pytest.mark.parametrize("spec", ["none", "q8", "q4", "top-k:0.5+q8+zstd"])
@pytest.mark.parametrize("attack", REFUSED)
def test_what_is_no_model_is_refused_as_a_reply_and_the_liar_stays_whole(attack, spec):
    one, other = honest(spec=spec), liar(attack, spec=spec)
    other.state.scratch.whole("own", other.state.model.size)[:] = 7.0  # what an earlier exchange has left there
    replied = answer(other, HONEST, ask(one, LIAR))
    assert isinstance(replied, RequestApplied)
    assert isinstance(one.run(ApplyReply(peer=LIAR, reply=replied.reply)).event, Refused)
    assert not one.state.edges[LIAR].peer.any()
    assert not other.state.edges[HONEST].own.any()
    assert np.isfinite(other.state.model).all()


@pytest.mark.parametrize("rule", ["mean", "trimmed-mean:b=1", "cs+:b=1", "scc:b=1"])
@pytest.mark.parametrize("attack", sorted(set(ATTACKS) - set(REFUSED)))
def test_every_attack_is_told_from_what_little_a_real_neighbor_sees(monkeypatch, attack, rule):
    """Before it has heard of anybody, and then from the replicas of two neighbors."""
    monkeypatch.setattr(FEDERATION.gossip, "rule", rule)
    low, other, high = honest(), liar(NEEDED.get(attack, attack)), honest(OTHER)
    for _ in range(3):
        exchange(low, other)
        exchange(other, high)
    assert set(seen_by(other, HONEST).models) == {HONEST, OTHER}
    assert np.isfinite(low.state.edges[LIAR].peer).all()
