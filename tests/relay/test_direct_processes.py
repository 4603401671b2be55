"""Real processes that have nothing but a relay: they end on a direct line if they share their addresses."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from p2pfl.cli.main import main
from p2pfl.features.relay.feature import is_plausible, own_hosts

sys.path.insert(0, str(Path(__file__).parents[1]))
from ports import free_ports

DEADLINE_S = 100.0
COMMAND = [sys.executable, "-m", "p2pfl.cli.main"]
NAMES = ("clinic", "lab")


@pytest.fixture
def ward(tmp_path):
    """Start processes in a folder of a federation whose members have no address; none outlives the test."""
    started = {}
    port = free_ports(1)[0]

    def start(name, *words):
        with (tmp_path / f"{name}.log").open("w") as log:
            process = subprocess.Popen([*COMMAND, *map(str, words)], stdout=log, stderr=log, stdin=subprocess.DEVNULL)
        started[name] = process

    def log(name):
        return (tmp_path / f"{name}.log").read_text(encoding="utf-8")

    def until(condition, deadline_s=DEADLINE_S):
        end = time.monotonic() + deadline_s
        while not condition() and time.monotonic() < end:
            for name, process in started.items():
                assert process.poll() is None, log(name)
            time.sleep(0.1)
        return condition()

    folder, url = tmp_path / "ward", f"ws://127.0.0.1:{port}/p2pfl"
    with pytest.raises(SystemExit) as made:
        main(["new", str(folder), "--nodes", ",".join(NAMES), "--relay", url])
    assert made.value.code == 0
    start("relay", "relay", "--listen", f"127.0.0.1:{port}", "--token", folder / "relay.token")
    yield folder, start, log, until
    for process in started.values():
        if process.poll() is None:
            process.send_signal(signal.SIGKILL)
            process.wait(DEADLINE_S)


@pytest.mark.long
@pytest.mark.timeout(300)
@pytest.mark.parametrize("shares", [True, False])
def test_two_nodes_with_only_a_relay_end_on_a_direct_line_if_they_share_their_addresses(ward, shares):
    own = [host for host in own_hosts("0.0.0.0", (), ()) if is_plausible(host)]
    if not own:
        pytest.skip("this machine has no address but loopback")
    folder, start, log, until = ward
    file = folder / "federation.toml"
    text = file.read_text(encoding="utf-8").replace("rounds =", "rounds = 100000 #", 1)
    file.write_text(text.replace('name = "task.py:task"', 'name = "quadratic"\nstep_s = 0.2', 1), encoding="utf-8")
    for name in NAMES:
        node = folder / name / "node.toml"
        text = node.read_text(encoding="utf-8")
        assert text.count("\n[network]\n") == 1
        text = text.replace("\n[network]\n", f"\n[network]\nshare_addresses = {str(shares).lower()}\n")
        node.write_text(text, encoding="utf-8")
        start(name, "run", folder, "--node", name, "-v")
    assert until(lambda: all("is open" in log(name) for name in NAMES)), log("clinic")

    def moved():
        return all(" has a new address: " in log(name) for name in NAMES)

    assert until(moved, DEADLINE_S if shares else 45.0) == shares, log("clinic")
    if shares:
        assert any(f"has a new address: {host}, before relay" in log("clinic") for host in own)
    for name in NAMES:
        assert "Traceback" not in log(name)
        assert " refused " not in log(name)
