"""The doctor tries each way to each neighbor, also through relays, and disturbs no node that runs."""

from __future__ import annotations

import asyncio
import logging
import sys
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest
from msgspec import structs
from relay_kit import QUICK, nothing_listed, until

from p2pfl.cli.main import main
from p2pfl.config.charter import realm_of
from p2pfl.config.load import load_config, load_node
from p2pfl.crypto.identity import Identity
from p2pfl.crypto.session import Initiator
from p2pfl.features.lan.command import _print_ways
from p2pfl.features.lan.doctor import examine
from p2pfl.features.lan.probe import AnswerKind
from p2pfl.features.relay.frames import VERSION, Challenge, Refusal
from p2pfl.features.relay.server import Admissions, ListedFederation, RefusedError, RelayServer
from p2pfl.features.relay.switchboard import Switchboard
from p2pfl.features.relay.tickets import Sheets, register
from p2pfl.features.relay.transport import through_relays
from p2pfl.net.address import Address, parse_address
from p2pfl.net.greeting import MEASURE, MOST_MEASURE_BYTES
from p2pfl.net.limits import Limits
from p2pfl.net.transport import GoneError
from p2pfl.net.websocket import WebSocketTransport, dial_websocket, open_browserless, transport_of, visitors_binding


@asynccontextmanager
async def relay_for(federation):
    """Yields a relay over real sockets that lists the federation, and its port."""
    transport = WebSocketTransport(Limits(), nothing_listed(), logging.getLogger("tests"))
    transport.expect(8)
    listed = ListedFederation(name=federation.name, realm=realm_of(federation), admin=federation.admin)
    server = RelayServer(Admissions([listed]), Switchboard(), nothing_listed())
    await transport.open(Address("127.0.0.1", 0), server.meet)
    running = asyncio.create_task(server.run())
    try:
        yield transport.port, server
    finally:
        running.cancel()
        await transport.close()


@pytest.fixture
def ward(tmp_path, monkeypatch, capsys):
    """A federation of clinic and lab, which meet at a relay."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit):
        main(["new", "ward", "--nodes", "clinic,lab", "--task", "digits", "--admin", "--relay", "ws://relay:1"])
    capsys.readouterr()

    def ward(*urls):
        federation = replace(load_config("ward"), relays=urls)
        nodes = [replace(load_node(f"ward/{name}", federation), relays=urls) for name in ("clinic", "lab")]
        return federation, *nodes

    return ward


@asynccontextmanager
async def running(federation, nodes):
    """The nodes' sessions; they are at no address that others know."""
    kit = nodes_kit(federation, nodes)
    made = [
        kit.new(
            index,
            limits=QUICK,
            neighbors=frozenset({1 - index}),
            binding=visitors_binding(federation),
            transport=through_relays(federation, node, kit.identities[index], transport_of(node)),
        )
        for index, node in enumerate(nodes)
    ]
    async with made[0].links, made[1].links:
        await made[0].until(lambda: made[0].open and made[1].open)
        yield made


def nodes_kit(federation, nodes):
    kit = sys.modules["nodes_of_tests_net"].Federation()
    kit.identities[:2] = [Identity.load(node.key_file) for node in nodes]
    kit.members = {identity.public: index for index, identity in enumerate(kit.identities)}
    return kit


def lab_of(diagnosis):
    return next(patient for patient in diagnosis.patients if patient.member.name == "lab")


@pytest.mark.parametrize("who", ["the node that runs", "an admin elsewhere"])
async def test_a_neighbor_is_met_at_a_relay_with_figures_and_no_seat_is_lost(ward, who, capsys):
    federation, *_ = ward()
    async with relay_for(federation) as (port, server):
        url, gone = f"ws://127.0.0.1:{port}/p2pfl", "ws://127.0.0.1:1/p2pfl"
        federation, *nodes = ward(url, gone)
        async with running(federation, nodes) as made:
            seats = dict(server.board.tenant("ward").seats)
            found = await examine(federation, nodes[0] if who == "the node that runs" else None, 1.0)
            assert server.board.tenant("ward").seats == seats
            await until(lambda: not server.board.tenant("ward").visitors)
            assert all(node.open and node.kinds() == ["open"] and not node.alarms for node in made)
    here, there = lab_of(found).places
    assert (there.address, there.answer.kind) == (gone, AnswerKind.REFUSED)
    assert (here.address, here.way, here.answer.kind) == (url, "relay", AnswerKind.MEMBER)
    assert here.answer.round_trip_s > 0
    assert here.answer.throughput > 100_000
    said = [problem.text for problem in found.problems]
    assert said == [f"the relay {gone}: nothing listens on that port"]
    _print_ways(found)
    assert " Mbit/s" in capsys.readouterr().out


async def test_who_is_not_there_and_a_relay_that_lists_another_federation_are_said(ward):
    federation, clinic, _ = ward()
    async with relay_for(federation) as (port, _), relay_for(replace(federation, name="other", seed=1)) as (other, _):
        federation, clinic, _ = ward(f"ws://127.0.0.1:{port}/p2pfl", f"ws://127.0.0.1:{other}/p2pfl")
        found = await examine(federation, clinic, 1.0)
    away, closed = lab_of(found).places
    assert (away.answer.kind, away.answer.detail) == (AnswerKind.AWAY, "it is not registered there")
    assert closed.answer.kind is AnswerKind.CLOSED
    assert "does not list this federation" in closed.answer.detail
    (unreached,) = [problem.text for problem in found.problems if problem.text.startswith("lab is not reached")]
    assert "it is not registered there" in unreached


async def test_without_a_key_here_or_a_ticket_the_doctor_says_what_is_missing(ward, tmp_path):
    federation, clinic, _ = ward("ws://127.0.0.1:1/p2pfl")
    (tmp_path / "ward/admin.key").unlink()
    found = await examine(federation, None, 1.0)
    assert "neither the key of one node nor an admin key is here" in found.problems[0].text
    (tmp_path / "ward/tickets.toml").unlink()
    found = await examine(federation, clinic, 1.0)
    assert "no ticket for clinic" in found.problems[0].text


async def test_a_relay_that_knows_no_visits_refuses_one_and_leaves_the_seat_of_the_node(ward):
    federation, clinic, _ = ward()
    identity = Identity.load(clinic.key_file)
    ticket = Sheets(federation, clinic.state_dir).ticket(identity.public).packed()
    challenge = Challenge(version=VERSION, nonce=b"n" * 32, clock_s=1)
    listed = ListedFederation(name="ward", realm=realm_of(federation), admin=federation.admin)
    visit = register(identity, challenge, relay="r", ticket=ticket, visiting=True)
    assert Admissions([listed]).admit(visit, b"n" * 32, 1.0)[0] == listed
    with pytest.raises(RefusedError) as refused:
        Admissions([listed]).admit(structs.replace(visit, visiting=False), b"n" * 32, 1.0)
    assert refused.value.reason is Refusal.FORGED


async def test_nobody_may_measure_more_than_it_takes(federation):
    async with federation.node(0) as node, open_browserless() as http:
        line = await dial_websocket(http, parse_address(node.address(), "address"))
        greeter = node.links._greeter
        initiator = Initiator(Identity.generate(), federation.identities[0].public, greeter.binding)
        await line.send(initiator.first())
        await line.receive()
        await line.send(MEASURE + bytes(MOST_MEASURE_BYTES // 2))
        assert (await line.receive()).startswith(MEASURE)
        await line.send(MEASURE + bytes(MOST_MEASURE_BYTES // 2))
        with pytest.raises(GoneError):
            await line.receive()
        assert not node.alarms
