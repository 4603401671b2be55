"""Arrays apart held against the exact simulator: the same split, model, speeds, latencies and draws of batches."""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass, replace
from random import Random
from time import process_time

import numpy as np
import pytest

from sim import World, describe, simulate

POINTS = 40

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
        {"nodes": 16, "topology": "torus", "partition": "shards:2", "compressor": "q8", "method": "plain"},
        {"latency_s": "log-uniform:0.001,0.01"},
    ),
    "4-regular, equal speeds, two classes, variate": (
        {"nodes": 20, "topology": "random-regular:degree=4", "partition": "shards:2", "compressor": "q4"},
        {},
    ),
    "4-regular, fivefold speeds, two classes": (
        {
            "nodes": 20, "topology": "random-regular:degree=4", "partition": "shards:2", "compressor": "q8",
            "method": "plain",
        },
        {"speed": "log-uniform:0.2,1", "jitter": 0.3},
    ),
    "exponential, two slow nodes, iid, variate": (
        {"nodes": 16, "topology": "exponential", "partition": "iid", "compressor": "q4", "method": "variate"},
        {"slow": [{"nodes": [3, 11], "speed": 0.1}]},
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


def trains_until(report):
    """Return when the last point was taken before all local rounds were done."""
    return max(point.time_s for point in report.history if point.rounds.mean < report.history[-1].rounds.mean)


def difference(options, world, seed):
    """Run both. The distance is the mean over ten times in the second half of training."""
    described = describe(seed=seed, rounds=15, **options)
    federation = replace(
        described, training=replace(described.training, local_steps=10, closing_rounds=5, evaluate_every=0)
    )
    arrays = simulate(federation, world=World(**world), arrays=True)
    every_s = arrays.virtual_time_s / POINTS
    exact = simulate(federation, world=World(**world, evaluate_every_s=every_s), references=False)
    end_s = min(trains_until(exact), trains_until(arrays))
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
        "nodes": rng.choice([12, 16]),
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
    """Return the mean difference, and show it with its standard error and the worst so far (pytest -s)."""
    every = np.array([[getattr(one, key) for key in Difference.__slots__] for one in found])
    mean, error, worst = (
        every.mean(axis=0),
        every.std(axis=0) / math.sqrt(max(1, len(found) - 1)),
        np.abs(every).max(axis=0),
    )
    figures = zip(Difference.__slots__, mean, error, worst, strict=True)
    said = "  ".join(f"{key} {a:+.4f} ({b:.4f}) {c:.4f}" for key, a, b, c in figures)
    sys.stdout.write(f"{name}, {len(found)}: {said}, {process_time():.0f} CPU-s\n")
    sys.stdout.flush()
    return Difference(*mean)


@pytest.mark.long
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("name", STATED)
def test_in_a_stated_world_the_mean_of_five_seeds_is_that_of_the_exact_simulator(name):
    found = []
    for seed in range(5):
        found.append(difference(*STATED[name], seed))
        mean = mean_of(name, found)
    assert abs(mean.accuracy) <= 0.01
    assert abs(mean.bytes_sent) <= 0.08
    assert abs(mean.distance) <= 0.15
    assert abs(mean.rounds) <= 0.25


@pytest.mark.long
@pytest.mark.timeout(3600)
def test_over_thirty_drawn_worlds_the_mean_is_that_of_the_exact_simulator():
    found = []
    for number in range(30):
        found.append(drawn(number))
        mean = mean_of("drawn worlds", found)
    assert abs(mean.accuracy) <= 0.008
    assert abs(mean.bytes_sent) <= 0.08
    assert abs(mean.distance) <= 0.15
    assert abs(mean.rounds) <= 0.25


def test_a_stated_world_is_close():
    one = difference(*STATED["ring, tenfold speeds, two classes, variate"], 1)
    assert abs(one.accuracy) <= 0.03
    assert abs(one.bytes_sent) <= 0.08
    assert abs(one.distance) <= 0.3
    assert abs(one.rounds) <= 0.25
