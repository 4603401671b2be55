"""Which of several relays an edge uses, and a node that stops while one dies."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

import pytest
from memory_kit import MemoryNetwork
from relay_kit import RelayHere, nobody, parts, until

from p2pfl.features.relay.link import RelayLink
from p2pfl.features.relay.transport import ByRelayTransport


async def test_the_relay_that_is_nearest_comes_first_unless_it_has_spoiled_a_line_or_is_away():
    near, far, away = (
        SimpleNamespace(url=f"ws://{name}/p2pfl", round_trip_s=trip_s, is_registered=name != "away", doubts=lambda _: 0)
        for name, trip_s in (("near", 0.001), ("far", 0.1), ("away", 0.0))
    )
    transport = ByRelayTransport(SimpleNamespace(), [far, away, near])
    assert [way.relay for way in transport.relay_paths(b"k" * 32)] == [near.url, far.url, away.url]
    near.doubts = lambda _: 1
    assert transport.relay_paths(b"k" * 32)[0].relay == far.url


@pytest.mark.parametrize("steps", range(6))
async def test_a_node_that_stops_in_the_moment_when_a_relay_dies_stops(federation, steps):
    network = MemoryNetwork()
    async with RelayHere(network) as relay:
        link = RelayLink(relay.url, parts(network, federation.identities[0]))
        keeping = asyncio.create_task(link.keep(nobody))
        await until(lambda: link.is_registered)
        await relay.lines[0].close(0.1)
        for _ in range(steps):
            await asyncio.sleep(0)
        keeping.cancel()
        await asyncio.wait({keeping}, timeout=0.5)
        assert keeping.done()
