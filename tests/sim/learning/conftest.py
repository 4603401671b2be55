"""Federations of the built-in digits."""

from __future__ import annotations

from pathlib import Path

import pytest

from p2pfl.config import FederationConfig, GossipConfig, Member, TaskConfig, TrainingConfig


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
