"""`p2pfl sim run --privacy`: what it prints and writes, and how a promise that cannot be kept is named."""

from __future__ import annotations

import json

import pytest


@pytest.mark.long
def test_a_run_says_what_is_promised(p2pfl, tmp_path):
    file = tmp_path / "report.json"
    spec = "epsilon=8,delta=1e-3,accountant=rdp"
    options = ("--nodes", 2, "--rounds", 1, "--quiet", "--no-references", "--report", file)
    outcome = p2pfl("sim", "run", "--privacy", spec, *options)
    assert outcome.code == 0, outcome.err
    assert "by record: epsilon 8, delta 0.001, clip 1" in outcome.out
    assert json.loads(file.read_bytes())["config"]["privacy"]["epsilon"] == 8.0


def test_a_task_without_torch_hides_whole_members(p2pfl, ward):
    outcome = p2pfl("sim", "run", ward(), "--privacy", "noise=0.1,delta=1e-2,unit=member,accountant=rdp", "--quiet")
    assert outcome.code == 0, outcome.err
    assert "by member: noise 0.1, delta 0.01, clip 1" in outcome.out


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ("epsilon=8,delta=0.1,accountant=rdp", "--privacy delta: exceeds one in the"),
        ("epsilon=1e-4,delta=1e-5,accountant=rdp", "--privacy epsilon: no noise up to 1000"),
    ],
)
def test_a_promise_that_cannot_be_kept_is_named_by_its_option(p2pfl, spec, said):
    outcome = p2pfl("sim", "run", "--nodes", 2, "--rounds", 1, "--quiet", "--privacy", spec)
    assert outcome.code == 2
    assert said in outcome.err
    assert "Traceback" not in outcome.err


def test_single_rows_of_a_task_without_torch_cannot_be_hidden(p2pfl, ward):
    outcome = p2pfl("sim", "run", ward(), "--privacy", "noise=1,delta=1e-3,accountant=rdp", "--quiet")
    assert outcome.code == 2
    assert "the task has its own learner" in outcome.err
