"""A federation of ten nodes, and world files written for one test."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sim import describe, read_world


def ring_of(names):
    """A federation whose members are called so."""
    plain = describe(nodes=len(names), topology="ring", seed=7)
    return replace(plain, members=tuple(replace(one, name=names[one.index]) for one in plain.members))


@pytest.fixture(scope="session")
def federation_of():
    return ring_of


@pytest.fixture(scope="session")
def federation():
    return ring_of([f"node{index}" for index in range(10)])


@pytest.fixture
def load(write, federation):
    return lambda text: read_world(write(text), federation)
