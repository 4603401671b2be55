"""Hosts on a switch, for whoever may make them."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parents[1]))
from lan_in_a_box import Lan, why_not


@pytest.fixture
def lan():
    """An empty LAN: `lan.host(name)` adds hosts."""
    if reason := why_not():
        pytest.skip(reason)
    with Lan() as box:
        yield box
