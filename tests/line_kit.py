"""Web servers and proxies as they are installed, in a folder of their own, and federations of real processes."""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest
from ports import free_ports

DEADLINE_S = 120.0
SQUID_AUTH = Path("/usr/lib/squid/basic_ncsa_auth")
USER, PASSWORD = "ann", "secret"


def require(program: str) -> None:
    """Skip the test if the program is not installed."""
    if shutil.which(program) is None:
        pytest.skip(f"needs the program {program}, which is not installed")


@contextmanager
def running(*command: object, port: int, env: Mapping[str, str] | None = None) -> Iterator[subprocess.Popen[bytes]]:
    """Run a program until the end of the block; it listens on `port` of this machine first."""
    process = subprocess.Popen([str(each) for each in command], env={**os.environ, **(env or {})})
    try:
        wait_for(port, process)
        yield process
    finally:
        process.terminate()
        process.wait(DEADLINE_S)


def wait_for(port: int, process: subprocess.Popen[bytes]) -> None:
    end = time.monotonic() + DEADLINE_S
    while True:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        assert process.poll() is None, "it has ended"
        assert time.monotonic() < end, f"nothing listens on port {port}"
        time.sleep(0.01)


@contextmanager
def public_folder() -> Iterator[Path]:
    """A folder that programs which give up root can read."""
    with tempfile.TemporaryDirectory(prefix="p2pfl-lines-") as name:
        Path(name).chmod(0o755)
        yield Path(name)


@contextmanager
def nginx(block: str, port: int) -> Iterator[Path]:
    """Run nginx with a block of its configuration; yield the folder, in which `access` says what it has answered."""
    require("nginx")
    with public_folder() as folder:
        file = folder / "nginx.conf"
        user = "user root;" if os.geteuid() == 0 else ""
        temporary = "".join(
            f"{kind}_temp_path {folder}/{kind};\n" for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
        )
        head = f"{user} daemon off; pid {folder}/pid; error_log {folder}/errors; events {{}}\n"
        file.write_text(f"{head}http {{\naccess_log {folder}/access;\n{temporary}{block}}}\n")
        with running("nginx", "-p", folder, "-c", file, "-e", folder / "errors", port=port):
            yield folder


@contextmanager
def caddy(block: str, port: int) -> Iterator[Path]:
    """Run Caddy with a block of its configuration; yield the folder."""
    require("caddy")
    with public_folder() as folder:
        file = folder / "Caddyfile"
        file.write_text(f"{{\n    admin unix/{folder}/admin\n    auto_https disable_redirects\n}}\n{block}")
        env = {"HOME": str(folder), "XDG_CONFIG_HOME": str(folder), "XDG_DATA_HOME": str(folder)}
        with running("caddy", "run", "--config", file, "--adapter", "caddyfile", port=port, env=env):
            yield folder


@contextmanager
def squid(port: int, *, allowed: int, hosts: str = "") -> Iterator[str]:
    """Run squid, which knows CONNECT to one port for a user with a password; yield its URL."""
    require("squid")
    if not SQUID_AUTH.exists():
        pytest.skip(f"needs {SQUID_AUTH}, which comes with squid")
    secret = subprocess.run(["openssl", "passwd", "-apr1", PASSWORD], check=True, capture_output=True, text=True).stdout
    with public_folder() as folder:
        (folder / "users").write_text(f"{USER}:{secret}")
        (folder / "hosts").write_text(f"127.0.0.1 localhost\n{hosts}")
        (folder / "squid.conf").write_text(
            f"http_port 127.0.0.1:{port}\npid_filename none\ncache_log /dev/null\naccess_log none\ncache deny all\n"
            f"cache_mem 8 MB\nshutdown_lifetime 0 seconds\nhosts_file {folder}/hosts\npinger_enable off\n"
            f"auth_param basic program {SQUID_AUTH} {folder}/users\nauth_param basic children 1\n"
            f"acl users proxy_auth REQUIRED\nacl nodes port {allowed}\nacl CONNECT method CONNECT\n"
            "http_access deny !CONNECT\nhttp_access deny !nodes\nhttp_access allow users\nhttp_access deny all\n"
        )
        with running("squid", "-N", "-f", folder / "squid.conf", port=port):
            yield f"http://127.0.0.1:{port}"


@contextmanager
def tinyproxy(port: int, *, allowed: int) -> Iterator[str]:
    """Run tinyproxy, which knows CONNECT to one port for a user with a password; yield its URL."""
    require("tinyproxy")
    with public_folder() as folder:
        (folder / "tinyproxy.conf").write_text(
            f"Port {port}\nListen 127.0.0.1\nTimeout 600\nMaxClients 20\nConnectPort {allowed}\n"
            f'LogFile "{folder}/log"\nBasicAuth {USER} {PASSWORD}\n'
        )
        with running("tinyproxy", "-d", "-c", folder / "tinyproxy.conf", port=port):
            yield f"http://127.0.0.1:{port}"


class Sites:
    """A federation of real nodes, on this machine."""

    def __init__(self, folder: Path, *more: str, nodes: str = "2") -> None:
        self.path = folder / "ward"
        self.say("new", self.path, "--nodes", nodes, "--task", "digits", "--base-port", free_ports(1)[0], *more)
        self.change("federation.toml", r"rounds = 40 ", "rounds = 4  ")

    def say(self, *words: object, env: Mapping[str, str] | None = None) -> str:
        """Run a command of p2pfl, which must succeed; return what it says."""
        command = [sys.executable, "-m", "p2pfl.cli.main", *map(str, words)]
        all_of_it = {**os.environ, **(env or {})}
        told = subprocess.run(
            command, check=False, capture_output=True, text=True, timeout=2 * DEADLINE_S, env=all_of_it
        )
        assert told.returncode == 0, told.stdout + told.stderr
        return told.stdout + told.stderr

    def change(self, file: str, before: str, after: str) -> None:
        text, times = re.subn(before, after, (self.path / file).read_text())
        assert times == 1, before
        (self.path / file).write_text(text)

    def address(self, node: int, address: str | None) -> None:
        """Give a node an address, or none."""
        pattern = rf'(name = "node{node}"\nkey = "[^"]*"\n)address = "[^"]*"\n'
        self.change("federation.toml", pattern, r"\1" + ("" if address is None else f'address = "{address}"\n'))

    def own(self, node: int, text: str) -> None:
        with (self.path / f"node{node}/node.toml").open("a") as file:
            file.write(text)

    def listen(self, node: int, port: int) -> None:
        self.change(f"node{node}/node.toml", r'(?m)^listen = "[^"]*"', f'listen = "127.0.0.1:{port}"')

    def learn(self, env: Mapping[str, str] | None = None) -> None:
        """Run all nodes to their end. Each must have learned from the other."""
        self.say("launch", self.path, env=env)
        report = json.loads((self.path / "report.json").read_text())
        assert report["accuracy"]["min"] > 0.7
        for node in report["nodes"]:
            assert node["exchanges"] >= 4
            assert node["rounds_without_neighbor"] == 0

    def doctor(self, node: int) -> str:
        """Return what the doctor finds wrong from that node's view, in one line."""
        words = ("doctor", str(self.path), "--node", f"node{node}")
        command = [sys.executable, "-m", "p2pfl.cli.main", *words]
        told = subprocess.run(command, check=False, capture_output=True, text=True, timeout=2 * DEADLINE_S)
        assert told.returncode == 1, told.stdout + told.stderr
        return " ".join((told.stdout + told.stderr).split())

    @contextmanager
    def running(self, node: int) -> Iterator[None]:
        """Run one node until the end of the block."""
        command = [sys.executable, "-m", "p2pfl.cli.main", "run", self.path, "--node", f"node{node}", "-v"]
        with (self.path / f"node{node}/node.log").open("w") as log:
            process = subprocess.Popen([str(each) for each in command], stdout=log, stderr=log)
        try:
            yield
        finally:
            process.terminate()
            process.wait(DEADLINE_S)

    def until(self, condition: Callable[[], object]) -> None:
        end = time.monotonic() + 2 * DEADLINE_S
        while not condition():
            assert time.monotonic() < end, [(self.path / f"node{node}/node.log").read_text() for node in range(2)]
            time.sleep(0.05)

    def forget(self) -> None:
        """Remove what the nodes have learned."""
        for node in range(2):
            shutil.rmtree(self.path / f"node{node}/state")

    def log(self, node: int) -> str:
        return (self.path / f"node{node}/node.log").read_text()
