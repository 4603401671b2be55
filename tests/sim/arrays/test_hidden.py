"""Hidden models as arrays: the rounds of real learners, their bytes, who chooses arrays, what is refused, the audit."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from p2pfl import Federation
from p2pfl.errors import UserError
from p2pfl.features.sums import bytes_each
from p2pfl.learn import AveragedLearner, RoundStart, method_of
from sim import (
    World,
    describe,
    layers_of,
    load_learners,
    make_job,
    observe_simulated,
    scene_of,
    simulate,
)
from sim.sweeps.job import run

HIDE = "hide=models"


def hidden(nodes=6, rounds=3, privacy=HIDE, **options):
    return describe(nodes=nodes, rounds=rounds, privacy=privacy, **options)


def by_hand(federation):
    """The model that real learners get to, and the 64-bit words of one part."""
    learners, count, method = load_learners(federation), len(federation.members), method_of(federation)
    how = {"members": count, "seed": federation.seed, "method": method}
    nodes = [AveragedLearner(one, federation.hides, node=node, **how) for node, one in enumerate(learners)]
    model = learners[0].initial()
    for node in nodes:
        node.averaged.rows = sum(one.samples for one in learners)
    for number in range(federation.training.rounds):
        total = np.zeros(nodes[0].averaged.entries, np.uint64)
        for node in nodes:
            node.train(RoundStart(model), number)
            total += node.averaged.part
        assert nodes[0].averaged.is_possible(total, count)
        (model, *others) = [node.averaged.next_model(model, total, count, number) for node in nodes]
        assert all((model == other).all() for other in others)
    return model, nodes[0].averaged.entries


@pytest.mark.parametrize(
    ("spec", "method", "atol"),
    [
        ("hide=models,outer=mean,bits=24", "plain", 1e-4),
        ("hide=models,outer=momentum,outer_rate=0.5", "prox:mu=0.1", 5e-3),
        ("hide=models", "plain", 2e-2),
        ("hide=models,outer=mean,bits=24", "variate:beta=0.5", 1e-4),
        ("hide=models,outer=mean,bits=24", "normalized", 1e-4),
    ],
)
def test_a_run_is_the_rounds_of_real_learners(spec, method, atol):
    federation, models = hidden(privacy=spec, method=method), []
    if method == "normalized":
        training = replace(federation.training, local_steps=None, local_epochs=1)
        task = replace(federation.task, options={"partition": "dirichlet:0.5"})
        federation = replace(federation, training=training, task=task)
    report = simulate(federation, arrays=True, on_models=models.append)
    model, entries = by_hand(federation)
    assert (models[0] == models[0][0]).all()
    np.testing.assert_allclose(models[0][0], model, atol=atol)
    assert report.bytes_sent == 6 * (3 * bytes_each(entries, 6) + bytes_each(2, 6))
    assert (report.messages_sent, report.consensus_distance) == (None, pytest.approx(0.0, abs=1e-9))
    assert report.computed.startswith("arrays, a sum each round")


def test_ten_rounds_learn_and_repeat_in_the_time_of_the_slowest():
    report, again, slow = (
        simulate(hidden(rounds=10), world=world, arrays=True)
        for world in (World(), World(), World(slow=[{"nodes": [3], "speed": 0.1}]))
    )
    assert report.accuracy.min > 0.85
    assert report.history[-1] == again.history[-1]
    assert set(report.rounds.values()) == {10}
    assert slow.accuracy == report.accuracy
    assert slow.virtual_time_s > 3 * report.virtual_time_s
    assert report.contraction.predicted is None


@pytest.mark.parametrize(
    ("how", "key"),
    [
        ({"world": World(crash=[{"nodes": [1], "at_s": 0.1}])}, "crash"),
        ({"world": World(liars={"nodes": [3], "attack": "sign-flip"})}, "liars.attack"),
        ({"clock": "in-step"}, "clock"),
    ],
)
def test_what_is_not_simulated_of_hidden_models_is_one_sentence(how, key):
    with pytest.raises(UserError, match="arrays cannot simulate this") as caught:
        simulate(hidden(), arrays=True, **how)
    assert caught.value.key == key


def test_a_model_too_large_for_a_sum_is_refused(monkeypatch):
    monkeypatch.setattr("p2pfl.features.shared_noise.rounds.MOST_ENTRIES", 40)
    with pytest.raises(UserError, match="too large for hidden models"):
        simulate(hidden(), arrays=True)


def test_a_sweep_runs_them_with_arrays_and_without(tmp_path):
    ward = tmp_path / "ward"
    Federation(nodes=4, rounds=1, privacy={"hide": "models", "bits": 4}).save(ward)
    for options in ({"base": str(ward)}, {"nodes": 4, "rounds": 1, "privacy": "hide=models,bits=4"}):
        assert run(make_job({**options, "arrays": True}, 0)).computed.startswith("arrays, a sum each round")
    assert run(make_job({"base": str(ward), "references": True}, 0)).reference.fedavg is not None
    world = tmp_path / "world.toml"
    world.write_text("[[amend]]\nat_s = 1.0\nleave = [2]\n")
    with pytest.raises(UserError, match="is not simulated where models are hidden"):
        run(make_job({"base": str(ward), "world": str(world)}, 0))


def test_an_audit_sees_the_mean_change_of_two(tmp_path):
    Federation(nodes=4, rounds=2, privacy={"hide": "models", "bits": 24}, options={"hidden": 16}).save(tmp_path / "w")
    scene = scene_of(tmp_path / "w")
    (federation,) = [layer.federation for layer in layers_of(scene) if layer.name == "hidden, 24 bits"]
    learners = scene.learners(federation)
    first, _ = observe_simulated(federation, learners, 0).rounds()
    pair = [learners[0], learners[federation.neighbors(0)[0]]]
    changes = [one.train(RoundStart(first.start), 0).vector - first.start for one in pair]
    mean = np.average(changes, axis=0, weights=[one.samples for one in pair])
    np.testing.assert_allclose(first.change, mean, atol=5e-3)
    assert np.corrcoef(first.change, mean)[0, 1] > 0.99
