"""`p2pfl sim run`: what it prints and writes, and that the same options give the same run."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from p2pfl.reporting import Point, Statistic
from sim import RunProgress, RunView, run_in_words


def facts(outcome):
    """The names and values below the table of nodes."""
    assert outcome.code == 0, outcome.err
    lines = outcome.out.splitlines()
    pairs = (line.split("  ", 1) for line in lines if "  " in line.strip())
    return {name.strip(): value.strip() for name, value in pairs}


@pytest.fixture
def simulated(p2pfl, ward):
    """The report of a run of four nodes with these options."""

    def simulated(*options, **kinds):
        outcome = p2pfl("sim", "run", ward(**kinds), "--format", "json", "--no-references", *options)
        assert outcome.code == 0, outcome.err
        return json.loads(outcome.out)

    return simulated


def digests(report):
    return report["digest"], report["value_digest"]


def test_the_summary_has_what_was_learned_what_it_cost_and_how_it_was_computed(p2pfl, ward):
    outcome = p2pfl("sim", "run", ward())
    said = facts(outcome)
    assert said["nodes"] == "4 finished"
    assert int(said["rounds of a node"].split()[0]) >= 6
    assert said["topology"] == "ring"
    assert float(said["algebraic connectivity"]) == 2
    assert float(said["contraction, predicted"]) == pytest.approx(1 / 3, abs=1e-3)
    assert len(said["digest"]) == len(said["value digest"]) == 64
    assert {"loss, mean", "consensus distance", "sent, in all", "peak memory", "staleness"} <= said.keys()
    assert all(f"node{index}" in outcome.out for index in range(4))


def test_the_same_seed_is_the_same_run_and_another_seed_another(simulated):
    first = simulated()
    assert first["seed"] == 3
    assert digests(first) == digests(simulated("--seed", 3))
    other = simulated("--seed", 4)
    assert other["seed"] == 4
    assert first["value_digest"] != other["value_digest"]


@pytest.fixture
def interruptible():
    """A shell that starts this in the background has it ignore SIGINT."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("interruptible")
def test_an_interruption_is_a_word_and_130(p2pfl, ward, tmp_path, monkeypatch):
    monkeypatch.setattr(RunView, "update", lambda *_: os.kill(os.getpid(), signal.SIGINT))
    outcome = p2pfl("sim", "run", ward(), "--report", "r.json")
    assert (outcome.code, outcome.out, outcome.err) == (130, "", "stopped; nothing was written\n")
    assert not (tmp_path / "r.json").exists()


@pytest.mark.long
def test_of_many_nodes_the_worst_are_shown(p2pfl, ward):
    outcome = p2pfl("sim", "run", ward(), "--nodes", 30, "--rounds", 2, "--no-references")
    said = facts(outcome)
    assert "the worst 5 of 30 nodes" in outcome.out
    assert len(re.findall(r"^ node\d+ ", outcome.out, re.MULTILINE)) == 5
    assert said["nodes"] == "30 finished"


def test_in_a_schedule_the_labels_say_what_the_figures_are_of(p2pfl, ward):
    said = facts(p2pfl("sim", "run", ward(topology="one-peer-hypercube")))
    assert float(said["algebraic connectivity of all 2 rounds' edges"]) == 2
    assert said["contraction, predicted, one of 2 rounds"].startswith("0: ")
    assert "contraction, measured, one of 2 rounds" in said


@pytest.mark.long
def test_a_world_file_and_options_that_go_before_it(p2pfl, ward, tmp_path):
    (tmp_path / "bad.toml").write_text(
        '[compute]\nspeed = "log-uniform:0.1,1"\n[links]\nloss = 0.05\n[liars]\ncount = 2\nattack = "mimic"\n',
        encoding="utf-8",
    )

    def world(*options):
        outcome = p2pfl("sim", "run", ward(), "--world", "bad.toml", "--format", "json", *options)
        return json.loads(outcome.out)["world"]

    assert world()["links"]["loss"] == 0.05
    assert len(world()["liars"]["nodes"]) == 2
    assert world("--attack", "mimic")["liars"]["attack"] == "mimic"
    assert len(world("--byzantine", 1)["liars"]["nodes"]) == 1
    assert world("--byzantine", 0)["liars"] is None


def test_the_mean_of_the_honest_models_is_told(p2pfl, ward):
    report = json.loads(p2pfl("sim", "run", ward(), "--format", "json", "--no-references").out)
    told = facts(p2pfl("sim", "run", ward(), "--no-references"))["the mean of the honest models"]
    assert told == f"loss {report['mean_model']['loss']:.4g}"


def test_a_run_that_the_limit_ends_says_so(p2pfl, ward, tmp_path):
    (tmp_path / "short.toml").write_text("[run]\nlimit_s = 0.03\n")
    said = facts(p2pfl("sim", "run", ward(), "--world", "short.toml", "--no-references"))
    assert said["virtual time"] == "0.03 s, ended by the limit"


def test_references_stand_beside_unless_they_are_not_wanted(p2pfl, ward):
    assert "a server that averages each round" in facts(p2pfl("sim", "run", ward()))
    assert "a server" not in p2pfl("sim", "run", ward(), "--no-references").out


def test_the_report_is_written_and_named_on_stderr(p2pfl, ward, tmp_path):
    outcome = p2pfl("sim", "run", ward(), "--report", "r.json", "--quiet", "--format", "json", "--no-references")
    assert outcome.err == "report: r.json\n"
    assert json.loads((tmp_path / "r.json").read_text()) == json.loads(outcome.out)


@pytest.mark.long
def test_without_a_federation_the_digits_are_learned(p2pfl):
    said = facts(p2pfl("sim", "run", "--nodes", 2, "--rounds", 3, "--partition", "iid", "--no-references"))
    assert float(said["accuracy, worst honest node"]) > 0.3


def test_progress_says_how_far_how_well_and_how_long_still():
    point = Point(time_s=2.0, accuracy=Statistic(mean=0.5, min=0.25, max=1.0))
    half = RunProgress(time_s=2.0, rounds=500, rounds_to_do=1000, point=point)
    words = "500 of 1,000 rounds, 2 virtual s, accuracy 0.500 (worst 0.250)"
    assert run_in_words(half, 30.0) == f"{words}, 30 s left"
    assert run_in_words(RunProgress(time_s=2.0, rounds=5, rounds_to_do=1000, point=None), 30.0).endswith("2 virtual s")
    assert (
        run_in_words(RunProgress(time_s=2.0, rounds=7, rounds_to_do=None, point=None), 30.0) == "7 rounds, 2 virtual s"
    )


@pytest.mark.parametrize("command", [("run",), ("plot",), ("sweep",), ()], ids=str)
def test_help_fits_a_terminal_has_an_example_and_loads_nothing_slow(command):
    code = f"""
import sys
from p2pfl.cli.main import main
try:
    main(["sim", *{command!r}, "--help"])
except SystemExit as end:
    assert end.code == 0
slow = {{"torch", "numpy", "networkx", "aiohttp", "rich", "matplotlib"}} & set(sys.modules)
assert not slow, slow
"""
    environment = {**os.environ, "COLUMNS": "80"}
    done = subprocess.run(
        [sys.executable, "-c", code], check=True, capture_output=True, text=True, timeout=60, env=environment
    )
    assert max(map(len, done.stdout.splitlines())) <= 80
    assert f"  p2pfl sim {' '.join(command)}" in done.stdout


def test_a_dash_is_stdout_for_the_report(p2pfl, ward):
    folder = ward()
    outcome = p2pfl("sim", "run", folder, "--report", "-", "--quiet")
    assert json.loads(outcome.out)["digest"]
    assert not Path("-").exists()
