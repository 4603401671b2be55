"""The how-to pages on relays and proxies, followed word by word on machines of an internet in a box.

`ssh HOST command` and `scp` go to folders and network namespaces; there is nothing else that the pages do not say. What
is measured is the time from the first command until two nodes have exchanged their models.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time

import page_kit as pages
import pytest
from internet_in_a_box import Way
from relays import Authority, start_nginx
from settled import require_edges_to_agree, settled_states

from p2pfl.config import load_config
from p2pfl.errors import StorageError
from p2pfl.node import newest, replay
from p2pfl.storage import peek

pytestmark = [pytest.mark.long, pytest.mark.timeout(600)]

DEADLINE_S = 240.0


class Desk:
    """Somebody's own machine, from which others are reached by ssh: each is a namespace with a folder of its own."""

    def __init__(self, net, folder, *machines):
        self.net, self.folder, self.machines = net, folder, folder / "machines"
        self.tools = folder / "tools"
        self.tools.mkdir()
        for name in machines:
            (self.machines / name).mkdir(parents=True)
        net.write_ssh(self.tools, self.machines)
        program = self.tools / "p2pfl"
        program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m p2pfl.cli.main "$@"\n', encoding="utf-8")
        program.chmod(0o755)
        self.environment = os.environ | {"PATH": f"{self.tools}:{os.environ['PATH']}", "PYTHONPATH": f"{pages.ROOT}"}
        self.begun_at = time.monotonic()

    def type(self, script):
        """Wait until it is done; return what it printed."""
        done = subprocess.run(
            self._bash(script), **self._here(), capture_output=True, text=True, check=False, timeout=500
        )
        assert done.returncode == 0, f"{script}\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}"
        return done.stdout

    def leave_running(self, script):
        """Type it in a terminal of its own."""
        with (self.folder / "terminals").open("ab") as log:
            process = subprocess.Popen(
                self._bash(script),
                cwd=self.folder,
                env=self.environment,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self.net.processes.append(process)
        return process

    def _here(self):
        return {"cwd": self.folder, "env": self.environment}

    @staticmethod
    def _bash(script):
        return ["bash", "-euo", "pipefail", "-c", script]

    def home(self, name):
        return self.machines / name / "ward"

    def states(self, *names):
        return {name: self.home(name) / name / "state" for name in names}

    def seconds_until_an_exchange(self, *names):
        """From the first command on, until all these nodes have an exchange on their disks."""
        while not all(self._has_exchanged(folder) for folder in self.states(*names).values()):
            assert time.monotonic() < self.begun_at + DEADLINE_S, (self.folder / "terminals").read_text()[-3000:]
            time.sleep(0.2)
        return time.monotonic() - self.begun_at

    @staticmethod
    def _has_exchanged(folder):
        try:
            loaded = peek(folder)
        except (StorageError, OSError):
            return False
        return loaded is not None and any(edge.record.seq for edge in replay(loaded).edges.values())

    def require_nothing_lost(self, *names):
        folders = self.states(*names)
        federation = newest(load_config(self.folder / "ward"), next(iter(folders.values())))
        require_edges_to_agree(federation, settled_states(federation, folders))


def block_with(page, words, language=None):
    (found,) = [text for kind, text in pages.blocks(pages.read(page)) if words in text and language in (None, kind)]
    return found


RELAY, PROXIES = "docs/how-to/relay.md", "docs/how-to/proxies-and-tls.md"


def three_machines(net, folder):
    net.give_name("relay.example.org", net.host("relay"))
    net.site("clinicsite").host("clinic")
    net.site("labsite").host("lab")
    return Desk(net, folder, "relay.example.org", "clinic", "lab")


def test_two_sites_that_open_no_port_learn_by_the_page_on_relays(net, tmp_path):
    desk = three_machines(net, tmp_path)
    assert "no mistakes" in desk.type(block_with(RELAY, "p2pfl new"))
    desk.leave_running(block_with(RELAY, "ssh relay.example.org p2pfl relay"))
    nodes = desk.leave_running(block_with(RELAY, "p2pfl run ward"))
    seconds = desk.seconds_until_an_exchange("clinic", "lab")
    print(f"first exchange after {seconds:.1f} s")  # noqa: T201 - for the docs
    assert nodes.wait(timeout=300) == 0
    desk.require_nothing_lost("clinic", "lab")
    for name in ("clinic", "lab"):
        assert (desk.states(name)[name] / "result.json").is_file()
        assert len(list(desk.home(name).glob("*/node.key"))) == 1, "a machine has another one's key"


def test_a_token_takes_the_place_of_tickets_where_there_is_no_admin_key_by_the_same_page(net, tmp_path):
    desk = three_machines(net, tmp_path)
    new = "p2pfl new ward --nodes clinic,lab --relay URL"
    assert f"`{new}`" in " ".join(pages.read(RELAY).split())
    desk.type(new.replace("URL", "ws://relay.example.org:8443"))
    block = block_with(RELAY, "relay_token")
    assert all(block in (desk.folder / "ward" / name / "node.toml").read_text() for name in ("clinic", "lab"))
    desk.type("scp ward/relay.token relay.example.org:")
    for name in ("clinic", "lab"):
        shared = "ward/federation.toml ward/relay.token ward/task.py"
        desk.type(f"ssh {name} mkdir -p ward; scp -r {shared} ward/{name} {name}:ward/")
    desk.leave_running("ssh relay.example.org p2pfl relay --listen 0.0.0.0:8443 --token relay.token")
    nodes = desk.leave_running(block_with(RELAY, "p2pfl run ward"))
    desk.seconds_until_an_exchange("clinic", "lab")
    assert nodes.wait(timeout=300) == 0
    desk.require_nothing_lost("clinic", "lab")


def new_federation(desk):
    """Two nodes, of which the first has the address in the page, and the second none."""
    desk.type("p2pfl new ward --nodes site,office")
    file = desk.folder / "ward" / "federation.toml"
    first, second = re.findall(r"(?m)^address = .*\n", file.read_text(encoding="utf-8"))
    return file, first, second


def copy(desk):
    for host, name in (("site.example.org", "site"), ("office", "office")):
        desk.type(f"ssh {host} mkdir -p ward; scp -r ward/federation.toml ward/task.py ward/{name} {host}:ward/")


@pytest.fixture
def office(net, tmp_path):
    """A public machine, and one behind a proxy that wants a password."""
    net.give_name("site.example.org", net.host("site"))
    works = net.site("officesite", Way.PROXY)
    works.host("office")
    works.start_proxy(tmp_path / "proxy", user="node secret")
    return Desk(net, tmp_path, "site.example.org", "office")


def fill_in(file, block):
    """Write the keys of a page's block into a file, each in the place of its own line if there is one."""
    there = file.read_text(encoding="utf-8")
    for table, lines in re.findall(r"(?m)^(\[\w+\])\n((?:[^\[\n].*\n)*)", block):
        if f"\n{table}\n" not in there:
            there = f"{there}\n{table}\n"
        for line in lines.splitlines():
            there, times = re.subn(rf"(?m)^(# )?{line.partition('=')[0]}=.*$", line, there, count=1)
            there = there if times else there.replace(f"\n{table}\n", f"\n{table}\n{line}\n")
    file.write_text(there, encoding="utf-8")


def finish_by_proxy(desk, address):
    """Give the site its address, the office its proxy, and run both."""
    file, first, second = new_federation(desk)
    text = file.read_text(encoding="utf-8").replace(first, f'address = "{address}"\n').replace(second, "")
    file.write_text(text, encoding="utf-8")
    own = desk.folder / "ward" / "office"
    fill_in(own / "node.toml", block_with(PROXIES, "proxy_password_file"))
    (own / "proxy.password").write_text("node:secret\n", encoding="utf-8")
    (own / "proxy.password").chmod(0o600)


def learn(desk):
    nodes = [
        desk.leave_running(f"ssh {host} p2pfl run ward --node {name}")
        for host, name in (("site.example.org", "site"), ("office", "office"))
    ]
    (desk.machines / "site").symlink_to(desk.machines / "site.example.org")
    seconds = desk.seconds_until_an_exchange("site", "office")
    print(f"first exchange after {seconds:.1f} s")  # noqa: T201 - for the docs
    assert [node.wait(timeout=300) for node in nodes] == [0, 0], (desk.folder / "terminals").read_text()[-3000:]
    desk.require_nothing_lost("site", "office")


@pytest.mark.needs("nginx", "tinyproxy", "openssl")
def test_a_node_behind_a_proxy_learns_with_one_behind_nginx_by_the_page_on_proxies(net, office, tmp_path):
    authority = Authority(tmp_path / "authority")
    office.environment |= authority.environment
    finish_by_proxy(office, "wss://site.example.org/p2pfl")
    fill_in(office.folder / "ward/site/node.toml", block_with(PROXIES, 'listen = "127.0.0.1:8470"', "toml"))
    certificate = authority.sign("site.example.org")
    start_nginx(net.hosts["site"], tmp_path / "nginx", "site.example.org", certificate, "127.0.0.1:8470")
    assert "no mistakes" in office.type("p2pfl check ward")
    copy(office)
    learn(office)


@pytest.mark.needs("tinyproxy", "openssl")
def test_a_node_behind_a_proxy_learns_with_one_that_has_a_certificate_of_its_own_by_the_same_page(office):
    """On port 443, since the proxy allows no other."""
    finish_by_proxy(office, "")
    said = office.type("cd ward/site\n" + block_with(PROXIES, "openssl req"))
    pin = re.search(r"Fingerprint=([0-9A-F:]+)", said)[1]
    file = office.folder / "ward" / "federation.toml"
    text = file.read_text(encoding="utf-8").replace(
        'address = ""', f'address = "wss://site.example.org/p2pfl#sha256={pin}"'
    )
    file.write_text(text, encoding="utf-8")
    fill_in(office.folder / "ward/site/node.toml", block_with(PROXIES, 'cert = "tls.crt"').replace(":8443", ":443"))
    assert "no mistakes" in office.type("p2pfl check ward")
    copy(office)
    learn(office)
