"""An afternoon on a LAN: boards come, go, move and die; nobody restarts the others, and training ends well."""

from __future__ import annotations

import shutil
import time
from collections import Counter

import pytest
from boards import Machines

pytestmark = [pytest.mark.long, pytest.mark.timeout(500)]

NAMES = ("pi1", "pi2", "pi3", "pi4", "pi5")
PORT = 8470
PAGE = '[node]\nstatus_listen = "127.0.0.1:8480"\n'


class Afternoon(Machines):
    """A laptop with the admin key, and boards, each a host of its own with only its own key."""

    def __init__(self, lan, folder):
        super().__init__(lan, folder)
        self.ward, self.laptop, self.started = folder / "laptop" / "ward", lan.host("laptop"), Counter()
        (folder / "laptop").mkdir()
        self.admin("new", self.ward, "--nodes", ",".join(NAMES), "--admin", "--task", "digits")
        file = self.ward / "federation.toml"
        text = file.read_text(encoding="utf-8")
        assert text.count("# discovery = false") == 1
        file.write_text(text.replace("# discovery = false", "discovery = true"), encoding="utf-8")
        for name in NAMES:
            self.hosts[name] = lan.host(name)
        places = [f"--address={name}={self.hosts[name].ipv4}:{PORT}" for name in NAMES]
        self.admin("member", "set", self.ward, "--offline", "--rounds", 100_000, *places)
        for name in NAMES:
            board = self.board(name)
            (board / name).mkdir(parents=True)
            for shared in ("federation.toml", "members.toml"):
                shutil.copy(self.ward / shared, board)
            shutil.copy(self.ward / name / "node.key", board / name)
            (board / name / "node.toml").write_text(PAGE, encoding="utf-8")

    def admin(self, *arguments):
        return self.on(self.laptop, *arguments)

    def start(self, host, name=None):
        self.started[host] += 1
        return super().start(host, name)

    def join(self, host, line):
        """A new machine: a key of its own, a request, and it waits until it is taken in. Returns the request."""
        self.hosts[host] = self.lan.host(host)
        place = f"{self.hosts[host].ipv4}:{PORT}"
        return self.on(self.hosts[host], "join", line, self.board(host), "--from", self.ward, "--address", place)

    def exchanges(self, host):
        return sum(one["exchanges"] for one in self.status(host).get("neighbors", []) if one["live"])

    def goes_on(self, *hosts):
        """Each of them exchanges again, and trains."""
        for host in hosts:
            before = self.exchanges(host), self.rounds(host)
            self.wait_for(lambda h=host, b=before: self.exchanges(h) > 0 and self.rounds(h) > b[1], f"{host} at work")


def test_training_ends_well_whatever_happens_to_boards(lan, tmp_path):
    here = Afternoon(lan, tmp_path)
    for name in NAMES:
        here.start(name, name)
    here.goes_on(*NAMES)

    # a sixth joins
    request = here.join("pi6", here.admin("invite", here.ward, "pi6"))
    (here.board("pi6") / "pi6" / "node.toml").write_text(PAGE, encoding="utf-8")
    here.start("pi6", "pi6")
    here.admin("member", "add", here.ward, request, "--yes")
    here.goes_on("pi6")

    # one dies, and another machine takes its place
    here.processes["pi2"].kill()
    here.processes["pi2"].wait()
    request = here.join("new2", here.admin("invite", here.ward, "pi2", "--replace"))
    (here.board("new2") / "pi2" / "node.toml").write_text(PAGE, encoding="utf-8")
    here.start("new2", "pi2")
    here.admin("member", "replace", here.ward, request, "--yes")
    here.goes_on("new2")

    # one is removed: it stops by itself, and nobody talks to it
    here.admin("member", "remove", here.ward, "pi5")
    here.wait_for(lambda: here.processes["pi5"].poll() is not None, "the end of pi5")
    assert here.processes["pi5"].returncode not in (0, None)

    # one is rebooted, one loses its cable for a while, one gets another address
    here.processes["pi1"].kill()
    here.processes["pi1"].wait()
    here.start("pi1", "pi1")
    here.hosts["pi3"].pull()
    here.hosts["pi4"].readdress("10.77.0.99", "fd77::99")
    time.sleep(5.0)
    here.hosts["pi3"].plug()
    there = ("pi1", "new2", "pi3", "pi4", "pi6")
    here.goes_on(*there)

    # the LAN falls into halves for a while
    lan.split([here.hosts["pi1"], here.hosts["new2"]])
    time.sleep(15.0)
    lan.heal()
    here.goes_on(*there)

    # the end is brought near, for all at once
    here.admin("member", "set", here.ward, "--rounds", max(here.rounds(host) for host in there) + 60)
    assert {host: here.processes[host].wait(timeout=200) for host in there} == dict.fromkeys(there, 0), here.logs()
    assert {host: here.started[host] for host in there} == dict.fromkeys(there, 1) | {"pi1": 2}
    results = [here.result(host, {"new2": "pi2"}.get(host)) for host in there]
    assert min(result["accuracy"] for result in results) > 0.9, [result["accuracy"] for result in results]
