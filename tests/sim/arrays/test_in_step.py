"""In step: fragments, directed graphs, and convolutions that are trained one node at a time."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from p2pfl.compress import make_compressor
from p2pfl.config import TaskConfig
from p2pfl.errors import UserError
from p2pfl.learn import RoundStart
from sim import Rounds, Together, WorldSpec, describe, load_learners, setting_of, simulate
from topologies import build_schedule

TASK = """
import torch
from torch import nn
from p2pfl import Task

def model():
    first = [nn.Conv2d(3, 4, 3, padding=1), nn.MaxPool2d(2), nn.GroupNorm(2, 4), nn.ReLU()]
    return nn.Sequential(*first, nn.Flatten(), nn.Dropout(0.2), nn.Linear(64, 3))

def data(node):
    draws = torch.Generator().manual_seed(node.node)
    rows = (torch.randn(12, 3, 8, 8, generator=draws), torch.arange(12) % 3)
    return rows, rows

def images():
    return Task(name="images", model=model, data=data)
"""
TOGETHER = {"arrays": True, "clock": "in-step", "references": False}


def in_step(nodes=8, rounds=3, **options):
    options = {"compressor": "none", "method": "plain"} | options
    described = describe(nodes=nodes, rounds=rounds, directed=True, **options)
    return replace(described, training=replace(described.training, local_steps=2, closing_rounds=0))


def stage_of(federation, *, in_double=True):
    setting = setting_of(federation, WorldSpec(), None, clock="in-step", device=None)
    run = Together(setting, Rounds(setting.grouped, setting.method, setting.device)).stage
    if in_double:
        run.x = torch.from_numpy(np.random.default_rng(0).normal(size=run.x.shape))
        run.steps = [(columns, starts, values.double()) for columns, starts, values in run.steps]
    return setting, run


@pytest.mark.parametrize(
    ("training", "given"),
    [
        ({"momentum": 0.9, "weight_decay": 0.01}, None),
        ({"optimizer": "adam", "learning_rate": 0.01, "method": "prox:mu=0.1"}, None),
        ({"method": "variate:beta=0.1"}, 0.01),
    ],
)
@pytest.mark.parametrize("bf16", [False, True])
def test_a_round_with_convolutions_is_that_of_the_nodes_own_learner(tmp_path, monkeypatch, training, given, bf16):
    monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: bf16)
    (tmp_path / "images.py").write_text(TASK)
    federation = in_step(nodes=4, rounds=2)
    training = replace(federation.training, batch_size=4, local_steps=3, **training)
    task, path = TaskConfig(name="images.py:images"), tmp_path / "federation.toml"
    federation = replace(federation, path=path, task=task, training=training)
    setting, run = stage_of(federation, in_double=False)
    learner = load_learners(federation)[2]
    start, extra = learner.initial(), None if given is None else torch.full((1, setting.size), given)
    vectors = {} if extra is None else {setting.method.given[0]: extra[0].numpy()}
    wanted = learner.train(RoundStart(start, vectors, setting.method), 1)
    models = torch.from_numpy(start.copy())[None]
    run.train(np.array([2]), np.array([1]), models, extra)
    np.testing.assert_allclose(models[0], wanted.vector, atol=5e-2 if bf16 else 1e-5)
    assert run.train.losses[2] == pytest.approx(wanted.loss, rel=5e-2 if bf16 else 1e-5)
    (score,), own = (
        run.train.evaluate(wanted.vector[None], "test", np.array([2])),
        learner.evaluate(wanted.vector, "test"),
    )
    assert (score.accuracy, score.loss) == (own.accuracy, pytest.approx(own.loss, rel=1e-5))
    words = f"one node at a time, channels last, {'bf16' if bf16 else 'float32'}"
    assert simulate(federation, **TOGETHER).computed == f"arrays, in-step; training {words}"


def test_a_closing_round_with_convolutions_has_the_rate_of_the_nodes_own(tmp_path):
    (tmp_path / "images.py").write_text(TASK)
    federation = in_step(nodes=4, rounds=2)
    training = replace(federation.training, batch_size=4, local_steps=3, closing="train", closing_rounds=3)
    task, path = TaskConfig(name="images.py:images"), tmp_path / "federation.toml"
    _, run = stage_of(replace(federation, path=path, task=task, training=training), in_double=False)
    learner = load_learners(replace(federation, path=path, task=task, training=training))[1]
    start = learner.initial()
    wanted = learner.train(RoundStart(start, closing=3), 4)
    models = torch.from_numpy(start.copy())[None]
    run.train(np.array([1]), np.array([4]), models, None)
    atol = 0.1 * float(np.abs(wanted.vector - start).max()) if "bf16" in run.train.how else 1e-5
    np.testing.assert_allclose(models[0], wanted.vector, atol=atol)


def test_fragments_conserve_the_sum_and_take_all_values_in_turn():
    setting, run = stage_of(
        in_step(nodes=12, topology="random-regular:degree=5", compressor="fragment:4", partition="dirichlet:1")
    )
    samples = torch.from_numpy(setting.samples)
    first, before = run.x.clone(), samples @ run.x
    assert len(set(setting.samples)) > 1
    list(run.run(0, 4))
    assert (run.x != first).any(dim=0).all(), "after N rounds every value has been exchanged"
    list(run.run(0, 400))
    assert torch.allclose(samples @ run.x, before, rtol=1e-4, atol=1e-3)
    assert float((run.x - before / samples.sum()).abs().max()) < 1e-3


def test_a_node_with_fragments_sends_that_part_of_the_model_to_each_neighbor():
    made = [in_step(topology="random-regular:degree=3", compressor=spec) for spec in ("none", "fragment:4")]
    whole, part = (simulate(one, **TOGETHER) for one in made)
    saved = 4 * 2410 - make_compressor("fragment:4").size_bytes(2410)
    assert whole.messages_sent == part.messages_sent == 8 * 3 * 3
    assert whole.bytes_sent - part.bytes_sent == pytest.approx(8 * 3 * 3 * saved, rel=0.01)


def test_a_directed_graph_mixes_with_the_matrices_of_its_family_and_each_node_sends_one_model_a_round():
    federation = in_step(nodes=12, topology="one-peer-exponential", rounds=6)
    _, run = stage_of(federation)
    wanted = run.x.numpy().copy()
    list(run.run(0, 6))
    for number in range(6):
        wanted = build_schedule("one-peer-exponential", 12).mixing(number).apply(wanted)
    np.testing.assert_allclose(run.x.numpy(), wanted, atol=1e-12)
    assert [node.messages_sent for node in simulate(federation, **TOGETHER).nodes] == [6] * 12


@pytest.mark.parametrize(
    ("options", "how", "key"),
    [
        ({}, {"references": False}, "topology"),
        ({}, TOGETHER | {"clock": "apart"}, "topology"),
        ({"compressor": "q4"}, TOGETHER, "gossip.compressor"),
        ({"method": "variate:beta=0.1"}, TOGETHER, "training.method"),
        ({"topology": "ring", "compressor": "fragment:4+bf16"}, TOGETHER, "gossip.compressor"),
    ],
)
def test_a_directed_graph_and_rounded_fragments_are_refused_with_what_to_use(options, how, key):
    with pytest.raises(UserError) as caught:
        simulate(in_step(**{"topology": "one-peer-exponential"} | options), **how)
    assert caught.value.key == key
    assert caught.value.allowed


def test_in_step_a_node_draws_its_own_rows_in_a_permutation_after_the_other():
    federation = in_step(nodes=6, partition="dirichlet:1")
    setting, _ = stage_of(replace(federation, training=replace(federation.training, local_steps=9, batch_size=7)))
    rounds, nodes = Rounds(setting.grouped, setting.method, setting.device, own_draws=False), np.arange(6)
    pool, seen = setting.grouped.pool, []
    pool.rows.inputs[:] = torch.arange(len(pool.rows.inputs)).view(-1, *[1] * (pool.rows.inputs.ndim - 1))
    kind = setting.grouped.kinds[0]
    alike = nodes[setting.grouped.kinds == kind]
    for inputs, _ in rounds._batches(kind, alike, np.zeros(len(alike), np.int64)):
        seen.append(inputs.flatten(2)[..., 0])
    for node, rows in zip(alike, torch.cat(seen, dim=1).long().numpy() - pool.first[alike, None], strict=True):
        count = pool.counts[node]
        assert set(rows[:count].tolist()) <= set(range(count))
        assert len(set(rows[:count].tolist())) == min(count, len(rows))
