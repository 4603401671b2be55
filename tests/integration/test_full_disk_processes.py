"""Real nodes on a real disk that is full: they wait, say so, and lose nothing; whoever asks twice has his way."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from urllib.request import urlopen

import pytest

from p2pfl.node import read_learned

sys.path.insert(0, str(Path(__file__).parents[1]))
from disks import fill, tiny_disk
from ports import free_ports

P2PFL = [sys.executable, "-m", "p2pfl.cli.main"]
DEADLINE_S = 60.0


@pytest.fixture
def disk(tmp_path):
    with tiny_disk(tmp_path / "tiny", "1m") as folder:
        yield folder


@pytest.fixture
def start():
    started = []

    def start(*arguments):
        process = subprocess.Popen(
            [*P2PFL, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
        )
        started.append(process)
        return process

    yield start
    for process in started:
        if process.poll() is None:
            process.kill()
            process.wait()
        process.stdout.close()
        process.stderr.close()


class Node:
    """One member of two, on the tiny disk; the other is there for company, and has room enough."""

    def __init__(self, ward, disk, start, **training):
        self.field = ward(
            2,
            training={"rounds": 100_000, "closing_rounds": 1, **training},
            gossip={"start_wait_s": 0.1},
            task={"step_s": 0.01},
        )
        (self.port,) = free_ports(1)
        self.field.write_node("node1", state_dir=str(disk / "state"), status_listen=f"127.0.0.1:{self.port}")
        start("run", str(self.field.folder), "--node", "node0")
        self.process = start("run", str(self.field.folder), "--node", "node1", "-v")

    def said(self):
        try:
            with urlopen(f"http://127.0.0.1:{self.port}/status", timeout=5) as answer:
                return json.loads(answer.read())
        except OSError:
            return {}

    def until(self, condition, what):
        end = time.monotonic() + DEADLINE_S
        while not condition(self.said()):
            assert self.process.poll() is None, self.process.communicate()
            assert time.monotonic() < end, f"waited in vain for {what}"
            time.sleep(0.05)
        return self.said()

    def stop(self):
        self.process.send_signal(signal.SIGINT)

    def rounds_on_disk(self):
        return read_learned(self.field.folder / "node1").rounds


@pytest.fixture
def node(ward, disk, start):
    return lambda **training: Node(ward, disk, start, **training)


def until_waiting(node):
    return node.until(lambda said: said.get("phase") == "waiting for disk", "the node to wait for its disk")


@pytest.mark.long
def test_a_node_that_is_stopped_on_a_full_disk_waits_and_keeps_all(node, disk):
    one = node()
    one.until(lambda said: said.get("rounds", 0) > 5, "five rounds")
    ballast = fill(disk)
    filled = one.said()["rounds"]
    one.until(lambda said: said.get("rounds", 0) > filled + 20, "rounds on a full disk")
    one.stop()
    learned = until_waiting(one)["rounds"]
    assert "No space left on device" in one.said()["disk_refuses"]
    ballast.unlink()
    _, err = one.process.communicate(timeout=DEADLINE_S)
    assert one.process.returncode == 130, err
    assert f"{disk / 'state'}: waiting for the disk" in err
    assert one.rounds_on_disk() == learned > filled


@pytest.mark.long
def test_a_launcher_waits_for_a_node_that_has_finished_on_a_full_disk(ward, disk, start):
    field = ward(2, training={"rounds": 40, "closing_rounds": 1}, gossip={"linger_s": 1.0}, task={"step_s": 0.05})
    (port,) = free_ports(1)
    field.write_node("node1", state_dir=str(disk / "state"), status_listen=f"127.0.0.1:{port}")
    process = start("launch", str(field.folder), "--format", "json")
    one = Node.__new__(Node)
    one.process, one.port = process, port
    one.until(lambda said: said.get("rounds", 0) > 5, "five rounds")
    ballast = fill(disk)
    until_waiting(one)
    process.send_signal(signal.SIGINT)
    until_waiting(one)
    ballast.unlink()
    out, err = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 130, err
    rows = {row["name"]: row for row in json.loads(out)["nodes"]}
    assert rows["node1"]["finished"], err
    assert read_learned(field.folder / "node1").rounds >= 40
