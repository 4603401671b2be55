"""The LAN in a box does what its words say: packets pass or do not, and nothing of it stays."""

from __future__ import annotations

import subprocess
import sys

import pytest
from lan_in_a_box import PREFIX, Lan, _namespaces

SEND = """
import socket, sys, time
family = socket.AF_INET6 if ":" in sys.argv[1] else socket.AF_INET
out = socket.socket(family, socket.SOCK_DGRAM)
for n in range(40):
    try:
        out.sendto(b"hello", (sys.argv[1], 9000))
    except OSError:
        pass
    time.sleep(0.05)
"""
HEAR = """
import socket, sys
inbox = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)
inbox.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
inbox.bind(("::", 9000))
membership = socket.inet_aton("224.0.0.251") + socket.inet_aton(sys.argv[1])
inbox.setsockopt(socket.IPPROTO_IP, socket.IP_ADD_MEMBERSHIP, membership)
print("ready", flush=True)
inbox.settimeout(float(sys.argv[2]))
inbox.recv(99)
"""
GROUP = "224.0.0.251"
PYTHON = (sys.executable, "-I", "-S", "-c")


def passes(source, target, address=None, wait_s=2.0):
    """Whether one of several packets arrives."""
    ear = target.start(*PYTHON, HEAR, target.ipv4, wait_s, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert ear.stdout.readline() == b"ready\n"
    mouth = source.start(*PYTHON, SEND, address or target.ipv4)
    ear.communicate()
    mouth.kill()
    mouth.wait()
    return ear.returncode == 0


def blocked(source, target, address=None):
    return not passes(source, target, address, wait_s=0.4)


@pytest.fixture
def pair(lan):
    return lan.host("a"), lan.host("b")


def test_hosts_reach_each_other_by_both_kinds_of_address_and_by_multicast(pair):
    a, b = pair
    assert passes(a, b)
    assert passes(a, b, b.ipv6)
    assert passes(a, b, GROUP)


def test_a_pulled_cable_passes_nothing_until_it_is_plugged_in(pair):
    a, b = pair
    b.pull()
    assert blocked(a, b)
    b.plug()
    assert passes(a, b)
    assert passes(a, b, b.ipv6)


def test_a_switch_without_multicast_passes_the_rest(pair, lan):
    a, b = pair
    lan.multicast(on=False)
    assert blocked(a, b, GROUP)
    assert passes(a, b)
    lan.multicast(on=True)
    assert passes(a, b, GROUP)


def test_halves_hear_nothing_of_each_other_until_they_heal(pair, lan):
    a, b = pair
    lan.split([b])
    assert blocked(a, b)
    lan.heal()
    assert passes(a, b)


def test_a_new_address_takes_the_place_of_the_old(pair):
    a, b = pair
    old = b.ipv4
    b.readdress("10.77.0.99", "fd77::99")
    assert passes(a, b)
    assert passes(a, b, b.ipv6)
    assert blocked(a, b, old)


def test_nothing_stays_after_a_failure_not_even_processes(lan):
    with pytest.raises(ZeroDivisionError), Lan() as box:  # noqa: PT012 - the failure is within
        process = box.host("a").start("sleep", "60")
        1 / 0  # noqa: B018 - the failure
    assert process.wait(timeout=30) != 0
    assert not [name for name in _namespaces() if name.startswith(box.prefix)]


def test_what_a_killed_process_has_left_is_swept_away(lan):
    dead = subprocess.Popen(["true"])
    dead.wait()
    left = f"{PREFIX}-{dead.pid}-0-a"
    subprocess.run(["ip", "netns", "add", left], check=True)
    with Lan():
        assert left not in _namespaces()
