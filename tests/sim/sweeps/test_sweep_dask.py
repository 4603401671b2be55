"""The same runs by Dask, with processes of a cluster on this machine."""

from __future__ import annotations

import importlib.util
from functools import partial

import fake_jobs
import pytest

from p2pfl.errors import UserError
from sim import build, load_sweep, run_by_dask, run_here, run_sweep
from sim.sweeps.job import run

# Not imported here: it takes a second.
pytestmark = [
    pytest.mark.filterwarnings("default"),
    pytest.mark.skipif(importlib.util.find_spec("distributed") is None, reason="an extra"),
]
SWEEP = "[sweep]\nseeds = 3\nbyzantine = 1\n[axes]\nattack = ['sign-flip', 'killed', 'user-error']\n"


@pytest.fixture
def cluster():
    dask, distributed = pytest.importorskip("dask"), pytest.importorskip("distributed")
    # a run that kills its process would kill the next one too
    with (
        dask.config.set({"distributed.scheduler.allowed-failures": 0}),
        distributed.LocalCluster(n_workers=2, threads_per_worker=1, processes=True, dashboard_address=None) as made,
    ):
        yield made.scheduler_address


@pytest.mark.long
def test_dask_gives_what_processes_give_and_a_dead_one_costs_only_its_run(write, starts, sweep, tmp_path, cluster):
    file = write(SWEEP)
    runner = partial(run_by_dask, scheduler=cluster)
    by_dask = run_sweep(
        load_sweep(file), tmp_path / "dask", run_job=fake_jobs.run, check=fake_jobs.check, runner=runner
    )
    assert len(starts()) == 9
    here = sweep(file)
    assert [row["metrics"] for row in by_dask.results["rows"]] == [row["metrics"] for row in here.results["rows"]]
    assert [len(row["failed"]) for row in by_dask.results["rows"]] == [0, 3, 3]
    assert "killed" in by_dask.results["rows"][1]["failed"][0]["reason"]
    assert by_dask.results["rows"][2]["failed"] == here.results["rows"][2]["failed"]


def test_a_scheduler_that_does_not_answer_is_refused(monkeypatch, starts):
    monkeypatch.setattr("sim.sweeps.run.CONNECT_S", 0.2)
    with pytest.raises(UserError, match="no Dask scheduler"):
        list(run_by_dask([], fake_jobs.run, "tcp://127.0.0.1:9"))


@pytest.mark.long
def test_a_sweep_of_arrays_runs_on_dask_as_here(write, tmp_path, monkeypatch, cluster):
    """Real runs."""
    monkeypatch.undo()
    text = "[sweep]\nseeds = 2\nnodes = 8\nrounds = 3\narrays = true\nclock = 'in-step'\n"
    file = write(text + "[axes]\ntopology = ['ring', 'base:k=1']\n")
    runners = {"dask": partial(run_by_dask, scheduler=cluster), "here": partial(run_here, count=1)}
    found = {
        name: run_sweep(load_sweep(file), tmp_path / name, run_job=run, check=build, runner=runner)
        for name, runner in runners.items()
    }
    rows = [[row["metrics"]["accuracy_mean"] for row in one.results["rows"]] for one in found.values()]
    assert rows[0] == rows[1]
    assert None not in rows[0]
