"""Methods that remember: what of a round, or of an exchange, goes into the next one."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from types import SimpleNamespace

import numpy as np
import pytest

from p2pfl.config import TrainingConfig
from p2pfl.methods import Round, make_method

ABOUT = Round(steps=5, learning_rate=0.1, samples=20, rho=1.5, loss=2.0, moved=0.5, terms=(3.0, 4.0, 5.0, 1.0))
SIZE = 12


@dataclass
class Node:
    """With random vectors of every name, and their parts."""

    channels: dict
    kept: dict
    given: dict
    flow: np.ndarray
    samples: float = 20
    asked: list = field(default_factory=list)

    @classmethod
    def of(cls, method, seed=0):
        rng = np.random.default_rng(seed)

        def draw(names):
            return {name: rng.standard_normal(SIZE).astype(np.float32) for name in names}

        return cls(draw(method.channels), draw(method.kept), draw(method.given), draw(["flow"])["flow"])

    def sum_of_edges(self, name, channel="model"):
        self.asked.append((name, channel))
        return self.flow.copy()

    def part(self, part):
        cut = {name: {k: v[part] for k, v in getattr(self, name).items()} for name in ("channels", "kept", "given")}
        return replace(self, **cut, flow=self.flow[part])


def made(spec):
    return make_method(spec, TrainingConfig())


@pytest.mark.parametrize("spec", ["tracking", "momentum", "outer", "fair"])
def test_each_coordinate_is_computed_alone(spec):
    method = made(spec)
    node, change = Node.of(method), np.random.default_rng(1).standard_normal(SIZE).astype(np.float32)
    whole = method.trained(change, node, ABOUT)
    parts = [method.trained(change[part], node.part(part), ABOUT) for part in (slice(0, 5), slice(5, SIZE))]
    for all_of_it, pieces in ((whole.change, [p.change for p in parts]), (whole.kept, [p.kept for p in parts])):
        for name, vector in all_of_it.items():
            assert vector.dtype == np.float32
            np.testing.assert_array_equal(vector, np.concatenate([piece[name] for piece in pieces]))


def test_a_tracker_is_the_rounds_own_gradient_and_what_mixing_has_brought_until_now():
    """K-GT, arXiv 2301.01313, Algorithm 1: z is the mean gradient of the round with its correction."""
    method = made("tracking")
    node, own = Node.of(method), np.linspace(-1, 1, SIZE).astype(np.float32)
    change = -0.5 * (own + node.given["correction"])
    new = method.trained(change, node, replace(ABOUT, rho=1.0))
    assert set(node.asked) == {("flow", "tracker")}
    after = node.channels["tracker"] + new.change["tracker"]
    np.testing.assert_allclose(after, own + node.flow / 20, atol=1e-5)
    np.testing.assert_allclose(method.begin(node)["correction"], node.flow / 20, rtol=1e-6)


def test_momentum_follows_where_the_mixed_model_went():
    """QG-DSGDm, arXiv 2102.04761, Algorithm 1: not where the own round went."""
    method = made("momentum:mu=0.75")
    node = Node.of(method)
    new = method.trained(np.full(SIZE, 100, np.float32), node, ABOUT)
    went = (node.kept["last"] - node.channels["model"]) / 0.5
    np.testing.assert_allclose(new.kept["momentum"], 0.75 * node.kept["momentum"] + 0.25 * went, rtol=1e-4)
    np.testing.assert_array_equal(new.kept["last"], node.channels["model"])
    np.testing.assert_array_equal(method.gradient(np.ones(2), None, {"momentum": np.full(2, 4.0)}), [4.0, 4.0])


def test_an_outer_step_goes_on_as_the_mixed_model_went():
    """NoLoCo, arXiv 2506.10911: mixing is in the velocity, so that momentum does not carry nodes apart."""
    method = made("outer:momentum=0.5,rate=2")
    node, change = Node.of(method), np.ones(SIZE, np.float32)
    new = method.trained(change, node, replace(ABOUT, rho=1.0))
    expected = 0.5 * (node.channels["model"] - node.kept["last"]) + 2.0
    np.testing.assert_allclose(new.change["model"], expected, rtol=1e-5)


@pytest.mark.parametrize("spec", ["momentum", "outer"])
def test_before_the_first_commit_nothing_has_moved(spec):
    method, model = made(spec), np.arange(3, dtype=np.float32)
    np.testing.assert_array_equal(method.first("last", model), model)


def test_with_a_higher_loss_a_round_counts_for_more_over_one_scale_for_all():
    """q-FedAvg, arXiv 1905.10497, Algorithm 2: F^q over h, here the largest F^q of the latest epoch."""
    method, one = made("fair:q=2"), np.ones(1)
    node = SimpleNamespace()
    about = replace(ABOUT, rho=1.0, moved=0.1, terms=(12.0, 50.0, 40.0, 7.0))
    low, high = (float(method.trained(one, node, replace(about, loss=x)).change["model"][0]) for x in (1.0, 3.0))
    assert low == pytest.approx(1 / 40)
    assert high == pytest.approx(9 / 40)
    clock, collected, used, own = method.terms(replace(about, loss=3.0))
    assert (clock, collected, used) == (13.0, 50.0, 40.0)
    assert own == pytest.approx(9)


def test_the_node_with_the_highest_loss_moves_as_far_as_with_plain():
    """A step bounded by the largest curvature was so short where labels differ that nobody learned."""
    method, about = made("fair:q=2"), replace(ABOUT, rho=1.0, loss=3.0, moved=10.0)
    for _ in range(30):
        about = replace(about, terms=method.terms(about))
        assert method.trained(np.ones(1), SimpleNamespace(), about).change["model"][0] == pytest.approx(1.0)


def test_no_node_moves_further_than_plain():
    method = made("fair:q=2")
    for loss in (0.0, -3.0, np.nan, 1e-200, 1e5, 1e300, np.inf):
        for terms in (method.no_terms, (9.0, 1e-3, 1e-3, 1e-3), (25.0, 1e200, 1e200, 1.0)):
            new = method.trained(np.ones(1), SimpleNamespace(), replace(ABOUT, rho=1.0, loss=loss, terms=terms))
            assert 0.0 <= new.change["model"][0] <= 1.0
            assert all(0.0 <= term <= 1e300 for term in method.terms(replace(ABOUT, loss=loss, terms=terms)))


def test_the_largest_is_collected_anew_in_each_epoch():
    method = made("fair")
    before = (9.0, 6.0, 8.0, 2.0)
    new = method.terms(replace(ABOUT, loss=1.0, moved=0.0, terms=before))
    assert new == (10.0, pytest.approx(1.0), 6.0, pytest.approx(1.0))
    agreed = method.agree(before, new)
    assert agreed == method.agree(new, before) == new
    assert method.agree(before, agreed) == agreed
    assert method.heard(before, agreed) == (10.0, 2.0, 6.0, 2.0)
    assert method.agree((3.0, 5.0, 1.0, 1.0), (4.0, 2.0, 7.0, 1.0)) == (4.0, 5.0, 7.0, 1.0)
