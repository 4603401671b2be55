"""Simulated federations whose nodes train privately: they learn, repeat, pay for each round, and mix beyond that."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn

from p2pfl import Task
from p2pfl.config import TaskConfig
from p2pfl.errors import UserError
from sim import ComputeSpec, CrashSpec, WorldSpec, build, describe, make_job, refuse_broken, simulate, with_privacy

SPEC = "noise=0.8,delta=1e-3,accountant=rdp"
ACCURATE = 0.6


@pytest.fixture(autouse=True)
def _unaccounted(monkeypatch):
    """Where the noise is given, epsilon changes nothing of a run: an accountant would take most of the time."""
    monkeypatch.setattr("p2pfl.learn.privacy.plan.epsilon_of", lambda *_: 8.0)


def sorted_numbers(node):
    """Which of four numbers is the largest: 300 rows a node, and 200 to test on."""
    generator = torch.Generator().manual_seed(node.node)
    inputs = torch.randn(300, 4, generator=generator)
    test = torch.randn(200, 4, generator=torch.Generator().manual_seed(99))
    return (inputs, inputs.argmax(1)), (test, test.argmax(1))


TASK = Task(name="largest", model=lambda: nn.Linear(4, 4), data=sorted_numbers)


def federation(spec=SPEC, *, nodes=3, rounds=6, **training):
    found = describe(nodes=nodes, topology="complete", rounds=rounds, privacy=spec, method=training.pop("method", None))
    chosen = {"closing_rounds": 2, "local_steps": 4, "batch_size": 60, "learning_rate": 0.5} | training
    gossip = replace(found.gossip, start_wait_s=0.2, linger_s=1.0)
    task = TaskConfig(name="largest", given=TASK)
    return refuse_broken(replace(found, task=task, training=replace(found.training, **chosen), gossip=gossip))


def run(spec=SPEC, *, world=None, **how):
    return simulate(federation(spec, **how), world=world, references=False)


ADAM = {"method": "momentum:mu=0.5", "optimizer": "adam", "learning_rate": 0.05, "keep_optimizer": True}


@pytest.mark.long
@pytest.mark.parametrize(
    "how",
    [
        {"method": "variate:beta=0.1"},
        {"method": "prox:mu=0.1", "schedule": "cosine:rounds=6", "momentum": 0.5},
        {"method": "tracking:gain=0.5"},
        ADAM,
    ],
)
def test_private_nodes_learn_with_methods_schedules_and_optimizers(how):
    report = run(**how)
    assert report.accuracy.min > ACCURATE
    assert {node.rounds for node in report.nodes} == {6}


@pytest.mark.long
def test_private_nodes_learn_under_a_sparse_compressor_and_with_a_part_of_their_own():
    found = federation(rounds=8)
    sparse = replace(found, gossip=replace(found.gossip, compressor="top-k:0.3+q8"))
    assert simulate(sparse, references=False).accuracy.min > ACCURATE
    own = replace(found, gossip=replace(found.gossip, share=("weight",)))
    assert simulate(own, references=False).local_accuracy.min > ACCURATE


@pytest.mark.long
def test_members_that_hide_all_their_rows_learn_where_there_are_enough_of_them():
    report = run("noise=0.3,unit=member,delta=1e-2,clip=1,accountant=rdp", nodes=8)
    assert report.accuracy.min > ACCURATE


@pytest.mark.long
def test_a_private_run_repeats():
    federated = federation(nodes=3, rounds=3)
    found = {
        (report.digest, report.value_digest) for report in [simulate(federated, references=False) for _ in range(2)]
    }
    assert len(found) == 1
    assert simulate(replace(federated, seed=1), references=False).value_digest not in dict(found).values()


def test_rounds_that_are_not_paid_for_only_mix():
    report = run(f"{SPEC},rounds=3", rounds=6)
    assert {node.rounds for node in report.nodes} == {3}
    assert all(node.finished for node in report.nodes)
    assert {node.through_by for node in report.nodes} == {"its privacy budget is spent"}
    assert all(node.alarms == {"budget-spent": 1} for node in report.nodes)


def test_time_bounds_a_private_run_no_further_than_its_budget_does():
    found = federation(f"{SPEC},rounds=3")
    timed = replace(found, training=replace(found.training, rounds=None, time_s=1e4))
    assert {node.rounds for node in simulate(timed, references=False).nodes} == {3}


SLOW = ComputeSpec(step_s=0.1, jitter=0.0)


def test_a_crash_wastes_what_a_round_has_cost_and_a_lost_disk_all_of_it():
    world = WorldSpec(
        compute=SLOW,
        crashes=(
            CrashSpec(nodes=(1,), at_s=1.0, down_s=0.05),
            CrashSpec(nodes=(2,), at_s=1.0, down_s=0.05, amnesia=True),
        ),
    )
    report = run(world=world, rounds=6)
    by_node = {node.name: node for node in report.nodes}
    assert by_node["node0"].rounds == 6
    assert by_node["node1"].rounds == 5
    assert "budget-spent" in by_node["node1"].alarms
    assert "no-budget" in by_node["node2"].alarms


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ("epsilon=8", "--privacy: delta: is missing"),
        ("epsilon=8,delta=2", "--privacy: delta: impossible value (found 2)"),
        ("sigma=3", "--privacy: 'sigma=3' is not a KEY=VALUE of [privacy]"),
        ("epsilon=8,epsilon=3,delta=1e-5", "--privacy: 'epsilon=3' is given twice"),
    ],
)
def test_a_spec_that_is_wrong_is_named(spec, said):
    with pytest.raises(UserError) as caught:
        describe(privacy=spec)
    assert str(caught.value).startswith(said)


def test_none_takes_privacy_away():
    assert with_privacy(describe(privacy=SPEC), "none").privacy is None


def test_privacy_is_an_option_of_sweeps_and_part_of_what_a_run_is():
    jobs = [make_job({"nodes": 2, "rounds": 1, "privacy": spec}, 0) for spec in ("none", SPEC)]
    assert [build(job)[0].privacy is None for job in jobs] == [True, False]
    assert jobs[0].key != jobs[1].key
    with pytest.raises(UserError, match=r"training.when_through: with privacy"):
        build(make_job({"nodes": 2, "privacy": SPEC, "when_through": "train"}, 0))
