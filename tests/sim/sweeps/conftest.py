"""Sweep files written for one test, and sweeps of fake jobs in real processes."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import fake_jobs
import pytest

from sim import load_sweep, run_here, run_sweep


@pytest.fixture(autouse=True)
def same_software(monkeypatch):
    monkeypatch.setattr("sim.sweeps.job.software", lambda: fake_jobs.SOFTWARE)


@pytest.fixture
def starts(tmp_path, monkeypatch):
    """The keys of the runs that were started, in order; also for processes that begin during the test."""
    file = tmp_path / "starts.txt"
    monkeypatch.setenv(fake_jobs.STARTS, str(file))
    return lambda: file.read_text().split() if file.exists() else []


@pytest.fixture
def sweep(starts):
    """A sweep of fake jobs in a real process; its folder is `out` beside the file."""

    def sweep(file: Path, count=1, out=None, **options):
        runner = partial(run_here, count=count)
        return run_sweep(
            load_sweep(file),
            out or file.parent / "out",
            run_job=fake_jobs.run,
            check=fake_jobs.check,
            runner=runner,
            **options,
        )

    return sweep
