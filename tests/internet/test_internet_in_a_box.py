"""The internet in a box does what its words say: who reaches whom, by which way, and how late."""

from __future__ import annotations

import subprocess
import sys

import pytest
from internet_in_a_box import PROXY_NAME, Way, why_not
from lan_in_a_box import SlowLine

PYTHON = (sys.executable, "-I", "-S", "-c")
ANSWER = """
import socket, sys
server = socket.create_server(("::", int(sys.argv[1])), family=socket.AF_INET6, dualstack_ipv6=True)
print("ready", flush=True)
while True:
    connection, place = server.accept()
    connection.sendall(place[0].removeprefix("::ffff:").encode())
    connection.close()
"""
ASK = """
import socket, sys, time
begun = time.monotonic()
with socket.create_connection((sys.argv[1], int(sys.argv[2])), timeout=float(sys.argv[3])) as connection:
    print(connection.recv(99).decode(), time.monotonic() - begun)
"""
ASK_MANY = """
import socket, sys, threading
def ask():
    with socket.create_connection((sys.argv[1], 443)) as connection:
        connection.recv(99)
asking = [threading.Thread(target=ask) for _ in range(50)]
for one in asking:
    one.start()
for one in asking:
    one.join()
"""
BY_PROXY = """
import socket, sys
with socket.create_connection((sys.argv[1], 3128), timeout=10) as connection:
    connection.sendall(f"CONNECT {sys.argv[2]} HTTP/1.1\\r\\n\\r\\n".encode())
    print(connection.recv(999).decode())
"""


def answers(host, port=443):
    ear = host.start(*PYTHON, ANSWER, port, stdout=subprocess.PIPE)
    assert ear.stdout.readline() == b"ready\n"
    ear.stdout.close()


def ask(source, place, port=443, wait_s=10.0):
    """The address of `source` as the other end sees it, and the seconds that took; None if nobody answers."""
    done = source.run(*PYTHON, ASK, place, port, wait_s)
    return None if done.returncode else (done.stdout.split()[0], float(done.stdout.split()[1]))


def test_a_site_behind_masquerade_is_seen_at_its_routers_address_and_cannot_be_dialed(net):
    public, clinic = net.host("public"), net.site("clinic")
    inside, beside = clinic.host("inside"), clinic.host("beside")
    net.give_name("public.example.org", public)
    for host in (public, inside, clinic.router):
        answers(host)
    assert ask(inside, "public.example.org")[0] == clinic.router.ipv4
    assert ask(beside, inside.ipv4)[0] == beside.ipv4
    assert ask(public, inside.ipv4, wait_s=1.0) is None
    assert ask(public, clinic.router.ipv4, wait_s=1.0) is None


@pytest.mark.needs("tinyproxy")
def test_from_a_site_with_a_proxy_only_connect_to_443_leads_out(net, tmp_path):
    public, works = net.host("public"), net.site("works", Way.PROXY)
    inside = works.host("inside")
    net.give_name("public.example.org", public)
    answers(public, 443)
    answers(public, 8443)
    proxy = works.start_proxy(tmp_path / "proxy")
    assert ask(inside, public.ipv4, wait_s=1.0) is None
    assert ask(inside, "public.example.org") is None, "it knows no names"

    def through(place):
        while True:
            done = inside.run(*PYTHON, BY_PROXY, PROXY_NAME, place)
            if "refused" not in done.stderr or proxy.poll() is not None:
                return done.stdout + done.stderr

    assert "200" in through("public.example.org:443").split("\r\n")[0]
    assert "403" in through("public.example.org:8443").split("\r\n")[0]


def test_a_host_without_ipv4_reaches_the_others_by_ipv6_and_firewalls_open_and_close(net):
    public, six = net.host("public"), net.ipv6_host("six")
    net.give_name("public.example.org", public)
    answers(public)
    answers(six)
    assert ask(six, "public.example.org")[0] == six.ipv6
    assert ask(public, six.ipv6)[0] == public.ipv6
    net.close_ports(six)
    assert ask(public, six.ipv6, wait_s=1.0) is None
    assert ask(six, "public.example.org")
    net.open_ports(six)
    assert ask(public, six.ipv6)


@pytest.mark.long
def test_a_slow_line_delays_and_loses(net):
    public, far = net.host("public"), net.site("far", line=SlowLine(delay_s=0.1, loss=0.1))
    inside = far.host("inside")
    far.router.slow(500, both=True)
    answers(public)
    assert ask(inside, public.ipv4)[1] >= 0.4, "two round trips"
    assert inside.run(*PYTHON, ASK_MANY, public.ipv4).returncode == 0
    names, values = (line.split() for line in inside.run("grep", "Tcp:", "/proc/net/snmp").stdout.splitlines())
    assert int(values[names.index("RetransSegs")]) > 0, "nothing was lost"


def test_what_is_missing_is_named_with_its_package(monkeypatch):
    if reason := why_not():
        pytest.skip(reason)
    monkeypatch.setattr("shutil.which", lambda name: None if name == "tinyproxy" else f"/usr/bin/{name}")
    assert why_not("nginx", "tinyproxy") == "tinyproxy is not installed: in Debian, apt install tinyproxy"
