"""Arrays apart held against the exact simulator: the same split, model, speeds, latencies and draws of batches."""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass, replace
from random import Random

import numpy as np
import pytest

from sim import World, simulate
from sim.federations import describe

STATED = {
    "ring, equal speeds, iid": (
        {"nodes": 16, "topology": "ring", "partition": "iid", "compressor": "q8", "method": "plain"},
        {},
    ),
    "ring, tenfold speeds, two classes, variate": (
        {"nodes": 16, "topology": "ring", "partition": "shards:2", "compressor": "q4", "method": "variate"},
        {"speed": "log-uniform:0.1,1"},
    ),
    "torus, tenfold latencies, two classes": (
        {"nodes": 25, "topology": "torus", "partition": "shards:2", "compressor": "q8", "method": "plain"},
        {"latency_s": "log-uniform:0.001,0.01"},
    ),
    "4-regular, equal speeds, two classes, variate": (
        {"nodes": 32, "topology": "random-regular:degree=4", "partition": "shards:2", "compressor": "q4"},
        {},
    ),
    "4-regular, fivefold speeds, two classes": (
        {
            "nodes": 32, "topology": "random-regular:degree=4", "partition": "shards:2", "compressor": "q8",
            "method": "plain",
        },
        {"speed": "log-uniform:0.2,1", "jitter": 0.3},
    ),
    "exponential, two slow nodes, iid, variate": (
        {"nodes": 24, "topology": "exponential", "partition": "iid", "compressor": "q4", "method": "variate"},
        {"slow": [{"nodes": [3, 17], "speed": 0.1}]},
    ),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Difference:
    """What arrays have more than the exact simulator; bytes relative, distance as a logarithm."""

    accuracy: float
    bytes_sent: float
    distance: float
    rounds: float


def distances(report, at_s):
    """Return the logarithm of the consensus distance at these times."""
    points = [point for point in report.history if point.consensus_distance]
    return np.interp(at_s, [p.time_s for p in points], [math.log(p.consensus_distance) for p in points])


def difference(options, world, seed):
    """Run both. The distance is the mean over ten times in the second half of training."""
    described = describe(seed=seed, rounds=20, **options)
    federation = replace(described, training=replace(described.training, local_steps=5, evaluate_every=0))
    exact, arrays = (simulate(federation, world=World(**world), references=False, arrays=how) for how in (False, True))
    end_s = max(point.time_s for point in arrays.history if point.rounds.mean < arrays.history[-1].rounds.mean)
    at_s = np.linspace(end_s / 2, end_s, 10)
    return Difference(
        accuracy=arrays.accuracy.mean - exact.accuracy.mean,
        bytes_sent=arrays.bytes_sent / exact.bytes_sent - 1.0,
        distance=float(np.mean(distances(arrays, at_s) - distances(exact, at_s))),
        rounds=float(np.mean(list(arrays.rounds.values())) - np.mean(list(exact.rounds.values()))),
    )


def drawn(number):
    """Draw a federation and a world that arrays accept."""
    rng = Random(number)
    options = {
        "nodes": rng.choice([12, 16, 20, 24]),
        "topology": rng.choice(["ring", "exponential", "random-regular:degree=4", "watts-strogatz:k=4,p=0.2"]),
        "partition": rng.choice(["iid", "shards:2", "dirichlet:0.5,10"]),
        "compressor": rng.choice(["none", "q8", "q4"]),
        "method": rng.choice(["plain", "variate", "prox:mu=0.1"]),
    }
    world = {
        "speed": rng.choice([1.0, "log-uniform:0.1,1", "uniform:0.5,1"]),
        "jitter": rng.choice([0.02, 0.3]),
        "latency_s": rng.choice([0.002, 0.02, "log-uniform:0.001,0.01"]),
        "engine_s": rng.choice([0.0001, 0.0005, 0.002]),
    }
    return difference(options, world, number)


def mean_of(name, found):
    """Return the mean difference, and show it (pytest -s)."""
    every = np.array([[getattr(one, key) for key in Difference.__slots__] for one in found])
    mean, error = every.mean(axis=0), every.std(axis=0) / math.sqrt(len(found))
    said = "  ".join(f"{key} {a:+.4f} ({b:.4f})" for key, a, b in zip(Difference.__slots__, mean, error, strict=True))
    sys.stdout.write(f"{name:46} {said}\n")
    return Difference(*mean)


@pytest.mark.long
@pytest.mark.timeout(1500)
@pytest.mark.parametrize("name", STATED)
def test_in_a_stated_world_the_mean_of_five_seeds_is_that_of_the_exact_simulator(name):
    mean = mean_of(name, [difference(*STATED[name], seed) for seed in range(5)])
    assert abs(mean.accuracy) <= 0.01
    assert abs(mean.bytes_sent) <= 0.08
    assert abs(mean.distance) <= 0.15


@pytest.mark.long
@pytest.mark.timeout(1500)
def test_over_thirty_drawn_worlds_the_mean_is_that_of_the_exact_simulator():
    mean = mean_of("30 drawn worlds", [drawn(number) for number in range(30)])
    assert abs(mean.accuracy) <= 0.008
    assert abs(mean.bytes_sent) <= 0.08
    assert abs(mean.distance) <= 0.15


def test_a_stated_and_two_drawn_worlds_are_close():
    found = [difference(*STATED["ring, tenfold speeds, two classes, variate"], 0), drawn(0), drawn(1)]
    for one in found:
        assert abs(one.accuracy) <= 0.03
        assert abs(one.bytes_sent) <= 0.08
        assert abs(one.distance) <= 0.3
