"""A LAN in a box: hosts in network namespaces of Linux, joined by a switch, with cables that a test can pull.

    with Lan() as lan:
        pi1, pi2 = lan.host("pi1"), lan.host("pi2")
        node = pi1.start("p2pfl", "run", "ward", "--node", "pi1", stdout=PIPE)    # an ordinary Popen, inside pi1
        pi2.pull()                          # the cable: the host sees that its link is gone
        pi2.plug()
        pi1.readdress("10.77.0.99")         # another address, as a router may give one at any time
        lan.multicast(on=False)             # the switch passes no multicast: no mDNS, and no IPv6 to new neighbors
        lan.split([pi1])                    # two halves without a way between them; links stay up
        lan.heal()
        pi1.slow(kbit_per_s=500)            # what pi1 sends is limited; what is too much for its queue is lost

Each host has the interface eth0 with an IPv4 and an IPv6 address of its own, and loopback. There is no way out of the
box. It needs root and the commands of iproute2: `why_not` says what is missing, and tests are skipped then. Everything
is removed at the end of the block, processes first; names begin with the process's id, so that parallel tests do not
meet, and the leftovers of processes that were killed are swept away by the next box. Packets are lost only where a
queue is full or a way is blocked, or on a `SlowLine`, which is a process: netem is not in every kernel.
`internet_in_a_box.py` joins such LANs by routers.
"""

from __future__ import annotations

import atexit
import itertools
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

PREFIX = "p2lan"
SWITCH, OTHER_HALF = "switch", "other-half"
ETC = Path("/etc/netns")
"""Where `ip netns exec` looks for what it shows in /etc."""
SLOW_LINE = Path(__file__).with_name("slow_line.py")
_COUNT = itertools.count()
SSH = """#!/bin/sh
host=$1; shift
cd "{machines}/$host" && exec ip netns exec "{prefix}-${{host%%.*}}" sh -c "$*"
"""
SCP = """#!/bin/sh
[ "$1" = -r ] && shift
for last; do :; done
while [ $# -gt 1 ]; do cp -r "$1" "{machines}/${{last%%:*}}/${{last#*:}}"; shift; done
"""


def why_not() -> str | None:
    """What this machine lacks for a LAN in a box; None if nothing."""
    if sys.platform != "linux":
        return "network namespaces are Linux's"
    if os.geteuid() != 0:
        return "only root may make network namespaces"
    if shutil.which("ip") is None or shutil.which("bridge") is None or shutil.which("unshare") is None:
        return "ip and bridge (iproute2) or unshare are not installed"
    if subprocess.run(["unshare", "--net", "true"], capture_output=True, check=False).returncode:
        return "network namespaces are not allowed here"
    return None


@dataclass(frozen=True, kw_only=True)
class SlowLine:
    """A cable that delays each packet by so much, in each direction, and loses this share of them."""

    delay_s: float = 0.0
    loss: float = 0.0


class Host:
    """A machine on the LAN; `Lan.host` makes it."""

    def __init__(self, lan: Lan, name: str, number: int, line: SlowLine | None = None) -> None:
        self.name, self.number = name, number
        self.namespace = f"{lan.prefix}-{name}"
        self.ipv4, self.ipv6 = f"{lan.ipv4}{number}", f"{lan.ipv6}{number:x}"
        self._lan, self._port, self._line = lan, f"port{number}", line

    def start(self, *command: object, **options: Any) -> subprocess.Popen[Any]:
        """A process of this host. It is killed with the box at the latest."""
        words = ["ip", "netns", "exec", self.namespace, *map(str, command)]
        process = subprocess.Popen(words, start_new_session=True, **options)
        self._lan.processes.append(process)
        return process

    def run(self, *command: object, timeout_s: float = 60.0, **options: Any) -> subprocess.CompletedProcess[str]:
        """A command of this host to its end, with its output, however it ends."""
        words = ["ip", "netns", "exec", self.namespace, *map(str, command)]
        return subprocess.run(words, capture_output=True, text=True, timeout=timeout_s, check=False, **options)

    def ip(self, *words: object) -> str:
        """The command `ip` of this host."""
        return _call("ip", "-n", self.namespace, *words)

    def pull(self) -> None:
        """Pull the cable out of the switch."""
        self._lan.ip("link", "set", self._port, "down")

    def plug(self) -> None:
        self._lan.ip("link", "set", self._port, "up")
        self._restore_ipv6()

    def off(self) -> None:
        """Its own end of the link goes down, as when its driver dies. IPv6 addresses are lost with it."""
        self.ip("link", "set", "eth0", "down")

    def on(self) -> None:
        self.ip("link", "set", "eth0", "up")
        self.ip("route", "replace", "default", "via", self._lan.gateway)
        self._restore_ipv6()

    def readdress(self, ipv4: str, ipv6: str | None = None) -> None:
        """Take the old addresses away and give it these; without `ipv6` that one stays."""
        self.ip("-4", "address", "flush", "dev", "eth0")
        self.ipv4 = ipv4
        self._give_ipv4()
        if ipv6 is not None:
            self.ip("address", "del", f"{self.ipv6}/64", "dev", "eth0")
            self.ip("address", "add", f"{ipv6}/64", "dev", "eth0", "nodad")
            self.ipv6 = ipv6

    def add_bridge(self, name: str, ipv4: str) -> None:
        """A bridge inside the host, with an address and nothing behind it, as Docker and libvirt leave them."""
        self.ip("link", "add", name, "type", "bridge")
        self.ip("address", "add", f"{ipv4}/16", "dev", name)
        self.ip("link", "set", name, "up")

    def slow(self, kbit_per_s: int, queue_ms: int = 200, *, both: bool = False) -> None:
        """Limit what it sends (a token bucket), and with `both` what it receives. What would wait longer than
        `queue_ms` is lost. 0 lifts the limit.
        """
        limit = ("tbf", "rate", f"{kbit_per_s}kbit", "burst", "10kb", "latency", f"{queue_ms}ms")
        ends = ((self.namespace, "eth0"), (self._lan.namespace, self._port))
        for namespace, device in ends if both else ends[:1]:
            _call("tc", "-n", namespace, "qdisc", "del", "dev", device, "root", check=False)
            if kbit_per_s:
                _call("tc", "-n", namespace, "qdisc", "add", "dev", device, "root", *limit)

    def _restore_ipv6(self) -> None:
        """Linux drops the IPv6 addresses of a link that is set down."""
        with suppress(subprocess.CalledProcessError):
            self.ip("address", "add", f"{self.ipv6}/64", "dev", "eth0", "nodad")

    def _attach(self) -> None:
        _call("ip", "netns", "add", self.namespace)
        if self._lan.etc is not None:
            ETC.mkdir(parents=True, exist_ok=True)
            (ETC / self.namespace).symlink_to(self._lan.etc)
        mac = f"02:00:00:00:00:{self.number:02x}"
        if self._line is None:
            near = ("address", mac, "netns", self.namespace)
            self._lan.ip("link", "add", self._port, "type", "veth", "peer", "name", "eth0", *near)
        else:
            self._lay(self._line)
            self.ip("link", "set", "eth0", "address", mac)
        self._lan.ip("link", "set", self._port, "master", SWITCH, "up")
        self.ip("link", "set", "lo", "up")
        self.ip("link", "set", "eth0", "up")
        self._give_ipv4()
        self.ip("address", "add", f"{self.ipv6}/64", "dev", "eth0", "nodad")

    def _lay(self, line: SlowLine) -> None:
        ends = (self.namespace, "eth0", self._lan.namespace, self._port)
        words = [sys.executable, "-I", "-S", SLOW_LINE, *ends, line.delay_s, line.loss]
        process = subprocess.Popen([str(word) for word in words], stdout=subprocess.PIPE, start_new_session=True)
        self._lan.processes.append(process)
        assert process.stdout is not None
        with process.stdout as said:
            if said.readline() != b"ready\n":
                raise RuntimeError(f"{SLOW_LINE} has ended")

    def _give_ipv4(self) -> None:
        """With a default route, as every host has one, even if nobody is there: multicast follows it."""
        self.ip("address", "add", f"{self.ipv4}/24", "dev", "eth0")
        self.ip("route", "replace", "default", "via", self._lan.gateway)


class Lan:
    """A switch and its hosts; a context, at whose end all of it is gone."""

    ipv4, ipv6 = "10.77.0.", "fd77::"
    """What the addresses of its hosts begin with."""
    etc: Path | None = None
    """A folder with files that its hosts find in /etc, such as `hosts`."""

    def __init__(self) -> None:
        self.prefix = f"{PREFIX}-{os.getpid()}-{next(_COUNT)}"
        self.hosts: dict[str, Host] = {}
        self.processes: list[subprocess.Popen[Any]] = []
        self.namespace = f"{self.prefix}.switch"

    @property
    def gateway(self) -> str:
        """The address of the way out; on a LAN alone nobody is there."""
        return f"{self.ipv4}254"

    def __enter__(self) -> Self:
        _sweep()
        atexit.register(self.close)
        try:
            _call("ip", "netns", "add", self.namespace)
            for name in (SWITCH, OTHER_HALF):
                self.ip("link", "add", name, "type", "bridge", "mcast_snooping", "0", "forward_delay", "0")
                self.ip("link", "set", name, "up")
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Kill what runs on the hosts, then take everything away. May be called again."""
        atexit.unregister(self.close)
        for process in self.processes:  # one that has just begun may not be in its namespace yet
            process.kill()
        for namespace in self._namespaces():
            _remove(namespace)
        for process in self.processes:
            process.wait()

    def _namespaces(self) -> list[str]:
        return [*(host.namespace for host in self.hosts.values()), self.namespace]

    def host(self, name: str, line: SlowLine | None = None) -> Host:
        """A new host, on the switch and reachable by the others at once; `name` in letters and digits."""
        host = self.hosts[name] = Host(self, name, len(self.hosts) + 1, line)
        host._attach()
        return host

    def write_ssh(self, tools: Path, machines: Path) -> None:
        """Write an `ssh` and an `scp` that go to its hosts, each of which has a folder of its own in `machines`."""
        for name, script in (("ssh", SSH), ("scp", SCP)):
            (tools / name).write_text(script.format(machines=machines, prefix=self.prefix), encoding="utf-8")
            (tools / name).chmod(0o755)

    def ip(self, *words: object) -> str:
        """The command `ip` of the switch."""
        return _call("ip", "-n", self.namespace, *words)

    def multicast(self, *, on: bool) -> None:
        """Whether the switch passes multicast on. Broadcast, and so ARP, always passes; the search of IPv6 for a
        neighbor is multicast. It concerns the hosts that are there, not those that come later.
        """
        for host in self.hosts.values():
            _call(
                "bridge", "-n", self.namespace, "link", "set", "dev", host._port, "mcast_flood", "on" if on else "off"
            )

    def split(self, half: Iterable[Host]) -> None:
        """Put these hosts onto a switch of their own."""
        for host in half:
            self.ip("link", "set", host._port, "master", OTHER_HALF)

    def heal(self) -> None:
        for host in self.hosts.values():
            self.ip("link", "set", host._port, "master", SWITCH)


def _call(*words: object, check: bool = True) -> str:
    """Its output; CalledProcessError, with what it said, where it fails."""
    done = subprocess.run([str(word) for word in words], capture_output=True, text=True, check=False, timeout=30)
    if check and done.returncode:
        error = subprocess.CalledProcessError(done.returncode, done.args, done.stdout, done.stderr)
        error.add_note(done.stderr)
        raise error
    return done.stdout


def _namespaces() -> list[str]:
    return [line.split()[0] for line in _call("ip", "netns", "list").splitlines() if line.startswith(PREFIX)]


def _remove(namespace: str) -> None:
    for pid in _call("ip", "netns", "pids", namespace, check=False).split():
        with suppress(ProcessLookupError):
            os.kill(int(pid), signal.SIGKILL)
    _call("ip", "netns", "del", namespace, check=False)
    (ETC / namespace).unlink(missing_ok=True)


def _sweep() -> None:
    """Remove the boxes of processes that are gone."""
    for namespace in _namespaces():
        pid = namespace.split("-")[1]
        if not Path(f"/proc/{pid}").exists():
            _remove(namespace)
