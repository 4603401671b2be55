"""What a node says on the LAN tells strangers nothing, and what it hears are hints about listed members alone."""

from __future__ import annotations

import asyncio
import secrets
import subprocess
import sys
from contextlib import asynccontextmanager
from ipaddress import ip_interface

import pytest

from p2pfl.errors import UserError
from p2pfl.features.lan import (
    LOOPBACK,
    MOST_LOOKUPS,
    MULTICAST,
    PREFIX_BYTES,
    SERVICE,
    UP,
    Discovery,
    Interface,
    Overhearing,
    _Mdns,
    _unfit,
    cover,
    instance_of,
    member_of,
    prefix_of,
    require_zeroconf,
)

KEY, OTHER_KEY = b"k" * 32, b"o" * 32


def interface(name="eth0", *addresses, loopback=False, skipped=None):
    found = tuple(ip_interface(text) for text in addresses or ("192.168.1.11/24", "fd77::11/64"))
    return Interface(name=name, index=1, addresses=found, loopback=loopback, skipped=skipped)


LO = interface("lo", "127.0.0.1/8", "::1/128", loopback=True)


def announced(listen, *interfaces, named=()):
    found = cover(interfaces, listen, named)
    assert all((one.skipped is None) == bool(one.announced) for one in found)
    return {one.name: [str(address.ip) for address in one.announced] for one in found if one.skipped is None}


@pytest.mark.parametrize(
    ("listen", "expected"),
    [
        ("0.0.0.0", {"eth0": ["192.168.1.11"]}),
        ("::", {"eth0": ["fd77::11"]}),
        ("192.168.1.11", {"eth0": ["192.168.1.11"]}),
        ("192.168.1.12", {}),
        ("127.0.0.1", {"lo": ["127.0.0.1"]}),
        ("localhost", {"lo": ["127.0.0.1", "::1"]}),
    ],
)
def test_a_node_announces_the_addresses_at_which_it_listens(listen, expected, monkeypatch):
    answers = {"localhost": ["127.0.0.1", "::1"]}.get(listen, [listen])
    monkeypatch.setattr("socket.getaddrinfo", lambda *_, **__: [(0, 0, 0, "", (text, 0)) for text in answers])
    assert announced(listen, interface(), LO) == expected


def test_bridges_and_tunnels_are_left_out_unless_they_are_named():
    docker = interface("docker0", "172.17.0.1/16", skipped="a bridge")
    tunnel = interface("wg0", "10.8.0.2/32", skipped="a point-to-point link")
    assert set(announced("0.0.0.0", interface(), docker, tunnel)) == {"eth0"}
    assert set(announced("0.0.0.0", interface(), docker, tunnel, named=("wg0", "docker0"))) == {"wg0", "docker0"}


@pytest.mark.parametrize(
    ("flags", "carrier", "why"),
    [
        (UP | MULTICAST, "1\n", None),
        (UP | MULTICAST, "0\n", "no link: is the cable plugged in?"),
        (UP | MULTICAST, None, None),
        (UP | LOOPBACK, "0\n", None),
        (MULTICAST, "1\n", "down"),
        (UP, "1\n", "no multicast on it"),
    ],
)
def test_what_has_no_link_or_no_multicast_is_left_out(tmp_path, monkeypatch, flags, carrier, why):
    """A system that does not say whether there is a link is believed to have one."""
    monkeypatch.setattr("p2pfl.features.lan.interfaces.SYSTEM", tmp_path)
    if carrier is not None:
        (tmp_path / "eth0").mkdir()
        (tmp_path / "eth0" / "carrier").write_text(carrier)
    assert _unfit("eth0", flags) == why


def test_an_address_is_near_if_it_is_in_the_network_of_an_interface():
    assert interface().reaches("192.168.1.77")
    assert interface().reaches("fd77::77")
    assert not interface().reaches("192.168.2.77")
    assert not interface().reaches("127.0.0.1")


def test_a_name_tells_who_lists_the_member_which_one_it_is_and_nobody_else():
    prefix = prefix_of("ward", KEY)
    assert member_of(instance_of(prefix), {prefix}) == prefix
    assert member_of(instance_of(prefix), {prefix_of("ward", OTHER_KEY), prefix_of("other", KEY)}) is None
    assert instance_of(prefix) != instance_of(prefix)
    assert "ward" not in instance_of(prefix)
    assert len(prefix) == 2 * PREFIX_BYTES


def test_without_zeroconf_the_user_is_told_what_to_install(monkeypatch):
    monkeypatch.setattr("p2pfl.features.lan.discovery.find_spec", lambda _: None)
    with pytest.raises(UserError, match=r"pip install '\.\[lan\]'") as caught:
        require_zeroconf("ward/federation.toml")
    assert caught.value.key == "network.discovery"


class Told:
    """What one node, which listens on `host`, is told of the others."""

    def __init__(self, prefixes, host="127.0.0.1", **changes):
        self.hints = asyncio.Queue()
        self.members = prefixes
        self.interfaces = [interface("lo", "127.0.0.1/8", loopback=True)]
        known = {
            "interfaces": lambda: cover(self.interfaces, host),
            "members": lambda: self.members,
        }
        self.port, self.is_complete = changes.pop("port", 4000), False
        self.discovery = Discovery(links=self, **(known | changes))

    def hint(self, index, addresses):
        self.hints.put_nowait((index, addresses))

    async def hinted(self):
        return await asyncio.wait_for(self.hints.get(), 30)


@asynccontextmanager
async def two(monkeypatch, **changes):
    """Two that announce themselves on loopback, under names that no other test uses."""
    monkeypatch.setattr("p2pfl.features.lan.discovery.LOOK_S", 0.05)
    mine, yours = (secrets.token_hex(PREFIX_BYTES) for _ in range(2))
    a = Told({yours: 1}, prefix=mine)
    b = Told({mine: 0}, prefix=yours, port=5000, **changes)
    async with a.discovery, b.discovery:
        yield a, b


async def test_two_nodes_hear_where_the_other_listens(monkeypatch):
    pytest.importorskip("zeroconf")
    async with two(monkeypatch) as (a, b):
        assert await a.hinted() == (1, ["127.0.0.1:5000"])
        assert await b.hinted() == (0, ["127.0.0.1:4000"])


@pytest.mark.long
async def test_who_is_listed_later_is_found_although_it_was_heard_of_before(monkeypatch):
    pytest.importorskip("zeroconf")
    async with two(monkeypatch) as (a, b):
        await a.hinted()
        listed, b.members = b.members, {}
        while not b.hints.empty():
            b.hints.get_nowait()
        b.interfaces = [interface("lo", "127.0.0.2/8", "127.0.0.1/8", loopback=True)]
        await a.hinted()
        b.members = listed
        assert (await b.hinted())[0] == 0


@pytest.mark.long
async def test_a_change_of_interfaces_is_announced(monkeypatch):
    pytest.importorskip("zeroconf")
    async with two(monkeypatch, host="0.0.0.0") as (a, b):
        b.interfaces = [interface("eth9", "127.0.0.1/8")]
        assert await a.hinted() == (1, ["127.0.0.1:5000"])
        b.interfaces = [interface("eth9", "127.0.0.9/8", "127.0.0.1/8")]
        index, addresses = await a.hinted()
        assert (index, set(addresses)) == (1, {"127.0.0.1:5000", "127.0.0.9:5000"})


async def test_made_up_names_hold_up_no_true_one(monkeypatch):
    """What was announced whole is known at once; a name that is being asked for is not dropped for another one."""
    pytest.importorskip("zeroconf")
    answered, asked = asyncio.Event(), []

    class Info:
        def __init__(self, _service, name):
            self.name, self.port = name, 4000

        def load_from_cache(self, _zeroconf):
            return "whole" in self.name

        async def async_request(self, *_):
            asked.append(self.name)
            await answered.wait()
            return "true" in self.name

        def parsed_addresses(self):
            return [self.name]

    monkeypatch.setattr("zeroconf.asyncio.AsyncServiceInfo", Info)
    found = []
    mdns = _Mdns([], lambda _: "aa", lambda _, addresses, __: found.extend(addresses))
    for name in ("aa-true", *(f"aa-{number}" for number in range(100)), "aa-whole", "aa-true"):
        mdns._consider(None, name)
    assert found == ["aa-whole"]
    await asyncio.sleep(0)
    answered.set()
    await asyncio.gather(*mdns._resolving.values())
    assert found == ["aa-whole", "aa-true"]
    assert (len(asked), asked.count("aa-true")) == (MOST_LOOKUPS, 1)
    await asyncio.sleep(0)
    assert not mdns._resolving


async def test_what_is_on_no_network_of_ours_is_no_hint(monkeypatch):
    pytest.importorskip("zeroconf")
    async with two(monkeypatch, host="0.0.0.0") as (a, b):
        b.interfaces = [interface("eth9", "127.0.0.1/8", "198.51.100.7/24")]
        assert await a.hinted() == (1, ["127.0.0.1:5000"])


@pytest.mark.long
async def test_of_two_that_want_one_name_both_are_found(monkeypatch):
    """Two processes with one key, or somebody who takes the names that he hears."""
    pytest.importorskip("zeroconf")
    monkeypatch.setattr("p2pfl.features.lan.discovery.LOOK_S", 0.05)
    prefix = secrets.token_hex(PREFIX_BYTES)
    endings = iter(["00000000", "00000000", "00000001"])
    wanted = {prefix: lambda: f"{prefix}-{next(endings)}.{SERVICE}"}
    monkeypatch.setattr(
        "p2pfl.features.lan.discovery.instance_of", lambda one: wanted.get(one, lambda: instance_of(one))()
    )
    first = Told({}, prefix=prefix)
    second = Told({}, prefix=prefix, port=5000)
    third = Told({prefix: 1}, prefix=secrets.token_hex(PREFIX_BYTES))
    async with third.discovery, first.discovery:
        assert await third.hinted() == (1, ["127.0.0.1:4000"])
        async with second.discovery:
            while (await third.hinted()) != (1, ["127.0.0.1:5000"]):
                pass
    assert next(endings, None) is None


async def test_whoever_listens_beside_it_hears_what_a_node_announces(monkeypatch):
    """As the doctor does, while a node runs on the same machine."""
    pytest.importorskip("zeroconf")
    async with two(monkeypatch) as (a, _):
        await a.hinted()
        beside = Overhearing(a.interfaces, {f"127.0.0.{number}" for number in range(10)})  # other tests too, at once
        await beside.run(1.0)
    (tally,) = beside.tallies
    assert (tally.sent > 0, tally.heard_own > 0, tally.heard_others) == (True, True, 0)
    assert {one.port for one in beside.announced.values()} >= {4000, 5000}


@pytest.mark.parametrize(
    ("found", "said"),
    [
        ([interface("docker0", skipped="a bridge")], "discovery: no interface to announce on: docker0 (a bridge)"),
        (OSError("not allowed"), "discovery: the network interfaces cannot be listed: not allowed"),
    ],
)
async def test_a_node_without_an_interface_says_so_once_and_goes_on(monkeypatch, caplog, found, said):
    pytest.importorskip("zeroconf")
    monkeypatch.setattr("p2pfl.features.lan.discovery.LOOK_S", 0.01)
    looks = asyncio.Semaphore(0)
    loop = asyncio.get_running_loop()

    def look():
        loop.call_soon_threadsafe(looks.release)
        if isinstance(found, OSError):
            raise found
        return cover(found, "127.0.0.1")

    async with Told({}, prefix="aa", interfaces=look).discovery:
        for _ in range(5):
            await asyncio.wait_for(looks.acquire(), 30)
    assert [record.message for record in caplog.records if record.name == "p2pfl.net"] == [said]


@pytest.mark.long
def test_zeroconf_is_imported_only_where_it_is_used():
    look = "import sys, p2pfl.fleet.process; print('zeroconf' in sys.modules, 'ifaddr' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", look], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "False"]
