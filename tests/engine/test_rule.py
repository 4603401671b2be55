"""The robust profile's engine: what a rule may do to the model, and what it may not."""

from __future__ import annotations

import copy

import numpy as np
import pytest
from pair import Pair, asking, picture

from p2pfl.aggregate import Mixture, make_rule
from p2pfl.core import CommitRound, Mix, Mixed, Refused
from p2pfl.engine import Codecs, Engine, ModelWasReplaced, NodeState, change, entry, redo
from p2pfl.errors import LearningError

SIZE = 40
PEERS = (1, 2, 3)


class Saying:
    """A rule that does what it is told."""

    spec, liars, least = "saying", 1, 3

    def __init__(self, act):
        self.act = act

    def mix(self, around):
        return self.act(around)


def engine_with(rule, dtype=np.float32):
    chance = np.random.default_rng(5)
    state = NodeState.new(chance.normal(size=SIZE).astype(dtype), 30, PEERS)
    for edge in state.edges.values():
        edge.peer[:] = chance.normal(size=SIZE)
    return Engine(index=0, state=state, codecs=Codecs(Pair(spec="none").codecs.of(1)), rule=rule)


def mix(engine, peers=PEERS, weights=(0.25, 0.25, 0.25)):
    return engine.run(Mix(peers=peers, weights=weights))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_the_rule_sees_the_model_the_replicas_of_those_named_and_their_weights(dtype):
    seen = []
    engine = engine_with(Saying(lambda around: seen.append(around) or Mixture(model=around.own * 2)), dtype)
    before = copy.deepcopy(engine.state)
    outcome = mix(engine, (1, 3), (0.25, 0.125))
    (around,) = seen
    np.testing.assert_array_equal([vector.dtype for vector in (around.own, *around.others)], [np.dtype(dtype)] * 3)
    np.testing.assert_array_equal(around.others, [before.edges[1].peer, before.edges[3].peer])
    assert (around.peers, around.weights.tolist()) == ((1, 3), [0.25, 0.125])
    assert outcome.event == Mixed()
    np.testing.assert_array_equal(engine.state.model, before.model * 2)


def write(around):
    around.own[:] = 7.0
    return Mixture(model=around.own)


def spoil(around):
    around.others[0][:] = 7.0
    return Mixture(model=around.own)


def raising(error):
    def act(_around):
        raise error

    return act


@pytest.mark.parametrize(
    "act",
    [
        pytest.param(raising(LearningError("no")), id="a user's error"),
        pytest.param(raising(ValueError("no")), id="any error"),
        pytest.param(raising(np.linalg.LinAlgError("no")), id="no convergence"),
        pytest.param(lambda around: Mixture(model=around.own * np.nan), id="NaN"),
        pytest.param(lambda around: Mixture(model=around.own * np.inf), id="infinite"),
        pytest.param(lambda around: Mixture(model=around.own + np.float32(1e16)), id="too long"),
        pytest.param(lambda around: Mixture(model=around.own[:-1]), id="too short"),
        pytest.param(lambda around: Mixture(model=np.stack([around.own] * 2)), id="two"),
        pytest.param(lambda _around: Mixture(model="nothing"), id="no vector"),
        pytest.param(lambda _around: None, id="no mixture"),
        pytest.param(write, id="writes to the model"),
        pytest.param(spoil, id="writes to a replica"),
    ],
)
def test_whatever_a_rule_does_wrong_leaves_everything_as_it_was(act):
    engine = engine_with(Saying(act))
    before = picture(engine.state)
    outcome = mix(engine)
    assert outcome.event == Mixed(failed=True)
    assert outcome.change is None
    assert picture(engine.state) == before


@pytest.mark.parametrize(
    ("act", "moved"),
    [
        pytest.param(lambda around: around.own.copy(), False, id="where it was"),
        pytest.param(lambda around: around.own + (around.others[0] - around.own) / 1000, False, id="hardly"),
        pytest.param(lambda around: around.own + (around.others[0] - around.own) / 4, True, id="as one neighbor pulls"),
    ],
)
def test_it_is_told_whether_a_mix_has_led_anywhere(act, moved):
    engine = engine_with(Saying(lambda around: Mixture(model=act(around))))
    engine.state.edges[3].peer[:] = engine.state.model  # a mirror, which says nothing of how far others are
    assert mix(engine).event == Mixed(moved=moved)


def test_a_mix_among_equals_leads_nowhere_and_that_is_as_it_should_be():
    engine = engine_with(Saying(lambda around: Mixture(model=around.own.copy())))
    for peer in (1, 2):
        engine.state.edges[peer].peer[:] = engine.state.model
    assert mix(engine).event == Mixed(moved=True)


@pytest.mark.parametrize("given", ["the model", "a replica"])
def test_a_rule_may_return_what_it_was_given_and_the_log_still_keeps_it(given):
    engine = engine_with(Saying(lambda a: Mixture(model=a.own if given == "the model" else a.others[1])))
    kept = mix(engine).change.model
    expected = kept.copy()
    engine.state.model[:] = 0.0
    engine.state.edges[2].peer[:] = 0.0
    np.testing.assert_array_equal(kept, expected)


def test_a_rule_in_another_type_leaves_the_model_in_its_own():
    engine = engine_with(Saying(lambda around: Mixture(model=around.own.astype(np.float64)[::-1])))
    (_, _, (blob,)) = entry(mix(engine).change)
    assert engine.state.model.dtype == np.float32
    assert bytes(blob) == engine.state.model.tobytes()


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("spec", ["trimmed-mean:b=1", "median:b=1", "cs+:b=1", "geometric-median:b=1"])
def test_the_log_gives_back_the_same_bits_without_asking_the_rule(spec, dtype):
    engine = engine_with(make_rule(spec), dtype)
    state, logged = copy.deepcopy(engine.state), []
    for version in (1, 2, 3):
        tick = CommitRound(version=version, trained=False, rho=0.0, elapsed_s=1.0, least_samples=0.0)
        done = engine.run(tick), mix(engine, weights=(0.25, 0.2, 0.1 * version))
        logged += [entry(outcome.change) for outcome in done]
    assert sum(kind == "model" for kind, _, _ in logged) == 3
    for kind, header, blobs in logged:
        redo(
            state,
            change(kind, header, [bytes(b) for b in blobs], np.dtype(dtype)),
            codecs=engine.codecs,
            method=engine.method,
        )
    assert picture(state) == picture(engine.state)


def test_a_mix_need_not_be_on_the_disk_before_anything_goes_on():
    outcome = mix(engine_with(make_rule("median:b=1")))
    assert isinstance(outcome.change, ModelWasReplaced)
    assert not outcome.urgent


def test_what_came_through_is_an_average_of_rounds_and_replaced_as_a_whole():
    parts = iter([[1.0, 0.0], [0.0, 0.0], [1.0, 1.0]])
    engine = engine_with(Saying(lambda around: Mixture(model=around.own, kept=np.array(next(parts)))))
    first = (mix(engine, (1, 2), (0.2, 0.2)), engine.mixer.kept)[1]
    assert first == {1: 1.0, 2: 0.0}
    mix(engine, (1, 2), (0.2, 0.2))
    assert engine.mixer.kept == pytest.approx({1: 0.9, 2: 0.0})
    mix(engine, (1, 3), (0.2, 0.2))
    assert engine.mixer.kept == pytest.approx({1: 0.91, 2: 0.0, 3: 1.0})
    assert first == {1: 1.0, 2: 0.0}


# -- what a refusal says of the neighbor ----------------------------------------------------------------------------


def test_a_scale_that_a_task_of_its_own_may_tell_is_no_fault():
    pair = Pair(beta=0.1)
    pair.engines[0].state.terms = (1e-12,)
    event = pair.apply_request(pair.freeze())
    assert isinstance(event, Refused)
    assert event.fault is None


def test_a_rule_that_chokes_on_the_same_again_is_logged_once(caplog):
    engine = engine_with(Saying(raising(ValueError("no"))))
    for _ in range(3):
        mix(engine)
    assert [record.getMessage() for record in caplog.records] == ["the rule raised ValueError: no"]


# -- what neighbors are shown ------------------------------------------------------------------------------------------


def halved():
    return engine_with(Saying(lambda around: Mixture(model=around.own / 2)))


def shown_to(engine, peer):
    return np.frombuffer(engine.run(asking(peer)).event.request.body, "<f4")


def commit(engine):
    return engine.run(CommitRound(version=1, trained=False, rho=1.0, elapsed_s=0.0, least_samples=0.0))


def test_until_the_next_round_is_committed_neighbors_are_shown_the_model_from_before_mixing():
    engine = halved()
    before = engine.state.model.copy()
    mix(engine)
    np.testing.assert_array_equal(shown_to(engine, 1), before)
    np.testing.assert_array_equal(engine.state.model, before / 2)
    commit(engine)
    np.testing.assert_array_equal(shown_to(engine, 2), before / 2)


def test_what_is_shown_does_not_follow_the_training_of_the_mixed_model():
    engine = halved()
    before = engine.state.model.copy()
    mix(engine)
    engine.state.channels += 1.0
    np.testing.assert_array_equal(engine.state.shown, before)


def test_a_rule_that_fails_leaves_what_is_shown_alone():
    engine = engine_with(Saying(lambda around: Mixture(model=around.own * np.nan)))
    mix(engine)
    assert engine.state.unmixed is None
    np.testing.assert_array_equal(engine.state.shown, engine.state.model)
