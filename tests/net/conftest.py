"""Fixtures of the network's tests."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from p2pfl.crypto.session import FederationBinding
from p2pfl.net import Limits

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parents[1]))
from nodes import QUICK, Federation, Relay, binding


@pytest.fixture
def federation() -> Federation:
    return Federation()


@pytest.fixture
def relay() -> type[Relay]:
    return Relay


@pytest.fixture
def quick() -> Limits:
    return QUICK


@pytest.fixture
def other_binding() -> FederationBinding:
    return binding(training=2)
