"""Whole federations: all nodes reach their rounds and agree on what the federation should find."""

from __future__ import annotations

import numpy as np
import pytest

from p2pfl.core.training import Pace


def spread(models):
    """Largest distance to the mean, over the mean's norm."""
    mean = np.mean(models, axis=0)
    return max(np.linalg.norm(model - mean) for model in models) / np.linalg.norm(mean)


def error(field, nodes, indices):
    """Distance of the mean model to what the federation should find, over the norm of that."""
    optimum = nodes[0].setup.learner.optimum()
    mean = np.mean([field.model(index) for index in indices], axis=0)
    return np.linalg.norm(mean - optimum) / np.linalg.norm(optimum)


@pytest.mark.parametrize(
    "topology", ["ring", pytest.param("complete", marks=pytest.mark.long), pytest.param("star", marks=pytest.mark.long)]
)
@pytest.mark.usefixtures("patient")
async def test_all_nodes_agree_on_the_sample_weighted_optimum(ward, start, finish, topology):
    field = ward(
        5,
        federation={"topology": topology},
        task={"samples": [100, 10, 20, 30, 40]},
        training={"rounds": 40, "closing_rounds": 30},
    )
    nodes = start(field, abreast=True)
    await finish(nodes, rounds=40)
    assert spread([field.model(index) for index in range(5)]) < 0.02
    assert error(field, nodes, range(5)) < 0.05


@pytest.mark.long
@pytest.mark.parametrize("topology", ["base:k=1", pytest.param("random-matchings:rounds=4", marks=pytest.mark.long)])
@pytest.mark.usefixtures("patient")
async def test_in_a_schedule_too_all_nodes_agree_on_the_optimum(ward, start, finish, topology):
    """Half of the rounds of the base graph on five nodes have one edge or two."""
    field = ward(
        5,
        federation={"topology": topology},
        task={"samples": [30, 20, 20, 30, 40]},
        training={"rounds": 60, "closing_rounds": 30},
    )
    nodes = start(field, abreast=True)
    results = await finish(nodes, rounds=60)
    assert [result.alarms for result in results] == [{}] * 5
    assert spread([field.model(index) for index in range(5)]) < 0.02
    assert error(field, nodes, range(5)) < 0.1


@pytest.mark.long
@pytest.mark.usefixtures("patient")
async def test_a_schedule_of_pairs_sends_half_of_what_two_neighbors_cost(ward, start, finish):
    bytes_sent = {}
    for topology in ("ring", "one-peer-hypercube"):
        field = ward(8, federation={"topology": topology}, task={"size": 4000})
        results = await finish(start(field, abreast=True), rounds=20)
        assert sum(neighbor.resyncs for result in results for neighbor in result.neighbors) == 0
        bytes_sent[topology] = sum(result.bytes_sent for result in results)
    assert bytes_sent["one-peer-hypercube"] < 0.65 * bytes_sent["ring"]


@pytest.mark.long
@pytest.mark.usefixtures("patient")
async def test_quantized_models_agree_too(ward, start, finish):
    field = ward(4, gossip={"compressor": "q4"}, training={"rounds": 30, "closing_rounds": 30})
    await finish(start(field), rounds=30)
    assert spread([field.model(index) for index in range(4)]) < 0.02


@pytest.mark.long
async def test_eight_nodes_finish_without_a_resync_or_an_alarm(ward, start, finish):
    field = ward(8, federation={"topology": "hypercube"})
    for result in await finish(start(field), rounds=20):
        assert [neighbor.resyncs for neighbor in result.neighbors] == [0, 0, 0]
        assert all(neighbor.done for neighbor in result.neighbors)
        assert result.alarms == {}


async def test_a_run_bounded_by_time_ends_by_itself(ward, start, finish):
    field = ward(3, training={"rounds": None, "time_s": 0.5}, task={"step_s": 0.01})
    for result in await finish(start(field)):
        assert result.rounds > 0
        assert result.rounds_to_do is None


@pytest.mark.long
@pytest.mark.usefixtures("patient")
async def test_speed_correction_keeps_fast_nodes_from_pulling_the_result_to_themselves(ward, start, monkeypatch):
    """Both federations learn the same targets; node 0 takes one round in ten of the others, and is told to be as slow.

    Without the control variate, which works against the same pull.
    """
    note = Pace._note
    monkeypatch.setattr(Pace, "_note", lambda pace, _: note(pace, 0.02 if 0 in pace.edges else 0.2))
    errors = []
    for limit in (1.0, 8.0):
        bounds = {"rounds": 100_000, "learning_rate": 0.05}
        field = ward(3, training={**bounds, "method": "plain", "speed_correction": limit})
        nodes = start(field, abreast=True, beats={0: 10})
        await nodes[1].until(lambda nodes=nodes: nodes[1].rounds >= 150)
        for node in nodes:
            node.application.stop()
        nodes[0].application.setup.learner.barrier.abort()
        slow, *fast = [await node.result() for node in nodes]
        assert slow.rounds < min(result.rounds for result in fast)
        errors.append(error(field, nodes, range(3)))
    plain, corrected = errors
    assert corrected < plain / 2
