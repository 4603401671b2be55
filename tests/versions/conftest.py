"""The nodes of tests/net."""

from __future__ import annotations

import pytest
from nodes import Federation, binding


@pytest.fixture
def federation() -> Federation:
    return Federation()


@pytest.fixture
def binding_of_tests():
    return binding()
