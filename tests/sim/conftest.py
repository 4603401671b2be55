"""What holds for all simulations of tests, and where they find what they share with others."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def few_looks(monkeypatch):
    """Looking at small models takes longer than the rest of a run."""
    monkeypatch.setattr("sim.simulation.POINTS", 6)


@pytest.fixture
def write(tmp_path):
    """Writes a file into the test's folder, or into one below it."""

    def write(text, name="sweep.toml"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text if isinstance(text, bytes) else text.encode("utf-8"))
        return path

    return write
