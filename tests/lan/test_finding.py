"""Nodes on a LAN find each other without an address in any file."""

from __future__ import annotations

import pytest
from boards import Boards


@pytest.fixture
def boards(lan, tmp_path):
    """Five boards in a ring, not started; other settings by keyword."""

    def make(count=5, **settings):
        return Boards(lan, tmp_path / "ward", count, **settings)

    return make


def test_five_hosts_find_each_other_without_an_address(boards):
    five = boards()
    five.start_all()
    five.until_all_live()
