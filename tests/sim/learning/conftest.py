"""Federations of the built-in digits."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from p2pfl.config import FederationConfig, GossipConfig, Member, TaskConfig, TrainingConfig

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture
def federation():
    """Make a federation of the built-in digits with so many nodes."""

    def make(nodes, *, partition="draw:14", seed=1, task="digits", **training):
        members = tuple(Member(index=i, name=f"n{i}", key=b"", address=None) for i in range(nodes))
        options = {"partition": partition} if task == "digits" else {}
        return FederationConfig(
            path=Path("/nowhere/federation.toml"),
            name="test",
            seed=seed,
            topology="ring",
            task=TaskConfig(name=task, options=options),
            training=TrainingConfig(**training),
            gossip=GossipConfig(),
            members=members,
            edges=(),
        )

    return make
