"""An attack in a file of the user's own, in the options of `p2pfl sim run`, in a world file and in a sweep."""

from __future__ import annotations

import json

import pytest

from sim import load_sweep
from sim.sweeps.plan import make_plan

SOURCE = """
import numpy as np

def opposite(sight):
    return -sight.own

def twice(sight):
    return sight.victim * 2

def broken(sight):
    return sight.no_such_thing
"""


@pytest.fixture
def run(p2pfl, ward, tmp_path, monkeypatch):
    """The outcome of a run of four nodes with these options, from a folder that has `lies.py`."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "lies.py").write_text(SOURCE)
    return lambda *options: p2pfl("sim", "run", ward(), "--rounds", 1, "--format", "json", "--no-references", *options)


def report(outcome):
    assert outcome.code == 0, outcome.err
    return json.loads(outcome.out)


def test_it_is_looked_for_from_the_working_folder_and_does_what_a_shipped_one_does(run, tmp_path):
    ours, theirs = (report(run("--byzantine", 1, "--attack", one)) for one in ("lies.py:opposite", "sign-flip"))
    assert ours["attack"] == f"{tmp_path}/lies.py:opposite"
    assert ours["value_digest"] == theirs["value_digest"]


def test_in_a_world_file_it_is_looked_for_beside_that(run, tmp_path):
    (tmp_path / "worlds").mkdir()
    (tmp_path / "lies.py").rename(tmp_path / "worlds" / "lies.py")
    world = tmp_path / "worlds" / "lies.toml"
    world.write_text('[liars]\nnodes = "0"\nattack = "sleeper:lies.py:twice@1"\n')
    assert report(run("--world", world))["attack"] == f"sleeper:{tmp_path}/worlds/lies.py:twice@1"


def test_a_world_file_with_one_that_is_not_there_is_refused(run, tmp_path):
    world = tmp_path / "lies.toml"
    world.write_text('[liars]\nnodes = "0"\nattack = "lies.py:nix"\n')
    outcome = run("--world", world)
    assert (outcome.code, outcome.out) == (2, "")
    assert outcome.err.startswith(f"error: {world}: liars.attack: {tmp_path}/lies.py has no 'nix' (found ")


def test_one_that_fails_ends_the_run_in_one_line_that_says_where(run):
    outcome = run("--byzantine", 1, "--attack", "lies.py:broken")
    assert (outcome.code, outcome.out) == (2, "")
    assert "attack: the attack failed: AttributeError: " in outcome.err
    assert "(lies.py, line 11)" in outcome.err
    assert "Traceback" not in outcome.err


def test_in_a_sweep_it_is_looked_for_beside_the_file_and_another_attack_is_another_run(tmp_path):
    keys = {}
    for name, source in (("here", SOURCE), ("there", SOURCE), ("changed", SOURCE + "# more\n")):
        folder = tmp_path / name
        folder.mkdir()
        (folder / "lies.py").write_text(source)
        (folder / "world.toml").write_text('[liars]\nnodes = "0"\nattack = "flood:lies.py:opposite"\n')
        for sweep in ('byzantine = 1\n[axes]\nattack = ["lies.py:opposite"]\n', 'world = "world.toml"\n'):
            (folder / "sweep.toml").write_text("[sweep]\nseeds = 1\n" + sweep)
            plan = make_plan(load_sweep(folder / "sweep.toml"))
            keys.setdefault(name, []).extend(plan.jobs)
            (job,) = plan.jobs.values()
            assert job.options.get("attack") in {None, f"{folder}/lies.py:opposite"}
    assert keys["here"] == keys["there"]
    assert not set(keys["here"]) & set(keys["changed"])
