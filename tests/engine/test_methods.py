"""What an engine makes of a method of the user's own, however it was written."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

from p2pfl.config.model import TrainingConfig
from p2pfl.core.events import Refused, ReplyApplied
from p2pfl.engine.state import TILE
from p2pfl.errors import LearningError
from p2pfl.methods import Method, New, make_method

sys.path.insert(0, str(Path(__file__).parent))
from pair import Pair, picture


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
    start = pair.engines[0].begin_round(accompanied=True)
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
    assert engine.begin_round(accompanied=True).given["seen"].any()
    assert engine.begin_round(accompanied=True, away=(1,)).given["seen"].any() != needs_company
    assert engine.begin_round(accompanied=True).given["seen"].any()


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
    given = engine.begin_round(accompanied=True).given["seen"].copy()
    pair.exchange()
    pair.train(0, engine.state.model)
    np.testing.assert_array_equal(seen[-1], given)
    assert given.any()
    engine.begin_round(accompanied=False)
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
    from msgspec.structs import replace  # noqa: PLC0415 - here alone

    from p2pfl.core.messages import request_digest  # noqa: PLC0415 - as above

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
        pair.engines[0].begin_round(accompanied=True)
