"""A line that takes longer for a body than any connection lives: two nodes meet only at a relay that lets so many bytes
a second pass.
"""

from __future__ import annotations

import asyncio
import socket
from contextlib import asynccontextmanager, suppress

import pytest
from ports import free_ports

SIZE = 200_000
"""values of a model: 800 kB, so that a body takes 1.6 s at 500 kB/s, and the core repeats it after one."""
ROUND_S = 0.05
PATIENCE_S = 120.0
LATE_S = 0.25
"""so much that a busy machine has let the relay lose is made up for; a line at rest saves no more for a body than that,
which then still takes longer than a second."""


def small_socket() -> socket.socket:
    """What the kernel took in would not be slow."""
    plain = socket.socket()
    plain.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 16384)
    plain.settimeout(0)
    return plain


async def pump(source, sink, rate):
    clock = asyncio.get_running_loop().time
    free_at = clock()
    with suppress(OSError):
        while data := await source.read(8192):
            sink.write(data)
            await sink.drain()
            if rate is not None:
                free_at = max(free_at, clock() - LATE_S) + len(data) / rate
                await asyncio.sleep(free_at - clock())
    sink.transport.abort()


@asynccontextmanager
async def relay(port, target, rate, cut_s=None):
    """From `port` to `target`, `rate` bytes a second each way; every connection is cut after `cut_s`."""

    async def accept(reader, writer):
        far = small_socket()
        try:
            await asyncio.get_running_loop().sock_connect(far, ("127.0.0.1", target))
        except OSError:
            far.close()
            writer.transport.abort()
            return
        far_reader, far_writer = await asyncio.open_connection(sock=far, limit=8192)
        both = [
            asyncio.create_task(pump(reader, far_writer, rate)),
            asyncio.create_task(pump(far_reader, writer, rate)),
        ]
        await asyncio.wait(both, timeout=cut_s)
        for task in both:
            task.cancel()
        writer.transport.abort()
        far_writer.transport.abort()

    near = small_socket()
    near.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    near.bind(("127.0.0.1", port))
    server = await asyncio.start_server(accept, sock=near, limit=8192)
    try:
        yield
    finally:
        server.close()


def exchanges(node, peer):
    return node.application.driver.core.edges[peer].service.exchanges


@pytest.mark.long
async def test_bodies_longer_than_the_life_of_any_connection_arrive_and_are_applied_once(ward, start):
    """Each takes 1.6 s or more, each way, and the line is cut every 1.2 s."""
    training = {"rounds": 100_000, "local_steps": 1}
    place = ward(2, task={"size": SIZE, "step_s": ROUND_S}, training=training, federation={"topology": "path"})
    hidden = free_ports(2)
    for index, port in enumerate(hidden):
        place.write_node(f"node{index}", listen=f"127.0.0.1:{port}")
    async with relay(place.ports[0], hidden[0], 500_000.0, cut_s=1.2):
        nodes = start(place)
        try:
            await nodes[0].until(lambda: nodes[0].rounds and exchanges(nodes[0], 1) >= 2, PATIENCE_S)
            lower, upper = (node.application.driver.core.edges[1 - index] for index, node in enumerate(nodes))
            asked, answered = lower.exchange.record, upper.exchange.record
            assert (asked.incarnation, answered.incarnation) == (0, 0), "no edge began anew"
            assert asked.chain == (answered.chain if asked.seq == answered.seq else answered.chain_before)
            assert asked.seq >= 2
            for index, node in enumerate(nodes):
                traffic = node.application.driver.links.counters.peers[1 - index]
                assert traffic.faults == 0
                assert traffic.sessions >= 4
        finally:
            for node in nodes:
                await node.break_off()
