"""Boards on a LAN in a box: one host for each node of a federation, with its own folder; nobody knows an address."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from lan_in_a_box import Lan

from p2pfl.crypto.identity import Identity, public_text

DEADLINE_S = 100.0
P2PFL = (sys.executable, "-m", "p2pfl.cli.main")
TEXT = """
[federation]
name = "ward"
topology = "{topology}"
[task]
name = "quadratic"
step_s = {step_s}
[training]
rounds = {rounds}
[gossip]
compressor = "none"
start_wait_s = 60.0
[network]
discovery = {discovery}
"""


class Machines:
    """Hosts on a LAN, each with a folder of its own for the federation, which subclasses fill."""

    def __init__(self, lan: Lan, folder: Path) -> None:
        self.lan, self.folder = lan, folder
        self.hosts: dict[str, Any] = {}
        self.processes: dict[str, subprocess.Popen[bytes]] = {}

    def board(self, name: str) -> Path:
        """The federation's folder on that board."""
        return self.folder / f"on-{name}"

    def on(self, host: Any, *arguments: object) -> str:
        """What a command of ours says on a host; it must not fail."""
        done = host.run(*P2PFL, *map(str, arguments))
        assert done.returncode == 0, (arguments, done.stdout, done.stderr)
        return (done.stdout if isinstance(done.stdout, str) else done.stdout.decode()).strip()

    def start(self, host: str, name: str | None = None) -> subprocess.Popen[bytes]:
        """Start the node of that name; by default it is called as its host."""
        with (self.board(host) / "log").open("ab") as log:
            command = (*P2PFL, "run", self.board(host), "--node", name or host, "-v")
            self.processes[host] = self.hosts[host].start(*command, stdout=subprocess.DEVNULL, stderr=log)
        return self.processes[host]

    def status(self, name: str) -> dict[str, Any]:
        """What its status page says; empty while it does not answer."""
        done = self.hosts[name].run(sys.executable, "-I", "-S", "-c", ASK)
        return json.loads(done.stdout) if done.returncode == 0 else {}

    def rounds(self, name: str) -> int:
        return int(self.status(name).get("rounds", 0))

    def result(self, host: str, name: str | None = None) -> Any:
        return json.loads((self.board(host) / (name or host) / "state" / "result.json").read_text(encoding="utf-8"))

    def wait_for(self, look, what):
        """Whatever `look` finds, as soon as it finds something."""
        end = time.monotonic() + DEADLINE_S
        while time.monotonic() < end:
            if found := look():
                return found
            time.sleep(0.3)
        raise AssertionError(f"waited in vain for {what}: {self.logs()}")

    def log(self, name: str) -> str:
        return (self.board(name) / "log").read_text()

    def logs(self) -> str:
        return "\n".join(self.log(name)[-1500:] for name in self.processes)


class Boards(Machines):
    """`folder` is what whoever looks after them has; each board has a copy without the others' keys."""

    def __init__(self, lan: Lan, folder: Path, count: int, **settings: Any) -> None:
        super().__init__(lan, folder)
        self.names = [f"pi{number}" for number in range(1, count + 1)]
        self.hosts = {name: lan.host(name) for name in self.names}
        known: dict[str, Any] = {"topology": "ring", "rounds": 100_000, "step_s": 0.05, "discovery": "true"}
        self.settings = known | {"addresses": False} | settings
        identities = {name: Identity.generate() for name in self.names}
        text = TEXT.format(**self.settings)
        for name, identity in identities.items():
            text += f'[[node]]\nname = "{name}"\nkey = "{public_text(identity.public)}"\n'
            if self.settings["addresses"]:
                text += f'address = "{self.hosts[name].ipv4}:8470"\n'
        folder.mkdir()
        (folder / "federation.toml").write_text(text, encoding="utf-8")
        for name, identity in identities.items():
            board = self.board(name)
            board.mkdir(parents=True)
            (board / "federation.toml").write_text(text, encoding="utf-8")
            (board / name).mkdir()
            identity.save(board / name / "node.key")
            (board / name / "node.toml").write_text('[node]\nstatus_listen = "127.0.0.1:8480"\n', encoding="utf-8")

    def start_all(self) -> None:
        for name in self.names:
            self.start(name)

    def live(self, name: str) -> set[str]:
        """The neighbors with which it has a session."""
        return {one["name"] for one in self.status(name).get("neighbors", []) if one["live"]}

    def doctor(self, name: str) -> tuple[int, dict[str, Any]]:
        """Its exit code, and what `p2pfl doctor` says on that board."""
        done = self.hosts[name].run(*P2PFL, "doctor", self.board(name), "--format", "json")
        return done.returncode, json.loads(done.stdout)

    def until_all_live(self) -> None:
        for name in self.names:
            self.wait_for(lambda name=name: len(self.live(name)) == 2, f"the two neighbors of {name}")


ASK = """
import urllib.request
print(urllib.request.urlopen("http://127.0.0.1:8480/status", timeout=3).read().decode())
"""
