"""What holds for all simulations of tests, and where they find what they share with others."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from sim import simulation

sys.path.insert(0, str(Path(__file__).parents[1]))


@pytest.fixture(autouse=True)
def few_looks(monkeypatch):
    """Looking at small models takes longer than the rest of a run."""
    monkeypatch.setattr(simulation, "POINTS", 6)
