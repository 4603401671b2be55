"""An internet in a box: machines with public addresses, and sites behind routers that let nothing in.

    with Internet(folder) as net:
        relay = net.host("relay")                       # a public machine, with IPv4 and IPv6, as on a `Lan`
        net.give_name("relay.example.org", relay)       # everybody's /etc/hosts has it; there is no DNS
        clinic = net.site("clinic")                     # a LAN of its own, behind a router with masquerade
        pi1, pi2 = clinic.host("pi1"), clinic.host("pi2")
        works = net.site("works", way=Way.PROXY)        # nothing leaves it but through a proxy, with CONNECT to 443
        far = net.site("far", line=SlowLine(delay_s=0.15, loss=0.02))    # its cable to the internet
        far.router.slow(500, both=True)
        six = net.ipv6_host("six")                      # no IPv4
        net.close_ports(six)                            # its firewall: nobody may dial it
        net.open_ports(six)

Names of hosts and sites are different. What a host can do is in `lan_in_a_box.py`; `why_not` says what is missing.
"""

from __future__ import annotations

import shutil
import subprocess
from enum import Enum, auto
from pathlib import Path

import lan_in_a_box
from lan_in_a_box import SWITCH, Host, Lan, SlowLine

NO_NEW_TCP = ("INPUT", "-i", "eth0", "-p", "tcp", "--syn", "-j", "DROP")
PROXY_NAME, PROXY_PORT = "proxy.example.org", 3128
LOCAL_NAMES = "127.0.0.1 localhost\n::1 localhost\n"
PACKAGES = {"ip6tables": "iptables", "tc": "iproute2"}
"""Debian's packages of programs that are not named like them."""


def why_not(*programs: str) -> str | None:
    """What this machine lacks for an internet in a box in which these programs run, too; None if nothing."""
    if reason := lan_in_a_box.why_not():
        return reason
    for program in ("iptables", "ip6tables", "tc", *programs):
        if shutil.which(program) is None:
            return f"{program} is not installed: in Debian, apt install {PACKAGES.get(program, program)}"
    if not Path("/dev/net/tun").exists():
        return "/dev/net/tun is missing: modprobe tun"
    masquerade = "iptables -t nat -A POSTROUTING -j MASQUERADE"
    if subprocess.run(["unshare", "--net", *masquerade.split()], capture_output=True, check=False).returncode:
        return "the kernel has no masquerade for iptables"
    return None


class Way(Enum):
    """How a site reaches the internet."""

    MASQUERADE = auto()
    PROXY = auto()


class Internet(Lan):
    """Public machines on one switch, and sites behind routers that are on it, too. `folder` is for small files."""

    ipv4, ipv6 = "11.77.0.", "2a00:77::"

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.sites: dict[str, Site] = {}
        self.folder = folder
        self.etc = make_etc(folder / "etc")

    def _namespaces(self) -> list[str]:
        inside = [host.namespace for site in self.sites.values() for host in site.hosts.values()]
        return [*inside, *super()._namespaces()]

    def give_name(self, name: str, host: Host) -> None:
        assert self.etc is not None
        with (self.etc / "hosts").open("a", encoding="utf-8") as file:
            file.write("".join(f"{address} {name}\n" for address in (host.ipv4, host.ipv6) if address))

    def ipv6_host(self, name: str) -> Host:
        host = self.host(name)
        host.ip("-4", "address", "flush", "dev", "eth0")
        host.ipv4 = ""
        return host

    def site(self, name: str, way: Way = Way.MASQUERADE, line: SlowLine | None = None) -> Site:
        router = self.host(f"{name}router", line)
        self.sites[name] = Site(self, router, way, len(self.sites) + 1)
        return self.sites[name]

    def close_ports(self, host: Host) -> None:
        for tables in ("iptables", "ip6tables"):
            checked(host, tables, "-A", *NO_NEW_TCP)

    def open_ports(self, host: Host) -> None:
        for tables in ("iptables", "ip6tables"):
            checked(host, tables, "-D", *NO_NEW_TCP)


class Site(Lan):
    """A LAN with private addresses. Its router has the public one, and answers nobody outside.

    It closes with the internet. With a proxy its hosts know no name but that of the proxy, which is the router.
    """

    def __init__(self, internet: Internet, router: Host, way: Way, number: int) -> None:
        super().__init__()
        self.prefix, self.processes, self.namespace = internet.prefix, internet.processes, router.namespace
        self.router, self.ipv4 = router, f"192.168.{number}."
        self.etc = internet.etc
        router.ip("link", "add", SWITCH, "type", "bridge", "mcast_snooping", "0", "forward_delay", "0")
        router.ip("address", "add", f"{self.gateway}/24", "dev", SWITCH)
        router.ip("link", "set", SWITCH, "up")
        for rule in (*NOTHING_IN, *(MASQUERADE if way is Way.MASQUERADE else ())):
            checked(router, "iptables", *rule.split())
        for tables in ("iptables", "ip6tables"):  # a kernel may show them what is only switched, too
            checked(router, tables, "-P", "FORWARD", "DROP")
            checked(router, tables, "-A", "FORWARD", "-i", SWITCH, "-o", SWITCH, "-j", "ACCEPT")
        if way is Way.MASQUERADE:
            checked(router, "sh", "-c", "echo 1 > /proc/sys/net/ipv4/ip_forward")
        else:
            self.etc = make_etc(internet.folder / f"etc{number}", f"{self.gateway} {PROXY_NAME}\n")

    def start_proxy(self, folder: Path, user: str = "") -> subprocess.Popen[bytes]:
        """Start tinyproxy on the router, for this site; `user` is "NAME PASSWORD" where it wants one."""
        folder.mkdir(exist_ok=True)
        words = [f"Port {PROXY_PORT}", f"Listen {self.gateway}", f"Allow {self.ipv4}0/24", "ConnectPort 443"]
        words += ["Timeout 600", *([f"BasicAuth {user}"] if user else [])]
        (folder / "tinyproxy.conf").write_text("\n".join(words) + "\n", encoding="utf-8")
        with (folder / "log").open("wb") as log:
            return self.router.start("tinyproxy", "-d", "-c", folder / "tinyproxy.conf", stdout=log, stderr=log)


NOTHING_IN = ("-A INPUT -i eth0 -p tcp --syn -j DROP", "-A INPUT -i eth0 -p udp -j DROP")
NOTHING_OUT = ()
MASQUERADE = (
    "-t nat -A POSTROUTING -o eth0 -j MASQUERADE",
    f"-A FORWARD -i {SWITCH} -o eth0 -j ACCEPT",
    "-A FORWARD -i eth0 -m conntrack --ctstate ESTABLISHED,RELATED -j ACCEPT",
)


def make_etc(folder: Path, names: str = "") -> Path:
    folder.mkdir()
    (folder / "hosts").write_text(LOCAL_NAMES + names, encoding="utf-8")
    (folder / "resolv.conf").write_text("nameserver 127.0.0.1\n", encoding="utf-8")  # refuses at once
    return folder


def checked(host: Host, *command: object) -> None:
    done = host.run(*command)
    if done.returncode:
        raise RuntimeError(f"{host.name}: {' '.join(map(str, command))}: {done.stderr}")
