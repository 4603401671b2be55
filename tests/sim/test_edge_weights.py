"""Nodes whose graph's file has weights mix with these, as fast as the spectrum says."""

from __future__ import annotations

from dataclasses import replace

import pytest

from p2pfl.config import TaskConfig
from sim import ComputeSpec, WorldSpec, describe, simulate
from topologies import build, optimal_weights, spectrum, write_topology

NODES = 8


@pytest.fixture
def run(tmp_path):
    def run(topology):
        write_topology(topology, tmp_path / "net.json")
        federation = describe(nodes=NODES, rounds=2, topology=str(tmp_path / "net.json"), compressor="none", seed=1)
        training = replace(federation.training, local_steps=1, closing_rounds=10, evaluate_every=0)
        gossip = replace(federation.gossip, max_wait_s=0.2, linger_s=1.0)
        federation = replace(federation, task=TaskConfig(name="quadratic"), training=training, gossip=gossip)
        world = WorldSpec(compute=ComputeSpec(jitter=0.02))
        return simulate(federation, world=world, references=False).contraction

    return run


def test_nodes_come_together_as_much_faster_as_the_spectrum_says(run):
    plain = build("barbell", NODES)
    weighted = plain.with_weights(optimal_weights(plain).weights)
    found = run(weighted)
    assert found.predicted == pytest.approx(spectrum(weighted).mixing_rate)
    assert 1.0 - found.measured == pytest.approx(1.0 - found.predicted, rel=0.25)
    assert 1.0 - found.predicted > 1.5 * (1.0 - spectrum(plain).mixing_rate)
