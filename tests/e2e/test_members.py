"""Real processes, from an invite to a member that is removed again: nobody is started again by hand."""

from __future__ import annotations

import os
import subprocess
import sys
import time

import pytest
from ports import free_ports

pytestmark = [pytest.mark.long, pytest.mark.timeout(300)]

DEADLINE_S = 120.0
P2PFL = [sys.executable, "-m", "p2pfl.cli.main"]


@pytest.fixture
def p2pfl(tmp_path):
    """A command to its end; what it prints."""

    def p2pfl(*arguments):
        done = subprocess.run([*P2PFL, *map(str, arguments)], cwd=tmp_path, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    return p2pfl


@pytest.fixture
def run(tmp_path):
    """Start a node; all are killed at the end of the test."""
    running = []

    def run(folder, name):
        with (tmp_path / f"{name}.log").open("wb") as log:
            command = [*P2PFL, "run", str(folder), "--node", name]
            process = subprocess.Popen(command, cwd=tmp_path, stdout=log, stderr=log, env=os.environ)
        running.append(process)
        return process

    yield run
    for process in running:
        process.kill()
        process.wait()


def until(condition):
    end = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < end, "not in time"
        time.sleep(0.05)


def test_a_fourth_machine_joins_three_that_run_and_one_of_them_leaves(p2pfl, run, tmp_path):
    base = min(free_ports(1)[0], 60_000)
    p2pfl("new", "ward", "--nodes", "pi1,pi2,pi3", "--admin", "--task", "digits", "--base-port", base)
    p2pfl("member", "set", "ward", "--rounds", "100000", "--offline")
    processes = {name: run("ward", name) for name in ("pi1", "pi2", "pi3")}
    kept = {name: tmp_path / "ward" / name / "state" / "charter" for name in processes}
    until(lambda: all(file.exists() for file in kept.values()))

    line = p2pfl("invite", "ward", "pi4")
    request = p2pfl("join", line, "there", "--from", "ward")
    processes["pi4"] = run("there", "pi4")
    kept["pi4"] = tmp_path / "there" / "pi4" / "state" / "charter"
    until(lambda: "not a member yet" in (tmp_path / "pi4.log").read_text())
    before = kept["pi1"].read_bytes()
    p2pfl("member", "add", "ward", request, "--yes")
    until(lambda: all(file.exists() for file in kept.values()))
    until(lambda: len({file.read_bytes() for file in kept.values()} - {before}) == 1)

    p2pfl("member", "remove", "ward", "pi2")
    until(lambda: processes["pi2"].poll() is not None)
    assert "removed from the federation" in (tmp_path / "pi2.log").read_text()
    until(lambda: kept["pi1"].read_bytes() == kept["pi3"].read_bytes() != before)
    assert processes["pi1"].poll() is None
