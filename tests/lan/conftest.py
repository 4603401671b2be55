"""Hosts on a switch, for whoever may make them."""

from __future__ import annotations

import pytest
from lan_in_a_box import Lan, why_not


@pytest.fixture
def lan():
    """An empty LAN: `lan.host(name)` adds hosts."""
    if reason := why_not():
        pytest.skip(reason)
    with Lan() as box:
        yield box
