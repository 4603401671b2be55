"""`simulate` as a library: what it refuses, what it does when it has guessed wrong, what it tells."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from p2pfl.config import TaskConfig
from sim import ComputeSpec, CrashSpec, JoinSpec, LiarSpec, LinkSpec, SlowNodes, Spread, WorldSpec, describe, simulate


def quadratic(nodes=6, *, rounds=8, topology="ring", compressor="q8", seed=1, rate=0.1, **options):
    federation = describe(nodes=nodes, rounds=rounds, topology=topology, compressor=compressor, seed=seed)
    training = replace(federation.training, local_steps=2, closing_rounds=4, learning_rate=rate)
    gossip = replace(federation.gossip, linger_s=1.0)
    return replace(federation, task=TaskConfig(name="quadratic", options=options), training=training, gossip=gossip)


def test_a_run_that_diverges_drops_its_rounds_and_ends():
    """Steps far too long: the models leave float32."""
    with np.errstate(all="ignore"):
        report = simulate(quadratic(rate=1e9, rounds=12), references=False)
    assert any(row.failed_rounds for row in report.nodes)
    assert all(row.finished for row in report.nodes)


@pytest.mark.parametrize("attack", ["noise:0.1", "nan"])
def test_whatever_a_liar_shows_every_honest_node_comes_to_its_end(attack):
    world = WorldSpec(liars=LiarSpec(attack=attack, nodes=(2,)))
    report = simulate(quadratic(topology="complete"), world=world, references=False)
    assert report.byzantine == ["node2"]
    assert all(row.finished for row in report.nodes if not row.byzantine)
    assert report.loss is None or np.isfinite(report.loss.mean)


def test_what_liars_and_dead_nodes_have_does_not_enter_the_figures():
    world = WorldSpec(crashes=(CrashSpec(nodes=(1,), at_s=0.02),), liars=LiarSpec(attack="sign-flip", nodes=(4,)))
    report = simulate(quadratic(), world=world, references=False)
    assert (report.died, report.byzantine) == (["node1"], ["node4"])
    honest = [row.test_loss for row in report.nodes if row.name not in {"node1", "node4"}]
    assert report.loss.mean == pytest.approx(np.mean(honest))


def test_a_late_joiner_starts_from_its_neighbors():
    world, federation = WorldSpec(joins=(JoinSpec(nodes=(3,), at_s=0.06),)), quadratic(rounds=30)
    impatient = replace(federation, gossip=replace(federation.gossip, start_wait_s=0.01))
    report = simulate(impatient, world=world, references=False)
    assert report.nodes[3].alarms.get("joined") == 1


def test_time_in_which_nothing_happens_is_passed_over():
    """Twenty thousand seconds, each millisecond of which would be looked at."""
    federation, told = quadratic(rounds=2), []
    world = WorldSpec(compute=ComputeSpec(round_s=10_000.0), evaluate_every_s=0.001)
    report = simulate(federation, world=world, references=False, on_progress=told.append)
    assert all(row.rounds >= 2 for row in report.nodes)
    assert len(told) < 100_000


def test_progress_ends_with_all_rounds_done():
    told = []
    report = simulate(quadratic(), references=False, on_progress=told.append)
    assert told[-1].rounds == sum(report.rounds.values()) >= told[-1].rounds_to_do == 48
    assert [one.time_s for one in told] == sorted(one.time_s for one in told)


def test_rounds_beyond_those_asked_for_are_counted_apart():
    """Nodes train on until they have heard that all are through; who then only mixes trains none too many."""
    asked = quadratic(rounds=3)
    only_mixes = replace(asked, training=replace(asked.training, when_through="mix"))
    trained_on, mixed = (simulate(one, references=False) for one in (asked, only_mixes))
    beyond = [row.rounds_beyond for row in trained_on.nodes]
    assert trained_on.rounds_asked == 3
    assert beyond == [rounds - 3 for rounds in trained_on.rounds.values()]
    assert trained_on.rounds_beyond.max == max(beyond) > 0
    assert mixed.rounds_beyond.max == 0


def test_word_that_all_are_through_spreads_faster_than_by_rounds():
    """On a ring of 16 it goes over eight edges."""
    asked = quadratic(16, rounds=3)
    report = simulate(replace(asked, training=replace(asked.training, local_steps=40)), references=False)
    assert report.rounds_beyond.max <= 2


@pytest.mark.parametrize(("delay_s", "warned"), [(4.0, 1), (0.01, 0)])
def test_a_report_warns_of_nodes_whose_rounds_are_shorter_than_an_exchange(delay_s, warned):
    asked = quadratic(3, rounds=30, topology="complete")
    asked = replace(asked, gossip=replace(asked.gossip, max_wait_s=0.05))
    report = simulate(
        asked, world=WorldSpec(links=LinkSpec(latency_s=Spread(low=delay_s, high=delay_s))), references=False
    )
    assert len(report.warnings) == warned
    for text in report.warnings:
        assert text.startswith("node0, node1, node2 mixed with nobody in most rounds. ")
        assert "Make rounds longer" in text
        assert all(node.alarms["hardly-mixes"] == 1 for node in report.nodes)


@pytest.mark.parametrize("nodes", [3, pytest.param(8, marks=pytest.mark.long)])
def test_nodes_of_equal_speed_end_within_two_rounds_of_each_other(nodes):
    for seed in range(3):
        asked = quadratic(nodes, rounds=30, seed=seed)
        world = WorldSpec(compute=ComputeSpec(round_s=0.02, jitter=0.2))
        rounds = simulate(asked, world=world, references=False).rounds.values()
        assert max(rounds) - min(rounds) <= 2


@pytest.mark.long
def test_beside_faster_nodes_a_slow_one_ends_no_worse_than_among_equal_ones_and_they_train_fifteen_rounds_more():
    """They wait for it, and their data count until it is through: most rounds beyond are spread over that time."""
    of_slow, of_equal = [], []
    for seed in range(5):
        plain = describe(nodes=4, topology="ring", rounds=20, partition="shards:3", seed=seed)
        plain = replace(plain, training=replace(plain.training, local_steps=5))
        for found, slow in ((of_equal, ()), (of_slow, (SlowNodes(nodes=(3,), speed=0.1),))):
            world = WorldSpec(compute=ComputeSpec(round_s=0.05), slow=slow, evaluate_every_s=1000.0)
            report = simulate(plain, world=world, references=False)
            found.append(report.nodes[3].accuracy)
            assert report.nodes[3].rounds_beyond <= 1
            assert max(report.rounds.values()) <= 35
    assert np.mean(of_slow) >= np.mean(of_equal)


def test_a_schedule_reports_the_union_and_the_contraction_of_its_period():
    federation = quadratic(8, topology="one-peer-hypercube", compressor="none", rounds=6)
    federation = replace(federation, training=replace(federation.training, closing_rounds=9))
    report = simulate(federation, references=False)
    assert report.algebraic_connectivity == pytest.approx(2.0)
    assert report.contraction.predicted == 0.0
    assert report.consensus_distance < 1e-6


@pytest.mark.long
@pytest.mark.parametrize(
    "world",
    [
        WorldSpec(crashes=(CrashSpec(nodes=(0, 1, 2, 3, 4, 5), at_s=0.02),)),
        WorldSpec(crashes=(CrashSpec(nodes=(0, 1, 2, 3, 4), at_s=0.02),)),
        WorldSpec(crashes=(CrashSpec(nodes=(0, 2, 4), at_s=0.03),)),
        WorldSpec(
            liars=LiarSpec(attack="sign-flip", nodes=(0, 1)), crashes=(CrashSpec(nodes=(2, 3, 4, 5), at_s=0.03),)
        ),
        WorldSpec(limit_s=0.01),
    ],
    ids=["nobody is left", "one is left", "neighbors of nobody", "liars are left", "nobody comes to an end"],
)
def test_a_report_of_few_or_none_has_no_figure_that_is_none_of_theirs(world):
    report = simulate(quadratic(), world=world, references=False)
    finished = [row for row in report.nodes if row.finished and not row.byzantine]
    assert (report.loss is None) == (not finished)
    assert (report.consensus_distance is None) == (not finished)
