"""Five boards find each other, by the template of docs/tutorials/raspberry-pi.md, and a sixth is invited later."""

from __future__ import annotations

import json
import re
import shutil
import sys
import time
from pathlib import Path

import pytest
from boards import ASK, P2PFL

pytestmark = [pytest.mark.long, pytest.mark.timeout(400)]

TEMPLATE = Path(__file__).parents[2] / "deploy" / "five-boards"
NAMES = ("pi1", "pi2", "pi3", "pi4", "pi5")
DEADLINE_S = 120.0
ROUNDS_TOGETHER = 60


class Desk:
    """A computer with the admin key, and boards, hosts of their own with their own keys alone. No address anywhere."""

    def __init__(self, lan, folder):
        self.lan, self.folder, self.five = lan, folder, folder / "computer" / "five"
        self.computer = lan.host("computer")
        self.hosts, self.processes = {name: lan.host(name) for name in NAMES}, {}
        shutil.copytree(TEMPLATE, self.five)
        file = self.five / "federation.toml"
        keys = {name: self.on(self.computer, "key", self.five / name / "node.key") for name in NAMES}
        keys["admin"] = self.on(self.computer, "key", self.five / "admin.key")
        text = re.sub("KEY-OF-(pi[1-5]|admin)", lambda found: keys[found[1]], file.read_text(encoding="utf-8"))
        text = re.sub("(?m)^address = .*\n", "", text.replace("discovery = false", "discovery = true"))
        file.write_text(text.replace("rounds = 200", "rounds = 100000"), encoding="utf-8")
        self.on(self.computer, "check", self.five)
        for name in NAMES:
            self.board(name).mkdir(parents=True)
            shutil.copy(file, self.board(name))
            shutil.copytree(self.five / name, self.board(name) / name)

    def board(self, name):
        return self.folder / name / "five"

    def on(self, host, *arguments):
        done = host.run(*P2PFL, *map(str, arguments))
        assert done.returncode == 0, (arguments, done.stdout, done.stderr)
        return done.stdout.strip()

    def start(self, name):
        with (self.folder / f"{name}.log").open("wb") as log:
            command = (*P2PFL, "run", str(self.board(name)), "--node", name)
            self.processes[name] = self.hosts[name].start(*command, stdout=log, stderr=log)

    def status(self, name):
        done = self.hosts[name].run(sys.executable, "-I", "-S", "-c", ASK)
        return json.loads(done.stdout) if done.returncode == 0 else {}

    def live(self, name):
        return {one["name"] for one in self.status(name).get("neighbors", []) if one["live"] and one["exchanges"]}

    def until(self, look, what):
        end = time.monotonic() + DEADLINE_S
        while not look():
            assert time.monotonic() < end, f"waited in vain for {what}: {self.logs()}"
            time.sleep(0.3)

    def logs(self):
        return "\n".join(path.read_text()[-1500:] for path in sorted(self.folder.glob("*.log")))


def test_a_sixth_board_joins_five_that_find_each_other(lan, tmp_path):
    desk = Desk(lan, tmp_path)
    for name in NAMES:
        desk.start(name)
    desk.until(lambda: all(len(desk.live(name)) == 2 for name in NAMES), "the ring of five")

    line = desk.on(desk.computer, "invite", desk.five, "pi6")
    desk.hosts["pi6"] = lan.host("pi6")
    desk.board("pi6").mkdir(parents=True)
    shutil.copy(desk.five / "federation.toml", desk.board("pi6"))
    request = desk.on(desk.hosts["pi6"], "join", line, desk.board("pi6"))
    shutil.copy(TEMPLATE / "pi1" / "node.toml", desk.board("pi6") / "pi6")
    desk.start("pi6")
    desk.until(lambda: "not a member yet" in (tmp_path / "pi6.log").read_text(), "pi6 to ask")
    desk.on(desk.computer, "member", "add", desk.five, request, "--yes")
    desk.until(lambda: len(desk.live("pi6")) == 2, "pi6 at work")

    most = max(desk.status(name)["rounds"] for name in desk.hosts)
    desk.on(desk.computer, "member", "set", desk.five, "--rounds", most + ROUNDS_TOGETHER)
    ended = {name: process.wait(timeout=200) for name, process in desk.processes.items()}
    assert set(ended.values()) == {0}, desk.logs()
    results = {name: json.loads((desk.board(name) / name / "state" / "result.json").read_text()) for name in desk.hosts}
    assert min(result["accuracy"] for result in results.values()) > 0.9
    assert results["pi6"]["rounds"] > 0
