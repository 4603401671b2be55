"""A node left alone asks members at relays."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from types import SimpleNamespace

from charter_kit import ADMIN, added, after, first, key_of, ward
from memory_kit import MemoryNetwork
from relay_kit import QUICK, RelayHere, parts, until

from p2pfl.config import realm_of
from p2pfl.features.members import ask_when_alone
from p2pfl.features.relay import ByRelayTransport, ListedFederation, RelayLink, Ticket, register
from p2pfl.net import Relayed, control_binding

WARD = ward(3)
THREE = after(WARD, first(WARD))
FOUR = added(THREE, 9)
LISTED = ListedFederation(name="ward", realm=realm_of(WARD), admin=WARD.admin)


class Charters:
    """A member that has the charter with the newcomer."""

    version, packed = 2, FOUR.packed()

    def bring(self, raw):
        raise AssertionError

    def left_behind(self, version, peer):
        raise AssertionError

    def may_ask(self, public):
        return public == key_of(9).public


def transport_at(relay, network, identity):
    ticket = Ticket.sign(ADMIN, realm=realm_of(WARD), key=identity.public, until=2**33).packed()
    answer = lambda name, challenge: register(identity, challenge, relay=name, ticket=ticket)  # noqa: E731

    def make(limits, refusals, log):
        own = replace(parts(network, identity, limits=limits), answer=answer)
        return ByRelayTransport(MemoryNetwork().transport(limits, refusals, log), [RelayLink(relay.url, own)])

    return make


def member_of(federation, relay, network):
    """The member pi0, which is nowhere but at the relay."""
    federation.identities[0] = key_of(0)
    return federation.new(
        0,
        limits=QUICK,
        charters=Charters(),
        members={key_of(index).public: index for index in range(3)},
        neighbors=frozenset({1}),
        binding=control_binding(WARD),
        transport=transport_at(relay, network, key_of(0)),
    )


async def test_a_node_whose_neighbors_were_all_replaced_asks_others_at_relays(federation):
    network = MemoryNetwork()
    got = asyncio.Event()
    members = tuple(replace(one, address=None) for one in THREE.members)
    lonely = replace(THREE, members=members, edges=((1, 2),))
    keeper = SimpleNamespace(federation=lonely, version=1, offer=lambda _: got.set())
    async with RelayHere(network, listed=[LISTED]) as relay:
        member = member_of(federation, relay, network)
        transport = transport_at(relay, network, key_of(1))(QUICK, None, member.links._shared.log)
        link = transport.relays[0]
        keeping = asyncio.create_task(link.keep(lambda *_: None))

        async def through(url, key):
            return await link.dial(Relayed(url, key).key)

        async with member.links:
            await until(lambda: link.is_registered)
            asking = asyncio.create_task(
                ask_when_alone(keeper, key_of(1), lambda: True, alone_s=0.02, relays=[relay.url], through=through)
            )
            await asyncio.wait_for(got.wait(), 10)
            for task in (asking, keeping):
                task.cancel()
