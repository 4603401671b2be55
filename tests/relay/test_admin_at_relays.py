"""An admin reaches nodes that open no port, to hand them a charter: it signs a ticket for itself."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace
from types import SimpleNamespace

import pytest
from memory_kit import MemoryNetwork
from relay_kit import TOKEN, nothing_listed, parts

from p2pfl.config import realm_named
from p2pfl.crypto.identity import Identity
from p2pfl.features.relay import (
    Admissions,
    ByRelayTransport,
    ListedFederation,
    RelayDialing,
    RelayLink,
    RelayServer,
    Switchboard,
    Ticket,
    answer_of_admin,
    dialing_through,
    register,
)
from p2pfl.net import Address, Limits, OneShotClient, UnreachableError, WebSocketTransport

ADMIN = Identity(b"a" * 32)
REALM = realm_named("ward", 7)
WARD = SimpleNamespace(name="ward", seed=7)
LISTED = ListedFederation(name="ward", realm=REALM, admin=(ADMIN.public,), token=TOKEN)


class Charters:
    """The version of a charter is its length."""

    version, packed = 0, b""

    def bring(self, raw):
        self.version = len(raw)

    def left_behind(self, version, peer):
        pass

    def may_ask(self, public):
        return public == ADMIN.public


async def test_an_admin_hands_a_charter_to_a_node_without_an_address(federation):
    transport = WebSocketTransport(Limits(), nothing_listed(), logging.getLogger("tests.relay"))
    server = RelayServer(Admissions([LISTED]), Switchboard(), nothing_listed())
    await transport.open(Address("127.0.0.1", 0), server.meet)
    running, dialing = asyncio.create_task(server.run()), RelayDialing()
    url, identity = f"ws://127.0.0.1:{transport.port}/p2pfl", federation.identities[0]
    ticket = Ticket.sign(ADMIN, realm=REALM, key=identity.public, until=2**40).packed()

    def made(limits, refusals, log):
        answer = lambda name, challenge: register(identity, challenge, relay=name, ticket=ticket)  # noqa: E731
        own = replace(parts(MemoryNetwork(), identity), dial=dialing.dial, answer=answer)
        return ByRelayTransport(
            MemoryNetwork().transport(limits, refusals, log), [RelayLink(url, own)], at_end=dialing.close
        )

    charters = Charters()
    node = federation.new(0, transport=made, charters=charters, neighbors=frozenset({1}))
    binding = node.links._greeter.binding
    async with node.links:
        await node.until(lambda: node.links.transport.relays[0].is_registered)
        async with dialing_through(answer_of_admin(WARD, ADMIN)) as through:
            errand = OneShotClient(identity=ADMIN, binding=binding, through=through, relays=frozenset({url}))
            assert await errand.bring(url, identity.public, bytes(100_000)) == 100_000
            with pytest.raises(UnreachableError, match="not registered there"):
                await errand.bring(url, federation.identities[1].public, bytes(9))
        with pytest.raises(UnreachableError, match="no way through relays"):
            await OneShotClient(identity=ADMIN, binding=binding, relays=frozenset({url})).bring(
                url, identity.public, bytes(9)
            )
    assert charters.version == 100_000
    running.cancel()
    await transport.close()
