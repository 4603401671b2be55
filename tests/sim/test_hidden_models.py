"""Hidden models in virtual time: the sums of real nodes, beside arrays, and in worlds with deaths and cuts."""

from __future__ import annotations

import numpy as np
import pytest

from p2pfl.core import Phase
from p2pfl.errors import UserError
from sim import NS, PreparedRun, World, describe, make_learners, script, settle, simulate


def hidden(nodes=6, rounds=4, privacy="hide=models", **options):
    return describe(nodes=nodes, rounds=rounds, privacy=privacy, **options)


def run_in(world, federation=None, **how):
    return simulate(federation or hidden(), world=World(**world), references=False, **how)


def put_up(federation, **world):
    spec = settle(World(**world).spec([member.name for member in federation.members]), len(federation.members), 0)
    return PreparedRun(script(federation, spec, make_learners(federation)))


def test_a_run_agrees_with_arrays_and_counts_what_is_sent():
    models, federation = [], hidden(privacy="hide=models,outer=mean,bits=24", method="variate:beta=0.5")
    exact = run_in({}, federation, on_models=models.append)
    arrays = run_in({}, federation, arrays=True, on_models=models.append)
    np.testing.assert_allclose(models[0], models[1], atol=1e-5)
    assert (models[0] == models[0][0]).all()
    assert exact.accuracy.mean == pytest.approx(arrays.accuracy.mean, abs=0.01)
    assert set(exact.rounds.values()) == {4}
    assert arrays.bytes_sent < exact.bytes_sent < 6 * arrays.bytes_sent  # four rounds have a set-up for 64
    assert exact.messages_sent == sum(node.messages_sent for node in exact.nodes) > 500
    assert {(node.state, node.exchanges) for node in exact.nodes} == {("finished", 5)}
    assert (exact.contraction.predicted, exact.consensus_distance) == (None, 0.0)


@pytest.mark.long
def test_the_same_seed_is_the_same_run_and_another_seed_another_one():
    """`test_digests.py` compares processes."""
    world = {"jitter_s": 0.05, "loss": 0.02}
    here, again, other = (run_in(world, hidden(4, 2, seed=seed)) for seed in (0, 0, 1))
    assert (here.digest, here.value_digest) == (again.digest, again.value_digest)
    assert other.digest != here.digest


def test_who_dies_takes_its_group_out_and_the_others_end():
    world = {"crash": [{"nodes": [1], "at_s": 1.25}]}
    report = run_in(world)
    assert report.died == ["node1"]
    assert not report.reached_limit
    assert 0 < report.rounds.pop("node1") < 4
    assert set(report.rounds.values()) == {4}
    stage = put_up(hidden(), **world)
    try:
        stage.world.run(until_ns=100 * NS)
        statuses = [host.process.rounds.status() for host in stage.world.hosts if host.index != 1]
    finally:
        stage.close()
    assert {status["members_in_the_latest_sum"] for status in statuses} == {3}


@pytest.mark.long
@pytest.mark.parametrize("amnesia", [False, True])
def test_who_comes_back_has_the_models_of_the_others(amnesia):
    models = []
    crash = {"nodes": [1], "at_s": 1.25, "down_s": 0.5, "amnesia": amnesia}
    report = run_in({"crash": [crash]}, on_models=models.append)
    assert set(report.rounds.values()) == {4}
    assert report.nodes[1].starts == 2
    assert (models[0] == models[0][0]).all()


@pytest.mark.long
def test_who_comes_back_is_in_the_sums_again_long_before_a_set_up_is_used_up():
    whole, report = (
        run_in({"crash": [{"nodes": [1], "at_s": 1.25, "down_s": 0.5}][:crashes]}, hidden(6, 20)).accuracy.mean
        for crashes in (0, 1)
    )
    assert report > whole - 0.05


def test_who_is_cut_off_follows_once_it_is_back_and_who_is_slow_sets_the_pace():
    usual = run_in({})
    cut = run_in({"partition": [{"groups": [[0]], "at_s": 1.1, "until_s": 8.0}]})
    assert set(cut.rounds.values()) == {4}
    assert cut.virtual_time_s > 8.0
    assert run_in({"slow": [{"nodes": [2], "speed": 0.2}]}).virtual_time_s > usual.virtual_time_s + 0.5


def test_a_run_of_too_few_for_a_sum_is_over():
    report = run_in({"crash": [{"nodes": [0, 3], "at_s": 1.1}]}, hidden(6, 40))  # one of each group
    assert report.virtual_time_s < 2.0
    assert not report.reached_limit
    assert max(report.rounds.values()) < 40
    assert Phase.FINISHED.value not in {node.state for node in report.nodes}


@pytest.mark.parametrize(
    ("world", "key"),
    [
        ({"liars": {"nodes": [3], "attack": "sign-flip"}}, "liars.attack"),
        ({"amend": [{"at_s": 1.0, "leave": [2]}]}, "amend"),
        ({"drop": 0.1}, "links.drop"),
    ],
)
def test_what_is_not_simulated_of_hidden_models_is_one_sentence(world, key):
    with pytest.raises(UserError, match="is not simulated where models are hidden") as caught:
        run_in(world)
    assert caught.value.key == key
