"""What holds for all simulations of tests."""

from __future__ import annotations

import pytest

from sim import simulation


@pytest.fixture(autouse=True)
def few_looks(monkeypatch):
    """Looking at small models takes longer than the rest of a run."""
    monkeypatch.setattr(simulation, "POINTS", 6)
