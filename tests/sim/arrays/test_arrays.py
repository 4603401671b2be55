"""The simulator of arrays: mathematics in step, the node's algorithm apart, held against the exact simulator."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from p2pfl.compress import make_compressor
from p2pfl.config import TaskConfig
from p2pfl.errors import UserError
from sim import Clock, InStep, Timing, Vectors, World, describe, simulate
from topologies import build, spectrum

IN_STEP = {"arrays": True, "clock": "in-step"}
FLOOD = {"nodes": [3], "attack": "flood"}


def federation(nodes=8, topology="ring", rounds=6, **options):
    described = describe(nodes=nodes, topology=topology, rounds=rounds, **options)
    return replace(described, training=replace(described.training, local_steps=2, evaluate_every=0))


def stage(graph, samples, **options):
    ends = np.array(graph.edges)
    weight = samples / (np.bincount(ends.ravel(), minlength=graph.nodes) + 1)
    factor = np.minimum(weight[ends[:, 0]], weight[ends[:, 1]])
    return InStep(torch.zeros(5, dtype=torch.float64), samples, [(ends, factor)], lambda *_: None, **options)


def test_on_a_complete_graph_of_equal_nodes_a_round_is_that_of_a_server():
    """FedSGD's identity: each model is the mean of all after one exchange."""
    run = stage(build("complete", 6), np.full(6, 10.0))
    run.x = run.shown = torch.from_numpy(np.random.default_rng(0).normal(size=(6, 5)))
    mean = run.x.mean(dim=0)
    list(run.run(0, 1))
    assert torch.allclose(run.x, mean.expand(6, 5), atol=1e-12)


@pytest.mark.parametrize(("spec", "nodes"), [("ring", 12), ("torus", 16), ("random-regular:degree=4", 20)])
def test_mixing_contracts_as_the_spectrum_of_the_graph_says(spec, nodes):
    graph = build(spec, nodes)
    run = stage(graph, np.ones(nodes))
    run.x = run.shown = torch.from_numpy(np.random.default_rng(0).normal(size=(nodes, 5)))
    list(run.run(0, 40))
    before = (run.x - run.x.mean(dim=0)).norm()
    list(run.run(0, 1))
    rate = float((run.x - run.x.mean(dim=0)).norm() / before)
    assert rate == pytest.approx(spectrum(graph).mixing_rate, rel=1e-2)


def test_mixing_conserves_the_weighted_sum():
    samples = np.array([3.0, 50.0, 7.0, 20.0, 11.0])
    run = stage(build("ring", 5), samples)
    run.x = run.shown = torch.from_numpy(np.random.default_rng(0).normal(size=(5, 5)))
    before = torch.from_numpy(samples) @ run.x
    list(run.run(0, 50))
    assert torch.allclose(torch.from_numpy(samples) @ run.x, before, atol=1e-10)


def clock_of(graph, samples, **options):
    """A clock for nodes of different speeds whose rounds take 10 to 300 ms."""
    ends = np.array(graph.edges)
    weight = samples / (np.bincount(ends.ravel(), minlength=graph.nodes) + 1)
    slow = np.random.default_rng(1).uniform(0.01, 0.3, graph.nodes)
    plain = {
        "nodes": graph.nodes, "ends": ends, "latency_s": np.full(len(ends), 0.002), "engine_s": 0.0005,
        "shortest_s": 0.01, "round_s": lambda nodes: slow[nodes], "start_s": np.zeros(graph.nodes), "rounds": 5,
        "beyond": (1.0, 3.0), "closing": 10, "weigh": np.ones(4), "factor": np.minimum(*weight[ends.T]),
        "replicas": True,
    }  # fmt: skip
    return Clock(Timing(**plain | options))


@pytest.mark.parametrize(
    ("compressor", "dtype", "rounding"), [(None, torch.float64, 1e-9), ("q8", torch.float32, 2e-3)]
)
def test_apart_conserves_the_weighted_sum_and_brings_models_together(compressor, dtype, rounding):
    graph, samples = build("random-regular:degree=4", 20), np.random.default_rng(2).uniform(5, 50, 20)
    clock = clock_of(graph, samples)
    codec = None if compressor is None else make_compressor(compressor)
    initial, weigh = torch.zeros(40, dtype=dtype), torch.from_numpy(samples)
    vectors = Vectors(initial, samples, clock.timing.ends, lambda *_: None, compressor=codec)
    vectors.x = torch.from_numpy(np.random.default_rng(0).normal(size=(20, 40))).to(dtype)
    before, apart = weigh @ vectors.x.double(), vectors.x.std(dim=0).mean()
    for events in clock.windows(0.05):
        vectors.carry_out(events)
    assert torch.allclose(weigh @ vectors.x.double(), before, atol=rounding)
    assert vectors.x.std(dim=0).mean() < 0.05 * apart
    assert (vectors.slot_of == -1).all()
    assert (clock.rounds.min(), clock.rounds.max()) == (6, 7), "of five asked and two beyond"


def test_a_nodes_engine_answers_one_thing_after_the_other():
    clock = clock_of(build("ring", 3), np.ones(3), engine_s=0.5)
    answered = clock._answered_at(np.array([0, 2, 0, 0, 2]), np.array([1.0, 0.0, 0.9, 5.0, 0.1]))
    assert answered.tolist() == pytest.approx([1.9, 0.5, 1.4, 5.5, 1.0])
    assert clock._answered_at(np.array([0]), np.array([5.2])).tolist() == pytest.approx([6.0])


@pytest.mark.parametrize("method", ["plain", "variate:beta=0.1", "prox:mu=0.1"])
@pytest.mark.parametrize("clock", ["apart", "in-step"])
def test_a_report_has_the_shape_of_the_exact_one(method, clock):
    report = simulate(federation(method=method, compressor="q8"), arrays=True, clock=clock, references=False)
    exact = simulate(federation(method=method, compressor="q8"), references=False)
    assert report.rounds.keys() == exact.rounds.keys()
    assert report.measures == exact.measures
    assert report.to_json()
    assert report.accuracy.mean == pytest.approx(exact.accuracy.mean, abs=0.15)
    if clock == "apart":
        assert report.bytes_sent == pytest.approx(exact.bytes_sent, rel=0.12)
        assert max(report.rounds.values()) == pytest.approx(max(exact.rounds.values()), abs=1)
        assert report.staleness.mean == pytest.approx(exact.staleness.mean, abs=0.2)


def test_the_same_seed_gives_the_same_run():
    one, other = (simulate(federation(), arrays=True, references=False) for _ in range(2))
    assert one.accuracy == other.accuracy
    assert one.consensus_distance == other.consensus_distance


def test_a_slow_node_is_waited_for_no_longer_than_its_exchanges_take():
    world = World(slow=[{"nodes": [3], "speed": 0.1}])
    report = simulate(federation(rounds=10), arrays=True, world=world, references=False)
    exact = simulate(federation(rounds=10), world=world, references=False)
    assert report.virtual_time_s == pytest.approx(exact.virtual_time_s, rel=0.1)
    assert report.rounds["node3"] == exact.rounds["node3"] == 10
    assert abs(report.rounds["node0"] - exact.rounds["node0"]) <= 1


@pytest.mark.parametrize(
    ("options", "how", "key"),
    [
        ({}, {"clock": "apart"}, "clock"),
        ({}, {"device": "cpu"}, "device"),
        ({}, {"arrays": True, "clock": "slow"}, "clock"),
        ({}, {"arrays": True, "device": "cuda:99"}, "device"),
        ({"compressor": "fragment:2"}, {"arrays": True}, "gossip.compressor"),
        ({"rule": "hampel:b=1", "topology": "complete"}, {"arrays": True}, "gossip.rule"),
        ({"rule": "hampel:b=1", "topology": "complete"}, IN_STEP | {"world": World(liars=FLOOD)}, "liars.attack"),
        ({}, IN_STEP | {"world": World(liars=FLOOD | {"attack": "sign-flip"})}, "gossip.rule"),
        ({"method": "tracking"}, IN_STEP, "training.method"),
        ({"method": "fair"}, IN_STEP, "training.method"),
        ({"topology": "base:k=1"}, {"arrays": True}, "topology"),
        ({}, {"arrays": True, "world": World(bandwidth=1e6)}, "links.bandwidth"),
        ({}, {"arrays": True, "world": World(loss=0.1)}, "links.loss"),
        ({}, {"arrays": True, "world": World(slow=[{"nodes": [3], "far_s": 0.5}])}, "links.latency_s"),
        ({}, {"arrays": True, "world": World(crash=[{"nodes": [1], "at_s": 0.1}])}, "crash"),
    ],
)
def test_what_arrays_cannot_simulate_is_one_sentence_that_says_what_to_use(options, how, key):
    with pytest.raises(UserError) as caught:
        simulate(federation(**options), references=False, **how)
    assert caught.value.key == key
    assert caught.value.allowed


NORMALIZED = """
import torch
from torch import nn
from p2pfl import Task

def model():
    return nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 3))

def normalized():
    return Task(name="normalized", model=model, data=data)

def data(node):
    rows = torch.randn(12, 4), torch.arange(12) % 3
    return rows, rows
"""


def test_a_model_with_state_of_its_own_is_refused_with_what_to_use(tmp_path):
    (tmp_path / "normalized.py").write_text(NORMALIZED)
    task, path = TaskConfig(name="normalized.py:normalized"), tmp_path / "federation.toml"
    with pytest.raises(
        UserError, match=r"task: arrays cannot train this task; allowed: .* \(no batch-norm\).*without --"
    ):
        simulate(replace(federation(), path=path, task=task), arrays=True, references=False)


@pytest.mark.parametrize("clock", ["apart", "in-step"])
def test_a_run_of_no_rounds_is_one_of_one_round(clock):
    asked = federation()
    report = simulate(
        replace(asked, training=replace(asked.training, rounds=0)), arrays=True, clock=clock, references=False
    )
    assert min(report.rounds.values()) >= 1
    assert set(report.intervals) == {"accuracy"}
