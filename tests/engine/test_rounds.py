"""What a local round does to the state: the delta, its scale, the number of samples, the control variate."""

from __future__ import annotations

import numpy as np
import pytest
from msgspec.structs import replace
from pair import Pair, correction, picture

from p2pfl.config import TrainingConfig
from p2pfl.core import Bootstrap, CommitRound, Refused, ReplyApplied, ResetEdge, StartRound, request_digest
from p2pfl.engine import TILE
from p2pfl.errors import LearningError
from p2pfl.learn import LocalRound
from p2pfl.methods import Method, New, make_method


def test_a_round_adds_what_training_changed_not_what_it_ended_at():
    """Mixing goes on while a round trains."""
    pair = Pair(dtype=np.float64)
    engine = pair.engines[0]
    start = engine.begin_round(StartRound(index=0, accompanied=True)).model
    pair.exchange()
    mixed = engine.state.model.copy()
    assert np.any(mixed != start)
    outcome = LocalRound(vector=start + 1.0, steps=5, learning_rate=0.1, samples=30, loss=0.0)
    engine.outcomes.put((start, outcome))
    pair.run(0, CommitRound(version=1, trained=True, rho=1.0, elapsed_s=1.0, least_samples=0.0))
    np.testing.assert_allclose(engine.state.model, mixed + 1.0)


def test_a_round_that_nothing_else_moves_takes_no_copy_of_the_model():
    engine = Pair(dtype=np.float64).engines[0]
    before = engine.state.model.copy()
    start = engine.begin_round(StartRound(index=0, accompanied=True, in_place=True)).model
    assert np.shares_memory(start, engine.state.model)
    ended = before + 1.0
    engine.outcomes.put(lambda _: LocalRound(vector=ended, steps=5, learning_rate=0.1, samples=30, loss=0.0))
    done = engine.run(CommitRound(version=1, trained=True, rho=1.0, elapsed_s=1.0, least_samples=0.0))
    np.testing.assert_allclose(engine.state.model, before + 1.0)
    assert done.change.delta is ended  # its memory


@pytest.mark.parametrize("rho", [0.5, 2.0])
def test_rho_scales_what_training_changed(rho):
    pair = Pair(dtype=np.float64)
    before = pair.engines[0].state.model.copy()
    pair.train(0, before + 1.0, rho=rho)
    np.testing.assert_allclose(pair.engines[0].state.model, before + rho)


def test_a_mixing_round_counts_as_a_version_and_changes_nothing_else():
    pair = Pair()
    model = pair.engines[0].state.model.tobytes()
    pair.run(0, CommitRound(version=1, trained=False, rho=0.0, elapsed_s=2.0, least_samples=0.0))
    state = pair.engines[0].state
    assert (state.version, state.rounds, state.samples, state.model.tobytes()) == (1, 0, 30, model)


def test_a_learner_is_told_for_how_long_its_node_has_learned():
    pair = Pair()
    engine = pair.engines[0]
    assert engine.begin_round(StartRound(index=0, accompanied=True)).elapsed_s == 0.0
    pair.run(0, CommitRound(version=1, trained=False, rho=0.0, elapsed_s=2.5, least_samples=0.0))
    assert engine.begin_round(StartRound(index=0, accompanied=True)).elapsed_s == 2.5


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_round_that_ends_at_no_number_is_dropped_whole(bad):
    pair = Pair(beta=0.1)
    pair.train(0, pair.engines[0].state.model + np.float32(1))
    pair.exchange()
    state = pair.engines[0].state
    model, variate, drift = state.model.tobytes(), correction(state, 0.1).tobytes(), state.terms
    assert np.any(correction(state, 0.1))
    ended = state.model.copy()
    ended[7] = bad
    event = pair.train(0, ended, samples=1, rate=9.0)
    assert event.failed
    assert (event.rounds, event.samples) == (2, 30)
    after = state.model.tobytes(), correction(state, 0.1).tobytes(), state.terms, state.samples
    assert after == (model, variate, drift, 30)


def test_a_round_whose_training_raised_is_counted_as_failed():
    pair = Pair()
    model = pair.engines[0].state.model.tobytes()
    event = pair.train(0, None)
    assert event.failed
    assert (event.version, event.rounds) == (1, 1)
    assert pair.engines[0].state.model.tobytes() == model


def test_an_outcome_is_taken_in_once():
    pair = Pair(dtype=np.float64)
    pair.train(0, pair.engines[0].state.model + 1.0)
    assert pair.train(0, None).failed


def test_another_number_of_samples_scales_the_control_variate():
    """So that n C stays the same."""
    pair = Pair(dtype=np.float64, beta=0.1)
    pair.train(0, pair.engines[0].state.model + 1.0)
    pair.exchange()
    state = pair.engines[0].state
    before = state.samples * correction(state, 0.1)
    event = pair.train(0, state.model.copy(), samples=10)
    assert (event.samples, state.samples) == (10, 10)
    np.testing.assert_allclose(10 * correction(state, 0.1), before, rtol=1e-12)


@pytest.mark.parametrize(("samples", "least", "expected"), [(10, 14.2, 15), (20, 14.2, 20), (1, 0.0, 1), (-5, 0.0, 1)])
def test_the_number_of_samples_never_falls_below_what_the_core_allows_nor_below_one(samples, least, expected):
    pair = Pair()
    event = pair.train(0, pair.engines[0].state.model.copy(), samples=samples, least=least)
    assert event.samples == expected == pair.engines[0].state.samples


def test_mixing_after_a_change_of_n_divides_by_the_new_one_and_conserves():
    pair = Pair(dtype=np.float64)
    pair.exchange()
    pair.train(0, pair.engines[0].state.model.copy(), samples=17)
    before = pair.total()
    for _ in range(10):
        pair.exchange(factor=8.0)
    assert np.abs(pair.total() - before).max() < 1e-11


def test_without_a_rate_there_is_no_variate():
    pair = Pair(beta=0.0)
    pair.train(0, pair.engines[0].state.model + np.float32(1))
    pair.exchange()
    assert pair.engines[0].state.edges[1].kept == {}
    assert pair.engines[0].begin_round(StartRound(index=0, accompanied=True)).method is None


def test_the_variate_moves_against_the_flow_by_beta_over_the_drift():
    pair = Pair(dtype=np.float64, beta=0.1)
    for index in (0, 1):
        pair.train(index, pair.engines[index].state.model.copy(), steps=4, rate=0.5)
    before = pair.engines[0].state.model.copy()
    pair.exchange()
    state = pair.engines[0].state
    np.testing.assert_allclose(correction(state, 0.1), -0.1 * (state.model - before) / (4 * 0.5), rtol=1e-12)


def test_a_start_from_the_neighbors_is_their_coordinate_median_and_keeps_the_flows():
    """Dropped at this end alone they would leave the neighbors with the other half."""
    pair = Pair(spec="none", beta=0.1)
    pair.train(0, pair.engines[0].state.model + np.float32(1))
    pair.exchange()
    pair.exchange(factor=0.0)
    theirs = pair.engines[1].state.model.tobytes()
    flow = pair.engines[0].state.edges[1].kept["flow"].tobytes()
    pair.run(0, Bootstrap(peers=(1,), rounds=7))
    state = pair.engines[0].state
    assert state.model.tobytes() == theirs
    assert state.model.dtype == np.float32
    assert state.edges[1].kept["flow"].tobytes() == flow
    assert state.rounds == 7


@pytest.mark.parametrize("spec", ["none", "q4"])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_the_flow_has_the_same_bits_with_opposite_signs_at_both_ends(spec, dtype):
    pair = Pair(spec=spec, dtype=dtype, beta=0.1, samples=(30, 97))
    for seed in range(20):
        pair.train(seed % 2, pair.engines[seed % 2].state.model * dtype(0.9), steps=1 + seed % 3, samples=30 + seed)
        pair.exchange(factor=3.0 + seed / 7)
    first, second = (engine.state.edges[1 - engine.index].kept["flow"] for engine in pair.engines)
    assert np.any(first)
    assert (-first).tobytes() == second.tobytes()


def test_an_edge_that_begins_anew_has_no_flow():
    pair = Pair(beta=0.1)
    pair.train(0, pair.engines[0].state.model + np.float32(1))
    pair.exchange()
    pair.run(0, ResetEdge(peer=1, incarnation=1))
    assert not np.any(correction(pair.engines[0].state, 0.1))
    assert np.any(correction(pair.engines[1].state, 0.1))


def test_a_snapshot_for_training_is_a_copy():
    pair = Pair(beta=0.1)
    before = picture(pair.engines[0].state)
    start = pair.engines[0].begin_round(StartRound(index=0, accompanied=True))
    model, variate = start.model, start.given["correction"]
    model += 1.0
    variate += 1.0
    assert picture(pair.engines[0].state) == before


# -- What an engine makes of a method of the user's own, however it was written.


class Users(Method):
    is_users = True
    channels = ("model", "second")
    kept = ("last",)
    kept_edges = ("passed",)
    given = ("seen",)
    no_terms = (0.0,)

    def begin(self, node):
        return {"seen": node.channels["second"]}

    def gradient(self, g, w, start):
        return g

    def trained(self, change, node, round):  # noqa: A002 - the base's
        return New({"model": change * change.dtype.type(0.5), "second": change}, {"last": change})

    def terms(self, round):  # noqa: A002 - the base's
        return (float(round.steps),)

    def agree(self, ours, theirs):
        return (max(ours[0], theirs[0]),)

    def moves(self, terms):
        return terms[0] > 0

    def moved(self, edge, move, terms):
        return {"passed": edge["passed"] + move * move.dtype.type(terms[0])}


@pytest.mark.parametrize("size", [30, TILE + 3])
def test_each_channel_and_what_is_kept_get_what_the_method_gave_them(size):
    pair = Pair(method=Users(), size=size)
    state = pair.engines[0].state
    before = state.model.copy()
    pair.train(0, before + np.float32(1))
    np.testing.assert_allclose(state.model, before + 0.5, rtol=1e-6)
    np.testing.assert_allclose(state.channels[size:], 1.0, rtol=1e-6)
    np.testing.assert_allclose(state.kept["last"], 1.0, rtol=1e-6)


@pytest.mark.parametrize("where", ["second", "last"])
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_what_is_not_finite_anywhere_drops_the_round(where, value):
    class Bad(Users):
        def trained(self, change, node, round):  # noqa: A002 - the base's
            bad = np.full_like(change, value)
            return New({"second": bad}, {}) if where == "second" else New({}, {"last": bad})

    pair = Pair(method=Bad())
    before = picture(pair.engines[0].state)
    assert pair.train(0, pair.engines[0].state.model + np.float32(1)).failed
    assert picture(pair.engines[0].state)[0] == before[0]
    assert pair.engines[0].state.kept == {}


def test_what_a_round_is_given_does_not_move_while_it_trains():
    pair = Pair(method=Users())
    for index in (0, 1):
        pair.train(index, pair.engines[index].state.model + np.float32(index + 1))
    start = pair.engines[0].begin_round(StartRound(index=0, accompanied=True))
    given = start.given["seen"].copy()
    assert isinstance(pair.exchange(), ReplyApplied)
    np.testing.assert_array_equal(start.given["seen"], given)
    assert (pair.engines[0].state.channels[given.size :] != given).any()


def test_a_sum_over_edges_has_the_part_that_is_asked_for():
    sums = []

    class Summing(Users):
        def trained(self, change, node, round):  # noqa: A002 - the base's
            sums.append(node.sum_of_edges("passed", "second"))
            return New({"model": change + sums[-1]})

    size = TILE + 3
    pair = Pair(method=Summing(), size=size)
    for index in (0, 1):
        pair.train(index, pair.engines[index].state.model + np.float32(index + 1))
    pair.exchange()
    sums.clear()
    pair.train(0, pair.engines[0].state.model.copy())
    np.testing.assert_array_equal(np.concatenate(sums), pair.engines[0].state.edges[1].kept["passed"][size:])


@pytest.mark.parametrize("needs_company", [True, False])
def test_the_edges_to_who_is_away_do_not_count_in_a_round_that_needs_company(needs_company):
    """What they hold is kept for when the neighbor is back."""

    class Balancing(Users):
        def begin(self, node):
            return {"seen": node.sum_of_edges("passed")}

    Balancing.needs_company = needs_company
    pair = Pair(method=Balancing())
    for index in (0, 1):
        pair.train(index, pair.engines[index].state.model + np.float32(index + 1))
    pair.exchange()
    engine = pair.engines[0]
    assert engine.begin_round(StartRound(index=0, accompanied=True)).given["seen"].any()
    assert engine.begin_round(StartRound(index=0, accompanied=True, away=(1,))).given["seen"].any() != needs_company
    assert engine.begin_round(StartRound(index=0, accompanied=True)).given["seen"].any()


def test_a_rounds_outcome_is_judged_by_what_the_round_was_given_not_by_what_mixing_brought_since():
    """And a round that was trained alone was given nothing."""
    seen = []

    class Noting(Users):
        needs_company = True

        def trained(self, change, node, round):  # noqa: A002 - the base's
            seen.append(node.given["seen"].copy())
            return super().trained(change, node, round)

    pair = Pair(method=Noting())
    for index in (0, 1):
        pair.train(index, pair.engines[index].state.model + np.float32(index + 1))
    engine = pair.engines[0]
    given = engine.begin_round(StartRound(index=0, accompanied=True)).given["seen"].copy()
    pair.exchange()
    pair.train(0, engine.state.model)
    np.testing.assert_array_equal(seen[-1], given)
    assert given.any()
    engine.begin_round(StartRound(index=0, accompanied=False))
    pair.train(0, engine.state.model)
    assert not seen[-1].any()


def test_what_an_exchange_agrees_on_stays_with_both_ends_until_their_next_round():
    pair = Pair(method=make_method("fair:q=1", TrainingConfig()))
    for index, loss in ((0, 2.0), (1, 8.0)):
        pair.train(index, pair.engines[index].state.model, loss=loss)
    pair.exchange()
    largest = [engine.state.terms[1] for engine in pair.engines]
    assert largest == [pytest.approx(8.0), pytest.approx(8.0)]
    pair.train(0, pair.engines[0].state.model, loss=4.0)
    assert pair.engines[0].state.terms[1:] == (pytest.approx(8.0), 0.0, pytest.approx(4.0))


def test_the_first_round_of_a_node_is_no_way_from_nothing_to_its_model():
    pair = Pair(method=make_method("outer:momentum=0.5,rate=1", TrainingConfig()))
    state = pair.engines[0].state
    before = state.model.copy()
    pair.train(0, before + np.float32(1))
    np.testing.assert_allclose(state.model, before + 1, rtol=1e-6)
    pair.train(0, state.model + np.float32(1))
    np.testing.assert_allclose(state.model, before + 2.5, rtol=1e-5)


def told(pair, terms):
    request = replace(pair.freeze(), terms=terms)
    return replace(request, digest=request_digest(request))


class Dividing(Users):
    def agree(self, ours, theirs):
        return (1 / theirs[0],)


@pytest.mark.parametrize(
    ("method", "terms"),
    [(Users, ()), (Users, (1.0, 2.0)), (Users, (1e300,)), (Dividing, (0.0,))],
)
def test_a_neighbors_terms_that_a_method_cannot_take_are_refused_and_leave_no_trace(method, terms):
    pair = Pair(method=method())
    before = picture(pair.engines[1].state)
    assert isinstance(pair.apply_request(told(pair, terms)), Refused)
    assert picture(pair.engines[1].state) == before
    assert pair.engines[1].state.edges[0].kept == {}


def test_a_method_that_chokes_on_terms_is_named_in_the_reason():
    refused = Pair(method=Dividing())
    assert "ZeroDivisionError" in refused.apply_request(told(refused, (0.0,))).reason


WRONG = {
    "a name that is not there": {"trained": lambda _, change, *_rest: New({"modle": change})},
    "an error": {"trained": lambda *_: 1 / 0},
    "a term that cannot travel": {"terms": lambda *_: (-1.0,)},
    "too many terms": {"terms": lambda *_: (1.0, 2.0)},
}


@pytest.mark.parametrize("case", WRONG)
def test_a_method_that_fails_is_told_in_one_line(case):
    pair = Pair(method=type("Wrong", (Users,), WRONG[case])())
    with pytest.raises(LearningError, match="the learning method"):
        pair.train(0, pair.engines[0].state.model + np.float32(1))


def test_a_method_that_gives_something_else_than_it_says_is_told():
    pair = Pair(method=type("Wrong", (Users,), {"begin": lambda *_: {}})())
    with pytest.raises(LearningError, match="gives"):
        pair.engines[0].begin_round(StartRound(index=0, accompanied=True))
