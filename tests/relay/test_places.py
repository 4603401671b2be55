"""Which addresses are told and tried, and how many."""

from __future__ import annotations

from ipaddress import ip_address

import pytest

from p2pfl.features.relay import feature
from p2pfl.features.relay.feature import (
    AN_HOUR,
    MOST_PLACES,
    TRIED_S,
    PlacesTold,
    TriedPlaces,
    addresses_in,
    answers,
    is_plausible,
    own_hosts,
    places_of,
)

LIES = [
    "127.0.0.1",
    "127.1.2.3",
    "0.0.0.0",
    "0.1.2.3",
    "224.0.0.251",
    "255.255.255.255",
    "240.0.0.1",
    "169.254.169.254",
    "::1",
    "::",
    "::ffff:127.0.0.1",
    "::127.0.0.1",
    "64:ff9b::7f00:1",
    "2002:7f00:1::1",
    "2001:0:7f00:1::1",
    "fe80::1",
    "fe80::1%eth0",
    "fec0::1",
    "ff02::fb",
    "4000::1",
]


@pytest.mark.parametrize(
    "host", ["10.0.0.7", "172.16.3.4", "192.168.1.20", "100.64.0.1", "8.8.8.8", "2a00::1", "fd77::1"]
)
def test_addresses_of_private_networks_and_of_the_internet_are_told_and_tried(host):
    told = PlacesTold(places=places_of([(host, 8470)]))
    assert addresses_in(told) == [f"[{host}]:8470" if ":" in host else f"{host}:8470"]


@pytest.mark.parametrize("host", LIES)
def test_no_other_address_is_told_or_tried(host):
    assert places_of([(host, 8470)]) == ()
    packed = ip_address(host.partition("%")[0]).packed
    assert addresses_in(PlacesTold(places=((packed, 8470),))) == []


@pytest.mark.parametrize("text", ["", "localhost", "relay", "10.0.0", "10.0.0.7:80", "unknown, 10.0.0.7", "1" * 64])
def test_what_a_relay_says_is_an_address_or_nothing(text):
    assert not is_plausible(text)


def test_ports_of_other_services_and_addresses_of_no_length_are_not_tried():
    four = bytes([10, 0, 0, 7])
    places = (*((four, port) for port in (22, 80, 443, 1023, 1024)), (bytes(5), 8470), (bytes(8), 8470))
    assert addresses_in(PlacesTold(places=places)) == ["10.0.0.7:443", "10.0.0.7:1024"]


def test_eight_places_are_told_each_once():
    hosts = [(f"10.0.0.{number % 20}", 8470) for number in range(40)]
    assert len(places_of(hosts)) == MOST_PLACES


def test_a_neighbor_that_tells_thousands_gets_sixteen_tried_at_once_and_sixteen_an_hour_after_that():
    allowance, tried, now = TriedPlaces(), [], 0.0
    for number in range(3600):
        allowance.expire(now)
        tried += allowance.take([f"10.0.{number >> 8}.{number & 255}:8470"], now)
        assert len(allowance.tried_until) < AN_HOUR + 2
        now += 1.0
    assert AN_HOUR < len(tried) <= 2 * AN_HOUR


def test_a_place_is_tried_for_five_minutes_however_often_it_is_told():
    allowance = TriedPlaces()
    assert allowance.take(["10.0.0.7:8470"], 0.0) == ["10.0.0.7:8470"]
    assert allowance.take(["10.0.0.7:8470"], TRIED_S - 1.0) == []
    assert allowance.expire(TRIED_S - 1.0) == []
    assert allowance.expire(TRIED_S) == ["10.0.0.7:8470"]
    assert allowance.tried_until == {}


@pytest.mark.parametrize("error", [ModuleNotFoundError("ifaddr"), OSError("not allowed")])
def test_where_interfaces_cannot_be_listed_the_addresses_of_outgoing_lines_are_told(monkeypatch, error):
    def refuse():
        raise error

    monkeypatch.setattr(feature, "all_interfaces", refuse)
    assert own_hosts("0.0.0.0", (), ["10.0.0.7", None, "fd77::1"]) == ["10.0.0.7"]
    assert own_hosts("127.0.0.1", (), ["10.0.0.7"]) == []


@pytest.mark.parametrize(
    ("host", "listen", "answered"),
    [
        ("198.51.100.9", "0.0.0.0", True),
        ("198.51.100.9", "10.0.0.7", True),
        ("198.51.100.9", "127.0.0.1", False),
        ("198.51.100.9", "::", False),
        ("2a00::1", "::", True),
        ("2a00::1", "0.0.0.0", False),
        ("198.51.100.9", "no-such-name.invalid", False),
        ("a relay's joke", "0.0.0.0", False),
    ],
)
def test_an_address_that_a_relay_sees_is_told_if_the_node_listens_in_its_family(host, listen, answered):
    assert answers(host, listen) == answered
