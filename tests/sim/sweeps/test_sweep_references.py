"""A sweep may ask for what its nodes are compared with: a server, all data in one place, each node alone."""

from __future__ import annotations

import sys
from statistics import fmean

import pytest

from sim import load_sweep
from sim.sweeps.job import run
from sim.sweeps.plan import make_plan

SMALL = "[sweep]\nseeds = 1\nnodes = 2\nrounds = 1\nlocal_steps = 1\nclosing_rounds = 0\n"


@pytest.fixture
def job(write):
    def job(text=""):
        (found,) = make_plan(load_sweep(write(SMALL + text))).jobs.values()
        return found

    return job


def test_a_sweep_that_asks_for_references_gets_all_three_and_its_runs_leave_the_terminal_to_it(
    job, monkeypatch, capsys
):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    report = run(job("references = true\n"))
    reference, taken = report.reference, round(fmean(node.rounds for node in report.nodes))
    assert reference.alone.accuracy is not None
    assert reference.centralized.one_node.steps == taken
    assert reference.fedavg.rounds == taken
    assert capsys.readouterr().err == ""


def test_a_run_with_references_is_another_run(job):
    """Otherwise the report of one without them would be taken for it."""
    assert job("references = true\n").key != job().key
