"""Real nodes on a real disk that is full: their launcher waits for them, and nothing is lost."""

from __future__ import annotations

import json
import signal
import time
from contextlib import suppress
from urllib.request import urlopen

import pytest
from disks import fill, tiny_disk
from ports import free_ports
from real_field import commands

from p2pfl.node import read_learned

DEADLINE_S = 60.0


@pytest.fixture
def disk(tmp_path):
    with tiny_disk(tmp_path / "tiny", "1m") as folder:
        yield folder


@pytest.fixture
def start():
    with commands() as start:
        yield start


def until(process, port, condition, what):
    """Wait for what the node's status page says."""
    end = time.monotonic() + DEADLINE_S
    while True:
        with suppress(OSError), urlopen(f"http://127.0.0.1:{port}/status", timeout=5) as answer:
            if condition(json.load(answer)):
                return
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < end, f"waited in vain for {what}"
        time.sleep(0.05)


def until_waiting(process, port):
    until(process, port, lambda said: said["phase"] == "waiting for disk", "the node to wait for its disk")


@pytest.mark.long
def test_a_launcher_waits_for_a_node_that_has_finished_on_a_full_disk(ward, disk, start):
    field = ward(2, training={"rounds": 40, "closing_rounds": 1}, gossip={"linger_s": 1.0}, task={"step_s": 0.05})
    (port,) = free_ports(1)
    field.write_node("node1", state_dir=str(disk / "state"), status_listen=f"127.0.0.1:{port}")
    process = start("launch", str(field.folder), "--format", "json")
    until(process, port, lambda said: said["rounds"] > 5, "five rounds")
    ballast = fill(disk)
    until_waiting(process, port)
    process.send_signal(signal.SIGINT)
    until_waiting(process, port)
    ballast.unlink()
    out, err = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 130, err
    rows = {row["name"]: row for row in json.loads(out)["nodes"]}
    assert rows["node1"]["finished"], err
    assert read_learned(field.folder / "node1").rounds >= 40
