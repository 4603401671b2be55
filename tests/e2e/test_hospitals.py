"""Three hospitals' tables, from `p2pfl new --task csv` to `p2pfl predict`, with real processes."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

FILE = Path(__file__).parents[2] / "benchmarks" / "hospitals.py"


@pytest.fixture
def hospitals():
    pytest.importorskip("sklearn")
    spec = importlib.util.spec_from_file_location("hospitals", FILE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.long
@pytest.mark.timeout(300)
@pytest.mark.parametrize("agreed", [False, True], ids=["looked at", "agreed"])
def test_together_all_sites_are_as_good_as_all_rows_and_better_than_the_small_ones_alone(hospitals, tmp_path, agreed):
    found = hospitals.run(tmp_path, rounds=20, agreed=agreed)
    together, alone, pooled = found["federated"], found["alone"], found["pooled"]["all"]
    assert min(together.values()) > pooled - 0.01
    assert min(together.values()) > max(alone["south"], alone["west"])
    assert found["federated, exported"]["north"] == together["north"]
    assert (tmp_path / "hospitals" / "north" / "state" / "schema.toml").exists() == agreed
