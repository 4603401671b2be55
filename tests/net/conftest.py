"""Fixtures of the network's tests."""

from __future__ import annotations

import pytest
from nodes import QUICK, Federation, Relay, binding

from p2pfl.crypto.session import FederationBinding
from p2pfl.net import Limits


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
