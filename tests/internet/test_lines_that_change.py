"""A way that opens while nodes learn, and a site at the end of a slow and lossy line. Nothing is lost."""

from __future__ import annotations

import pytest
from lan_in_a_box import SlowLine
from relays import Relay
from ward import ENDLESS, PORT, STATUS, Ward, accuracies

pytestmark = [pytest.mark.long, pytest.mark.timeout(900)]

SLOW = SlowLine(delay_s=0.15, loss=0.02)
KBIT_PER_S = 500


def machines_of(net, line=None):
    """A clinic and a lab, each behind a router, and a university with a public address and a firewall."""
    lab = net.site("labsite", line=line)
    machines = {"clinic": net.site("clinicsite").host("clinic"), "lab": lab.host("lab"), "uni": net.host("uni")}
    net.give_name("uni.example.org", machines["uni"])
    return machines


def federation(folder, net, machines, **settings):
    relay = Relay(net, folder / "relay", "relay")
    ward = Ward(
        folder / "ward",
        machines,
        *("--topology", "ring", "--relay", relay.url),
        places={"uni": f"uni.example.org:{PORT}"},
        own={"uni": STATUS + f'listen = "0.0.0.0:{PORT}"\n'},
        **settings,
    )
    relay.serve(ward.ward)
    return ward, relay


def ways(ward):
    return {name: ward.ways(name) for name in ward.machines}


def ways_when_uni_is_open(relay):
    direct = {"uni": "direct"}
    return {
        "clinic": {"lab": relay.url} | direct,
        "lab": {"clinic": relay.url} | direct,
        "uni": {"clinic": "direct", "lab": "direct"},
    }


def test_an_edge_moves_to_its_direct_way_when_a_firewall_opens_and_loses_no_exchange(net, tmp_path):
    machines = machines_of(net)
    net.close_ports(machines["uni"])
    ward, relay = federation(tmp_path, net, machines, rounds=ENDLESS, pause_s=0.3)
    ward.start_all()
    by = {name: {other: relay.url for other in machines if other != name} for name in machines}
    ward.until(lambda: ways(ward) == by, "all edges by the relay")
    ward.until_they_went_on()
    net.open_ports(machines["uni"])
    by = ways_when_uni_is_open(relay)
    ward.until(lambda: ways(ward) == by, "two edges by their direct ways")
    ward.until_they_went_on()
    ward.end_soon(net.host("desk"))
    results = ward.finish()
    ward.require_nothing_lost()
    assert ward.resyncs(results) == 0
    assert all(one["faults"] == {} for result in results.values() for one in result["neighbors"])


def test_a_slow_and_lossy_site_keeps_its_sessions(net, tmp_path):
    """Each body is 154 kB, so it takes 2.5 s at this rate alone; the site has two neighbors."""
    machines = machines_of(net, SLOW)
    router = net.sites["labsite"].router
    router.slow(KBIT_PER_S, both=True)
    ward, relay = federation(tmp_path, net, machines, rounds=ENDLESS, pause_s=0.5, hidden=512, compressor="none")
    ward.start_all()
    by = ways_when_uni_is_open(relay)
    ward.until(lambda: ways(ward) == by, "all edges by their ways")
    then, exchanges = {name: len(ward.log(name)) for name in machines}, ward.exchanges("lab")
    ward.until(lambda: ward.exchanges("lab") >= exchanges + 12, "twelve exchanges of the lab")
    since = "".join(ward.log(name)[then[name] :] for name in machines)
    assert "session with" not in since
    ward.end_soon(net.host("desk"))
    results = ward.finish()
    ward.require_nothing_lost()
    assert ward.resyncs(results) == 0
    sent = router.run("cat", "/sys/class/net/eth0/statistics/tx_bytes").stdout
    times = {name: (one["wall_time_s"], one["accuracy"], one["exchanges"]) for name, one in results.items()}
    print(f"{int(sent):,} bytes from the slow site", times)  # noqa: T201 - for the docs
    assert min(accuracies(results)) > 0.9
