"""The nodes of tests/net, which share an event loop, reach each other through a relay."""

from __future__ import annotations

import pytest
from nodes import Federation


@pytest.fixture
def federation() -> Federation:
    return Federation()
