"""A real federation as seen from one of its nodes, and from its folder."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from pathlib import Path
from urllib.request import urlopen

import pytest
from real_field import P2PFL, wait_for

DEADLINE_S = 100
TASK = '[task]\nname = "quadratic"\nstep_s = 0.02\n'


def p2pfl(*arguments):
    command = [*P2PFL, *map(str, arguments)]
    return subprocess.run(command, check=False, capture_output=True, text=True, timeout=DEADLINE_S)


def address(folder, name):
    path = folder / name / "state" / "address.json"
    return json.loads(path.read_bytes()) if path.exists() else None


def federation_at(folder, name):
    with urlopen(f"http://{address(folder, name)['status']}/federation", timeout=DEADLINE_S) as answer:
        return json.load(answer)


@pytest.mark.long
@pytest.mark.slow
def test_any_node_tells_of_all_and_a_folder_is_enough_to_ask(tmp_path):
    folder = tmp_path / "ward"
    assert p2pfl("new", folder, "--nodes", "4").returncode == 0
    text = (folder / "federation.toml").read_text(encoding="utf-8")
    head, _, rest = text.partition("[task]\n")
    rest = rest[rest.index("[training]") :]
    text = head + TASK + rest.replace("rounds = 40", "rounds = 100000")
    (folder / "federation.toml").write_text(text, encoding="utf-8")
    names = [f"node{index}" for index in range(4)]
    launch = subprocess.Popen([*P2PFL, "launch", str(folder)], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    try:
        wait_for(lambda: all(address(folder, name) for name in names), "addresses")
        wait_for(lambda: all(row["rounds"] for row in federation_at(folder, "node0")["members"]), "rounds")
        rows = federation_at(folder, "node0")["members"]
        assert {row["name"]: row["source"] for row in rows}["node2"] in ("node1", "node3"), "it is no neighbor"
        asked = p2pfl("status", folder, "--format", "json")
        assert (asked.returncode, [row["node"] for row in json.loads(asked.stdout)]) == (0, names)
        os.kill(address(folder, "node2")["pid"], signal.SIGKILL)
        wait_for(lambda: "died" in p2pfl("status", folder).stdout, "the death")
        watched = p2pfl("watch", folder)
        assert watched.returncode == 0
        assert "node2" in watched.stdout
    finally:
        launch.send_signal(signal.SIGINT)
        launch.communicate(timeout=DEADLINE_S)
    left = [name for name in names if address(folder, name)]
    assert left == ["node2"], "who ends cleanly takes its address along"
    assert p2pfl("status", folder).returncode == 1
    assert not list(Path(folder).rglob("*.tmp"))
