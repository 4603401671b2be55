"""Liars in a simulation: what they see, what the honest refuse of it, what it does to them."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from oracle import checked

from p2pfl.errors import UserError
from sim import (
    Attack,
    Backdoor,
    ChurnSpec,
    ComputeSpec,
    LabelFlip,
    Liars,
    LiarSpec,
    LinkSpec,
    ShownModels,
    Spread,
    WorldSpec,
    describe,
    simulate,
)
from sim.learning.nodes import poisoned

SELDOM_S = 5.0
"""Scores on the way are not what is looked at."""


def small(**changes):
    wanted = {"nodes": 6, "topology": "random-regular:degree=3", "rounds": 3, "partition": "iid", "seed": 2}
    federation = describe(**(wanted | changes))
    gossip = replace(federation.gossip, start_wait_s=0.2, linger_s=0.5)
    training = replace(federation.training, local_steps=3, when_through="mix")  # as many rounds with liars as without
    return replace(federation, training=training, gossip=gossip)


def plainly(federation, world):
    return simulate(federation, world=world, references=False)


def run(attack, federation=None, simulated=plainly, *, nodes=(1, 4)):
    world = WorldSpec(liars=LiarSpec(attack=attack, nodes=nodes) if attack else None, evaluate_every_s=SELDOM_S)
    return simulated(federation or small(), world=world)


def alarms(report, kind):
    return sum(node.alarms.get(kind, 0) for node in report.nodes if not node.byzantine)


# -- what they see -----------------------------------------------------------------------------------------------------


def test_a_liar_sees_every_model_as_it_is_and_the_peers_mixing_weights():
    federation = small(nodes=4, topology="path")
    seen = []

    def lie(sight):
        seen.append(sight)
        return sight.victim

    models = {node: np.full(5, float(node)) for node in range(4)}
    hosts = [
        SimpleNamespace(
            engine=SimpleNamespace(state=SimpleNamespace(shown=models[node])),
            core=SimpleNamespace(facts=SimpleNamespace(rounds=10 + node)),
        )
        for node in range(4)
    ]
    learner = SimpleNamespace(initial=lambda: np.zeros(5))
    everybody = {"learners": [learner] * 4, "samples": [10, 20, 60, 8]}
    liars = Liars(Attack(spec="x", lie=lie), federation, frozenset({1, 3}), **everybody)
    shown = ShownModels(4, lambda node: hosts[node].engine.state.shown)
    liars.meet(shown, lambda node: hosts[node].core.facts.rounds)
    hosts[2].engine.state.shown = models[2] + 0.5
    shown = liars.show(1)(models[1], 2)
    assert np.array_equal(shown, models[2] + 0.5)
    liars.show(1)(models[1], 0)
    liars.show(3)(models[3], 2)
    assert [(sight.node, sight.peer, sight.count, sight.rounds) for sight in seen] == [
        (1, 2, 0, 11),
        (1, 0, 1, 11),
        (3, 2, 0, 13),
    ]
    assert seen[0].lying == (1, 3)
    assert seen[1].known == ()
    assert np.array_equal(seen[0].around, [models[2] + 0.5])
    # c = min(n_i/(deg_i+1), n_j/(deg_j+1)), a = c/n_i: node 2 has 60 samples and two neighbors, node 0 has 10 and one
    assert seen[0].weights == pytest.approx({1: (20 / 3) / 60, 3: (8 / 2) / 60})
    assert seen[1].weights == pytest.approx({1: (10 / 2) / 10})


def test_under_a_robust_rule_a_liar_counts_on_the_weight_that_it_boasts_of_and_on_no_gamma():
    federation = small(nodes=4, topology="path")
    federation = replace(federation, gossip=replace(federation.gossip, rule="cs+:b=1", gamma=0.5))
    learner = SimpleNamespace(initial=lambda: np.zeros(5))
    everybody = {"learners": [learner] * 4, "samples": [10, 20, 60, 8]}
    liars = Liars(Attack(spec="x"), federation, frozenset({3}), **everybody)
    assert liars._weights(2) == pytest.approx({1: (20 / 3) / 60, 3: (60 / 3) / 60})


# -- what is refused ---------------------------------------------------------------------------------------------------


@pytest.mark.long
@pytest.mark.parametrize(("attack", "compressor"), [("nan", "q4"), ("wrong-shape", "sign")])
def test_what_is_no_model_is_refused_moves_nothing_and_stops_nobody(attack, compressor):
    report = run(attack, small(compressor=compressor, rounds=2), checked)
    assert alarms(report, "request-refused")
    assert alarms(report, "reply-refused")
    assert all(node.finished and node.rounds >= 2 for node in report.nodes if not node.byzantine)
    assert np.isfinite(report.loss.max)


@pytest.mark.long
def test_a_liar_that_wakes_up_to_say_nonsense_moves_nothing_by_it():
    """By then the edges mix, so that an exchange that one end refuses would break the conservation of the sum."""
    report = run("sleeper:nan@2", small(rounds=4), checked)
    assert alarms(report, "reply-refused")


@pytest.mark.long
@pytest.mark.parametrize("attack", ["wrong-shape", "flood:alie"])
def test_liars_crash_and_come_back_with_every_invariant_intact(attack):
    world = WorldSpec(
        compute=ComputeSpec(speed=Spread(kind="log-uniform", low=0.1, high=1.0), jitter=0.2),
        links=LinkSpec(drop=0.05, duplication=0.1, jitter_s=0.02),
        churn=ChurnSpec(up_s=0.05, down_s=0.02, until_s=0.2, amnesia=0.3, nodes=tuple(range(6))),
        liars=LiarSpec(attack=attack, nodes=(1, 4)),
        evaluate_every_s=SELDOM_S,
    )
    report = checked(small(), world=world)
    assert sum(node.starts for node in report.nodes if node.byzantine) > 2


@pytest.mark.long
def test_a_flood_exchanges_far_more_and_stops_nobody():
    calm, flooded = run(None), run("flood")
    honest = [index for index in range(6) if index not in {1, 4}]
    before, after = (sum(report.nodes[index].exchanges for index in honest) for report in (calm, flooded))
    assert after > 2 * before
    assert not alarms(flooded, "resync")
    assert all(node.finished for node in flooded.nodes)
    assert flooded.accuracy.min > calm.accuracy.min - 0.05


def beside_a_hub_that_lies(attack, honest):
    """Mean accuracy of so many honest nodes, all joined, with one liar that is a neighbor of all of them."""
    federation = describe(
        nodes=honest + 1, topology="complete", rounds=12, rule="hampel:b=1", partition="dirichlet:0.5"
    )
    federation = replace(federation, training=replace(federation.training, closing_rounds=1))
    liars = LiarSpec(attack=attack, nodes=(honest,))
    return simulate(federation, world=WorldSpec(liars=liars, evaluate_every_s=1000.0), references=False).accuracy.mean


@pytest.mark.long
@pytest.mark.parametrize(("honest", "most", "least"), [(5, 1.0, 0.05), (9, 0.035, -1.0)])
def test_ascent_takes_more_than_spectral_where_four_neighbors_are_honest_and_much_less_where_eight_are(
    honest, most, least
):
    spectral, ascent = (beside_a_hub_that_lies(attack, honest) for attack in ("spectral", "ascent"))
    assert least < spectral - ascent < most


def test_a_task_whose_loss_has_no_gradient_cannot_be_climbed():
    federation = small()
    federation = replace(federation, task=replace(federation.task, name="quadratic", options={}))
    with pytest.raises(UserError, match="attack: the loss of such a task cannot be climbed"):
        run("ascent", federation)


# -- poisoned data -----------------------------------------------------------------------------------------------------


@pytest.mark.long
def test_the_report_has_the_success_of_poisoned_data_beside_the_accuracy():
    report = run("label-flip")
    for node in report.nodes:
        assert 0 <= node.attack_success <= 1
    honest = [node.attack_success for node in report.nodes if not node.byzantine]
    success = report.attack_success
    assert (success.mean, success.min, success.max) == (pytest.approx(np.mean(honest)), min(honest), max(honest))
    assert run("sign-flip:0.1").attack_success is None


@pytest.mark.long
def test_references_know_nothing_of_the_poison():
    spoiled, clean = (
        simulate(small(), world=WorldSpec(liars=liars)).reference.centralized.all_nodes.accuracy
        for liars in (LiarSpec(attack="label-flip", nodes=(1, 4)), None)
    )
    assert spoiled == clean


def test_learners_of_a_users_own_cannot_be_poisoned():
    with pytest.raises(UserError, match="cannot be poisoned"):
        poisoned([object()], None, frozenset({0}))


BITES = (
    *(("sign-flip", 0.3), ("ipm", 0.3), ("foe", 0.3), ("dissensus", 0.1), ("flood:ipm", 0.3), ("mimic", 0.005)),
    *(("noise:1", 0.03), ("spectral", 0.03), ("sleeper:ipm@3", 0.05), ("alie", 0.01), ("label-flip", 0.03)),
)


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize(("attack", "loses"), BITES)
def test_an_attack_on_the_mean_bites(attack, loses, calm):
    found = simulate(
        bitten(), world=WorldSpec(liars=LiarSpec(attack=attack, count=2), evaluate_every_s=SELDOM_S), references=False
    )
    assert found.accuracy.mean < calm.accuracy.mean - loses


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize(("attack", "poison", "gains"), [("backdoor", Backdoor, 0.5), ("label-flip", LabelFlip, 0.02)])
def test_poison_leads_samples_where_it_should_while_accuracy_hardly_tells(attack, poison, gains, monkeypatch):
    world = WorldSpec(liars=LiarSpec(attack=attack, count=2), evaluate_every_s=SELDOM_S)
    found = simulate(bitten(), world=world, references=False)
    monkeypatch.setattr(poison, "spoil", lambda _self, samples, **_: samples)
    harmless = simulate(bitten(), world=world, references=False)
    assert harmless.accuracy.min > 0.9
    for which in ("mean", "min"):
        assert getattr(found.attack_success, which) > getattr(harmless.attack_success, which) + gains
    assert found.accuracy.mean > harmless.accuracy.mean - 0.1


def bitten():
    federation = describe(nodes=10, topology="random-regular:degree=4", rounds=15, seed=1, partition="dirichlet:0.5")
    # As many rounds with liars as without.
    return replace(federation, training=replace(federation.training, when_through="mix"))


@pytest.fixture(scope="module")
def calm():
    return simulate(bitten(), world=WorldSpec(evaluate_every_s=SELDOM_S), references=False)


def test_nobody_trains_on_for_a_quarantined_member_not_even_those_who_have_never_met_it():
    federation = small(rounds=100)
    report = run("nan", replace(federation, training=replace(federation.training, when_through="train-on")), nodes=(5,))
    assert (2, 5) not in federation.edges
    assert {node.ended_by for node in report.nodes if not node.byzantine} <= {
        "everybody who took part was through",
        "every neighbor that was there had stopped training",
    }
