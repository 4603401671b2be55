"""Five boards find each other, by the template of docs/tutorials/raspberry-pi.md, and a sixth is invited later."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest
from boards import Machines

pytestmark = [pytest.mark.long, pytest.mark.timeout(400)]

TEMPLATE = Path(__file__).parents[2] / "deploy" / "five-boards"
NAMES = ("pi1", "pi2", "pi3", "pi4", "pi5")
ROUNDS_TOGETHER = 60


class Desk(Machines):
    """A computer with the admin key, and boards, hosts of their own with their own keys alone. No address anywhere."""

    def __init__(self, lan, folder):
        super().__init__(lan, folder)
        self.five, self.computer = folder / "computer" / "five", lan.host("computer")
        self.hosts = {name: lan.host(name) for name in NAMES}
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

    def live(self, name):
        return {one["name"] for one in self.status(name).get("neighbors", []) if one["live"] and one["exchanges"]}


def test_a_sixth_board_joins_five_that_find_each_other(lan, tmp_path):
    desk = Desk(lan, tmp_path)
    for name in NAMES:
        desk.start(name)
    desk.wait_for(lambda: all(len(desk.live(name)) == 2 for name in NAMES), "the ring of five")

    line = desk.on(desk.computer, "invite", desk.five, "pi6")
    desk.hosts["pi6"] = lan.host("pi6")
    desk.board("pi6").mkdir(parents=True)
    shutil.copy(desk.five / "federation.toml", desk.board("pi6"))
    request = desk.on(desk.hosts["pi6"], "join", line, desk.board("pi6"))
    shutil.copy(TEMPLATE / "pi1" / "node.toml", desk.board("pi6") / "pi6")
    desk.start("pi6")
    desk.wait_for(lambda: "not a member yet" in desk.log("pi6"), "pi6 to ask")
    desk.on(desk.computer, "member", "add", desk.five, request, "--yes")
    desk.wait_for(lambda: len(desk.live("pi6")) == 2, "pi6 at work")

    most = max(desk.status(name)["rounds"] for name in desk.hosts)
    desk.on(desk.computer, "member", "set", desk.five, "--rounds", most + ROUNDS_TOGETHER)
    ended = {name: process.wait(timeout=200) for name, process in desk.processes.items()}
    assert set(ended.values()) == {0}, desk.logs()
    results = {name: desk.result(name) for name in desk.hosts}
    assert min(result["accuracy"] for result in results.values()) > 0.9
    assert results["pi6"]["rounds"] > 0
