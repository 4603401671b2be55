"""An afternoon on a LAN: boards come, go, move and die; nobody restarts the others, and training ends well."""

from __future__ import annotations

import json
import shutil
import sys
import time

import pytest
from boards import ASK, P2PFL

pytestmark = [pytest.mark.long, pytest.mark.timeout(500)]

DEADLINE_S = 90.0
NAMES = ("pi1", "pi2", "pi3", "pi4", "pi5")
PORT = 8470
PAGE = '[node]\nstatus_listen = "127.0.0.1:8480"\n'


class Afternoon:
    """A laptop with the admin key, and boards, each a host of its own with only its own key."""

    def __init__(self, lan, folder):
        self.lan, self.folder, self.ward = lan, folder, folder / "laptop" / "ward"
        self.laptop = lan.host("laptop")
        self.hosts, self.processes, self.started = {}, {}, {}
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

    def board(self, name):
        return self.folder / name / "ward"

    def admin(self, *arguments):
        return self.on(self.laptop, *arguments)

    def on(self, host, *arguments):
        done = host.run(*P2PFL, *map(str, arguments))
        assert done.returncode == 0, (arguments, done.stderr)
        return done.stdout if isinstance(done.stdout, str) else done.stdout.decode()

    def start(self, host, name):
        with (self.folder / f"{host}.log").open("ab") as log:
            command = (*P2PFL, "run", str(self.board(host)), "--node", name)
            self.processes[host] = self.hosts[host].start(*command, stdout=log, stderr=log)
        self.started[host] = self.started.get(host, 0) + 1

    def join(self, host, line):
        """A new machine: a key of its own, a request, and it waits until it is taken in. Returns the request."""
        self.hosts[host] = self.lan.host(host)
        (self.folder / host).mkdir()
        place = f"{self.hosts[host].ipv4}:{PORT}"
        asked = self.on(self.hosts[host], "join", line, self.board(host), "--from", self.ward, "--address", place)
        return asked.strip()

    def status(self, host):
        done = self.hosts[host].run(sys.executable, "-I", "-S", "-c", ASK)
        return json.loads(done.stdout) if done.returncode == 0 else {}

    def rounds(self, host):
        return self.status(host).get("rounds", 0)

    def exchanges(self, host):
        return sum(one["exchanges"] for one in self.status(host).get("neighbors", []) if one["live"])

    def until(self, look, what):
        end = time.monotonic() + DEADLINE_S
        while not look():
            assert time.monotonic() < end, f"waited in vain for {what}: {self.logs()}"
            time.sleep(0.3)

    def goes_on(self, *hosts):
        """Each of them exchanges again, and trains."""
        for host in hosts:
            before = self.exchanges(host), self.rounds(host)
            self.until(lambda h=host, b=before: self.exchanges(h) > 0 and self.rounds(h) > b[1], f"{host} at work")

    def logs(self):
        return "\n".join(path.read_text()[-1500:] for path in sorted(self.folder.glob("*.log")))


def test_training_ends_well_whatever_happens_to_boards(lan, tmp_path):
    here = Afternoon(lan, tmp_path)
    for name in NAMES:
        here.start(name, name)
    here.goes_on(*NAMES)

    # a sixth joins
    request = here.join("pi6", here.admin("invite", here.ward, "pi6").strip())
    (here.board("pi6") / "pi6" / "node.toml").write_text(PAGE, encoding="utf-8")
    here.start("pi6", "pi6")
    here.admin("member", "add", here.ward, request, "--yes")
    here.goes_on("pi6")

    # one dies, and another machine takes its place
    here.processes["pi2"].kill()
    here.processes["pi2"].wait()
    request = here.join("new2", here.admin("invite", here.ward, "pi2", "--replace").strip())
    (here.board("new2") / "pi2" / "node.toml").write_text(PAGE, encoding="utf-8")
    here.start("new2", "pi2")
    here.admin("member", "replace", here.ward, request, "--yes")
    here.goes_on("new2")

    # one is removed: it stops by itself, and nobody talks to it
    here.admin("member", "remove", here.ward, "pi5")
    here.until(lambda: here.processes["pi5"].poll() is not None, "the end of pi5")
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

    # the end is brought near, for all at once
    here.admin("member", "set", here.ward, "--rounds", max(here.rounds(host) for host in there) + 60)
    assert {host: here.processes[host].wait(timeout=200) for host in there} == dict.fromkeys(there, 0), here.logs()
    assert {host: here.started[host] for host in there} == dict.fromkeys(there, 1) | {"pi1": 2}
    names = {"new2": "pi2"}
    results = [
        json.loads((here.board(host) / names.get(host, host) / "state" / "result.json").read_text()) for host in there
    ]
    assert min(result["accuracy"] for result in results) > 0.9, [result["accuracy"] for result in results]
