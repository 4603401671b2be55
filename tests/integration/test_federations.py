"""Whole federations: all nodes reach their rounds and agree on what the federation should find."""

from __future__ import annotations

import numpy as np
import pytest


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


async def test_a_run_bounded_by_time_ends_by_itself(ward, start, finish):
    field = ward(3, training={"rounds": None, "time_s": 0.5}, task={"step_s": 0.01})
    for result in await finish(start(field)):
        assert result.rounds > 0
        assert result.rounds_to_do is None
