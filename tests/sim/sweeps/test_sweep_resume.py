"""A sweep that is stopped, in whatever way, and started again: nothing is lost and nothing is done twice."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections import Counter
from contextlib import ExitStack
from pathlib import Path

import fake_jobs
import pytest

from p2pfl.errors import StorageError, UserError
from sim import Folder
from sim.sweeps.run import replace

SCRIPT = Path(__file__).with_name("sweep_script.py")
SWEEP = "[sweep]\nseeds = 4\n[axes]\ntopology = ['ring', 'complete']\ncompressor = ['none', 'q4']\n"
RUNS = 16
WAITING = 4
"""runs with seed 3, which wait at the gate."""


@pytest.fixture
def started(write, starts, tmp_path, monkeypatch):
    """A sweep in a process group of its own, with a process for each waiting run and two more."""
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    file = write(SWEEP)

    with ExitStack() as left:

        def start(*, waiting):
            if waiting:
                monkeypatch.setenv(fake_jobs.GATE, str(gate))
            else:
                monkeypatch.delenv(fake_jobs.GATE, raising=False)
            command = [sys.executable, str(SCRIPT), str(file), str(tmp_path / "out"), str(WAITING + 1)]
            pipe = subprocess.PIPE
            process = subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, start_new_session=True)
            left.enter_context(process)
            left.callback(process.kill)
            return process

        yield start


def until_only_the_gate_holds(process):
    """All other runs are done, and these have begun."""
    for _ in range(WAITING):
        assert process.stderr.readline() == fake_jobs.AT_THE_GATE
    while int(process.stdout.readline().split()[0]) < RUNS - WAITING:
        pass


def reports(out):
    return {path.name: path.read_bytes() for path in (out / "runs").iterdir()}


def stop_all(process):
    os.killpg(process.pid, signal.SIGKILL)


def stop_parent(process):
    process.kill()


def interrupt_all(process):
    """Ctrl-C reaches the whole group."""
    os.killpg(process.pid, signal.SIGINT)


def end_parent(process):
    process.terminate()


@pytest.mark.long
@pytest.mark.parametrize(
    ("stop", "code"),
    [(stop_all, -signal.SIGKILL), (stop_parent, -signal.SIGKILL), (interrupt_all, 130), (end_parent, 130)],
)
def test_a_stopped_sweep_loses_nothing_and_repeats_nothing(started, starts, tmp_path, stop, code):
    process = started(waiting=True)
    until_only_the_gate_holds(process)
    before = reports(tmp_path / "out")
    assert len(before) == RUNS - WAITING
    stop(process)
    # stderr ends when nobody holds it any more: the processes of the runs are gone too
    said = process.stderr.read()
    assert not said or (stop is stop_parent and "leaked semaphore" in said)  # Python's word about a killed pool
    assert process.wait() == code
    cut = set(starts()) - {name.removesuffix(".json") for name in before}

    again = started(waiting=False)
    assert again.stderr.read() == ""
    assert again.wait() == 0
    assert Counter(Counter(starts()).values()) == {1: RUNS - WAITING, 2: WAITING}
    assert {key for key, count in Counter(starts()).items() if count == 2} == cut
    after = reports(tmp_path / "out")
    assert {name: after[name] for name in before} == before
    assert len(after) == RUNS


@pytest.mark.long
def test_results_are_the_same_bytes_in_one_go_or_in_several(sweep, write, tmp_path):
    file = write(SWEEP)
    sweep(write("[sweep]\nseeds = [3, 1]\n[axes]\ntopology = ['complete', 'ring']\ncompressor = ['q4']\n", "part.toml"))
    sweep(file, count=3)
    at_once = tmp_path / "at-once"
    sweep(file, count=1, out=at_once)
    assert (at_once / "results.json").read_bytes() == (tmp_path / "out/results.json").read_bytes()
    assert reports(at_once) == reports(tmp_path / "out")


def test_what_is_done_is_not_run_again(sweep, write, starts):
    file = write("[sweep]\nseeds = 2\n")
    sweep(file)
    again = sweep(file)
    assert len(starts()) == 2
    assert (again.standing.done, again.standing.finished) == (2, 0)


@pytest.mark.long
def test_an_extended_sweep_runs_what_is_new(sweep, write, starts):
    sweep(write("[sweep]\nseeds = 2\n[axes]\nnodes = [4]\n"))
    sweep(write("[sweep]\nseeds = 3\n[axes]\nnodes = [4, 5]\n"))
    assert len(starts()) == len(set(starts())) == 6


@pytest.mark.long
def test_a_spoiled_report_is_made_again(sweep, write, starts):
    file = write("[sweep]\nseeds = 2\n")
    sweep(file)
    one = next((file.parent / "out/runs").iterdir())
    whole = one.read_bytes()
    one.write_bytes(whole[: len(whole) // 2])
    sweep(file)
    assert len(starts()) == 3
    assert one.read_bytes() == whole


@pytest.mark.long
def test_a_failed_run_is_listed_and_run_again_and_one_that_is_mended_is_forgotten(sweep, write, starts):
    file = write("[sweep]\nseeds = 1\nbyzantine = 1\n[axes]\nattack = ['sign-flip', 'raises']\n")
    first = sweep(file)
    assert (first.standing.done, first.standing.failed) == (1, 1)
    assert first.results["rows"][1]["failed"] == [{"seed": 0, "reason": "ValueError: no such thing"}]
    assert sweep(file).results == first.results
    assert len(starts()) == 3
    (key,) = first.results["rows"][1]["keys"]
    folder = Folder(file.parent / "out")
    assert "Traceback" in (folder.path / "failures" / f"{key}.json").read_text()
    report = b'{"nodes": [], "accuracy": {"mean": 0.5, "min": 0.4, "max": 0.5}}'
    folder.keep_report(type("Job", (), {"key": key}), report)
    assert list((folder.path / "failures").iterdir()) == []
    assert sweep(file).standing.failed == 0


def test_a_report_without_figures_is_a_failure(sweep, write):
    found = sweep(write("[sweep]\nseeds = 1\nbyzantine = 1\nattack = 'no-report'\n"))
    assert found.results["rows"][0]["failed"][0]["reason"] == "what came back is not a report"


def test_two_sweeps_in_one_folder_are_refused(tmp_path):
    with (
        Folder(tmp_path / "out").lock(),
        pytest.raises(UserError, match="another sweep"),
        Folder(tmp_path / "out").lock(),
    ):
        pass
    with Folder(tmp_path / "out").lock():
        pass


def test_a_folder_of_something_else_is_refused(tmp_path):
    (tmp_path / "thesis.tex").touch()
    with pytest.raises(UserError, match="not the folder of a sweep or plan"), Folder(tmp_path).lock():
        pass
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


def test_half_a_file_never_has_the_name_of_a_whole_one(tmp_path, monkeypatch):
    path = tmp_path / "report.json"
    replace(path, b"before")

    def torn(_number):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", torn)
    with pytest.raises(StorageError, match=r"report\.json.*No space"):
        replace(path, b"after")
    assert path.read_bytes() == b"before"


def test_what_a_killed_sweep_half_wrote_is_removed(tmp_path, sweep, write):
    file = write("[sweep]\nseeds = 1\n")
    sweep(file)
    left = tmp_path / "out/runs/.x.json.part"
    left.touch()
    sweep(file)
    assert not left.exists()
