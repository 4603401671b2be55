"""A federation of ten nodes, and world files written for one test."""

from __future__ import annotations

from pathlib import Path

import pytest

from p2pfl.config import FederationConfig, GossipConfig, Member, TaskConfig, TrainingConfig
from sim import read_world


def ring_of(names):
    """A federation whose members are called so."""
    edges = {tuple(sorted((index, (index + 1) % len(names)))) for index in range(len(names))}
    return FederationConfig(
        path=Path("federation.toml"),
        name="ten",
        seed=7,
        topology="ring",
        task=TaskConfig(),
        training=TrainingConfig(),
        gossip=GossipConfig(),
        members=tuple(Member(index=i, name=name, key=i.to_bytes(32), address=None) for i, name in enumerate(names)),
        edges=tuple(sorted(edges)),
    )


@pytest.fixture(scope="session")
def federation_of():
    return ring_of


@pytest.fixture(scope="session")
def federation():
    return ring_of([f"node{index}" for index in range(10)])


@pytest.fixture
def load(write, federation):
    return lambda text: read_world(write(text), federation)
