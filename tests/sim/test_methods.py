"""Methods in simulated federations: the same bits batched or not, a method with a second channel, known optima."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest
from oracle import checked

from p2pfl.config import TaskConfig
from p2pfl.learn import NodeContext, QuadraticLearner, QuadraticTask
from p2pfl.methods import CONSERVATIVE, METHODS, MODEL, Method, New, like
from sim import ComputeSpec, CrashSpec, LinkSpec, Spread, WorldSpec, describe, simulate

TEN_LINES = """
from p2pfl import Method


class prox(Method):
    def __init__(self, mu=0.01):
        self.mu = mu

    def gradient(self, g, w, start):
        return g + self.mu * (w - start["anchor"])
"""
FAR_APART = ComputeSpec(speed=Spread(kind="log-uniform", low=0.2, high=1.0), jitter=0.2)
BAD = WorldSpec(
    compute=FAR_APART,
    links=LinkSpec(drop=0.05, duplication=0.1, jitter_s=0.02),
    crashes=(CrashSpec(nodes=(1,), at_s=0.12, down_s=0.05), CrashSpec(nodes=(3,), at_s=0.2, down_s=0.05, amnesia=True)),
)
LATER = replace(
    BAD,
    crashes=(CrashSpec(nodes=(1,), at_s=0.5, down_s=0.1), CrashSpec(nodes=(2,), at_s=1.0, down_s=0.1, amnesia=True)),
)


def digits(method, *, rule="mean", **training):
    described = describe(nodes=6, topology="complete", rounds=4, partition="dirichlet:1", rule=rule, method=method)
    gossip = replace(described.gossip, start_wait_s=0.2, linger_s=1.0)
    return replace(described, training=replace(described.training, local_steps=3, **training), gossip=gossip)


def digest(federation, *, world=BAD):
    report = simulate(federation, world=world, references=False)
    return report.digest, report.value_digest


@pytest.mark.long
def test_a_plug_in_file_is_the_built_in_method_and_with_no_pull_it_is_plain(tmp_path):
    (tmp_path / "prox.py").write_text(TEN_LINES)
    mine = f"{tmp_path}/prox.py:prox"
    plain, built_in, own, none = (
        digest(quadratic(4, method)) for method in ("plain", "prox:mu=0.5", f"{mine},mu=0.5", f"{mine},mu=0")
    )
    assert own == built_in != plain == none


@pytest.mark.long
def test_a_method_that_a_robust_rule_can_carry_runs_under_it():
    found = simulate(digits("prox:mu=0.5", rule="hampel:b=1"), world=WorldSpec(), references=False)
    assert not found.reached_limit


class Toy(Method):
    """Of everything one: a second channel, a vector of the node, a vector of each edge, a term.

    Outer momentum m <- mu m + change moves the model by (1 - mu) m, so that a steady change counts once. The second
    channel adds up what each node's rounds have changed; mixing spreads the sum over the federation.
    """

    profiles = frozenset({CONSERVATIVE})
    channels = (MODEL, "moved")
    kept = ("momentum",)
    kept_edges = ("passed",)
    given = ("pull",)
    no_terms = (0.0,)
    mu = 0.5
    seen: ClassVar[list[float]] = []

    def begin(self, node):
        self.seen.append(float(np.abs(node.channels["moved"]).max()))
        return {"pull": 0.0 * node.sum_of_edges("passed")}

    def gradient(self, g, w, start):
        return g + start["pull"]

    def trained(self, change, node, round):  # noqa: A002 - the base's
        momentum = node.kept["momentum"] * like(change, self.mu) + change
        return New({MODEL: momentum * like(change, 1 - self.mu), "moved": change}, {"momentum": momentum})

    def terms(self, round):  # noqa: A002 - the base's
        return (float(round.steps),)

    def agree(self, ours, theirs):
        return (max(ours[0], theirs[0]),)

    def moves(self, terms):
        return terms[0] > 0

    def moved(self, edge, move, terms):
        return {"passed": edge["passed"] + move}


@pytest.fixture
def toy(monkeypatch):
    monkeypatch.setitem(METHODS.entries, "plain", replace(METHODS["plain"], made=Toy))
    Toy.seen.clear()


def quadratic(rounds, method="plain"):
    plain = describe(nodes=5, topology="ring", rounds=rounds, compressor="none", method=method)
    options = {"size": 8, "condition": 1.0, "samples": [10, 30, 20, 40, 25]}
    training = replace(plain.training, local_steps=2, learning_rate=0.1, evaluate_every=0, closing_rounds=40)
    gossip = replace(plain.gossip, start_wait_s=0.5, linger_s=2.0)
    return replace(plain, task=TaskConfig(name="quadratic", options=options), training=training, gossip=gossip)


@pytest.mark.long
@pytest.mark.usefixtures("toy")
def test_a_second_channel_and_outer_momentum_keep_every_invariant_in_bad_luck():
    """Among them the sum of n times each channel, and what an edge keeps: opposite at both ends, bit for bit."""
    report = checked(quadratic(20), world=LATER)
    assert all(row.finished for row in report.nodes)
    assert max(Toy.seen) > 0.1


@pytest.mark.long
@pytest.mark.parametrize("method", ["tracking", "momentum:mu=0.5", "outer", "fair:q=1"])
def test_each_channel_is_conserved_and_flows_stay_opposite_through_crashes_and_a_lost_folder(method):
    report = checked(quadratic(10, method), world=LATER)
    assert all(row.finished for row in report.nodes)


@pytest.mark.long
def test_a_lost_folder_leaves_no_bias_in_gradient_tracking():
    """Measured: 2e-7 above the optimum with it and without it."""
    world = WorldSpec(evaluate_every_s=1000.0, crashes=(CrashSpec(nodes=(2,), at_s=2.0, down_s=0.1, amnesia=True),))
    assert excess(quadratic(150, "tracking"), world).max() < 1e-5


def excess(federation, world=WorldSpec(evaluate_every_s=1000.0)):  # noqa: B008 - it is frozen
    """How far each node ends above the known optimum."""
    report = simulate(federation, world=world, references=False)
    context = NodeContext(node=0, nodes=5, name="node0", seed=0, base_dir=Path())
    learner = QuadraticLearner(QuadraticTask(**federation.task.options), context, federation.training)
    least = learner.evaluate(learner.optimum(), "test").loss
    return np.array([row.test_loss - least for row in report.nodes])


@pytest.mark.long
def test_a_method_with_outer_momentum_ends_where_plain_does(monkeypatch):
    """.002 above the optimum, because some nodes take more rounds: and every node there, not only all alike."""
    plain = excess(quadratic(150))
    monkeypatch.setitem(METHODS.entries, "plain", replace(METHODS["plain"], made=Toy))
    toy = excess(quadratic(150))
    assert plain.max() < 3e-3
    np.testing.assert_allclose(toy, plain, atol=2e-4)
