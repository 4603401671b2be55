"""macOS and Windows, as far as Linux can play them: `tests/played` takes away what they lack."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from p2pfl import Federation
from p2pfl.storage import sync

pytestmark = pytest.mark.timeout(600)

PLAYED = Path(__file__).parents[1] / "played"
ROOT = PLAYED.parents[1]


def play(system, folder, *command, **more):
    path = os.pathsep.join(map(str, (PLAYED, ROOT)))
    environment = os.environ | {"PYTHONPATH": path, "PLAYED": system, "PLAYED_SYNCS": str(folder / "syncs"), **more}
    done = subprocess.run(
        [sys.executable, *command], cwd=folder, env=environment, capture_output=True, encoding="utf-8", check=False
    )
    assert "sitecustomize" not in done.stderr
    return done


@pytest.mark.slow
def test_windows_imports_everything_checks_simulates_and_runs_in_one_process(tmp_path):
    script = str(PLAYED / "windows.py")
    done = play("win32", tmp_path, "-W", "ignore::EncodingWarning", script, PYTHONWARNDEFAULTENCODING="1")
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    works = {command: outcome for command, outcome in told["said"].items() if "needs Linux" not in outcome[2]}
    assert {command: outcome for command, outcome in works.items() if outcome[0] and command != "status ward"} == {}
    assert works["status ward"][0] == 1
    assert "not running here" in works["status ward"][1]
    assert "accuracy, worst honest node" in works["sim run ward --quiet"][1]
    assert "peak memory" not in works["sim run ward --quiet"][1]
    refused = {command: outcome for command, outcome in told["said"].items() if command not in works}
    assert len(works) == 9
    assert refused == {
        f"{name} ward": [2, "", f"error: p2pfl {name} needs Linux or macOS: on Windows, simulate (p2pfl sim run)\n"]
        for name in ("demo", "doctor", "invite", "join", "launch", "member", "privacy", "relay", "run", "stats")
    }
    rounds, folders, refusal = told["run"]
    assert rounds >= 5
    assert folders == ["node0", "node1", "node2"]
    assert refusal.startswith("p2pfl.Node needs Linux or macOS")


def test_macos_launches_nodes_that_share_no_import_and_empties_the_drives_cache(tmp_path):
    Federation(task="quadratic", nodes=2, topology="path", rounds=3).save(tmp_path / "ward")
    done = play("darwin", tmp_path, "-m", "p2pfl", "launch", "ward")
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("finished") == 2
    assert len((tmp_path / "syncs").read_text("ascii").splitlines()) > 10


@pytest.mark.long
def test_macos_shows_the_demo(tmp_path):
    done = play("darwin", tmp_path, "-m", "p2pfl", "demo", "--nodes", "3")
    assert done.returncode == 0, done.stderr
    assert "finished" in done.stdout
    assert len((tmp_path / "syncs").read_text("ascii").splitlines()) > 10


def test_a_system_of_32_bits_is_refused_in_one_sentence(tmp_path):
    done = play("32-bit", tmp_path, "-m", "p2pfl", "--version")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "error: p2pfl needs a 64-bit system and Python; this Python has 32 bits\n"


@pytest.mark.parametrize(("number", "is_durable"), [(errno.ENOTSUP, True), (errno.EIO, False), (errno.ENOSPC, False)])
def test_macos_takes_fsync_where_a_file_system_knows_no_more_and_hides_no_failure(
    tmp_path, monkeypatch, number, is_durable
):
    def refuse(*_):
        raise OSError(number, os.strerror(number))

    synced = []
    monkeypatch.setattr(os, "fsync", synced.append)
    monkeypatch.setattr(fcntl, "fcntl", refuse)
    monkeypatch.setattr(fcntl, "F_FULLFSYNC", 51, raising=False)
    with (tmp_path / "file").open("wb") as file, monkeypatch.context() as mac:
        mac.setattr(sys, "platform", "darwin")
        if is_durable:
            sync(file.fileno(), only_content=True)
        else:
            with pytest.raises(OSError, match=os.strerror(number)):
                sync(file.fileno())
        assert synced == [file.fileno()] * is_durable
