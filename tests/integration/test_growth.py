"""Nothing that a node keeps grows with time, or with what neighbors and strangers send, but what a limit bounds."""

from __future__ import annotations

import asyncio
import gc
import logging
import random
import sys
from collections import Counter, OrderedDict, deque
from collections.abc import Iterator
from contextlib import suppress
from functools import _lru_cache_wrapper, partial
from itertools import pairwise
from typing import Any

import msgspec
import pytest

import p2pfl.net.limits
from p2pfl import limits
from p2pfl.core import Reply, Request
from p2pfl.crypto.identity import Identity
from p2pfl.net import OneShotClient, UnreachableError
from p2pfl.reporting import MOST_WORDS

CONTAINERS = (dict, list, set, frozenset, tuple, deque, bytearray, OrderedDict)
NODES, MEMBERS = 3, 4
BOUNDED = {
    "p2pfl.core.members.Copies._first_at": NODES * (MEMBERS - 1) * limits.MOST_PROCESSES,
    "p2pfl.engine.state.NodeState.lifetimes[]": 2 * MEMBERS * MEMBERS,
    "p2pfl.features.status.overview.Curves.times": NODES * limits.MOST_POINTS,
    "p2pfl.net.greeting.Greeter._openings": NODES * limits.MOST_OPENINGS,
    "p2pfl.net.limits.GroupQuotas._groups": NODES * limits.MOST_GROUPS,
    "objects of p2pfl.net.limits.TimeBudget": NODES * limits.MOST_GROUPS,
    "p2pfl.node.status.Feed.events": NODES * limits.MOST_EVENTS,
    "p2pfl.node.status.Presence._lines": NODES * MEMBERS,
    "p2pfl.reporting.vitals.Vitals.standing": 2 * NODES * MEMBERS * MOST_WORDS,
    "p2pfl.storage.disk.Wal._buffer": NODES << 20,
}
"""The most entries of places that grow until a limit."""


def places() -> Counter[str]:
    """Return the sizes of all containers that objects and modules of p2pfl hold, and the numbers of these objects.

    They are summed by place, such as `p2pfl.net.limits.GroupQuotas._groups`; with `[]`, what is in containers there.
    """
    gc.collect()
    sizes, seen = Counter[str](), set[tuple[str, int]]()
    for owned in held():
        todo = [owned]
        while todo:
            place, value = todo.pop()
            if isinstance(value, _lru_cache_wrapper):
                sizes[place] += value.cache_info().currsize if value.cache_info().maxsize is None else 0
            elif isinstance(value, CONTAINERS) and (place, id(value)) not in seen and not place.endswith(5 * "[]"):
                seen.add((place, id(value)))
                sizes[place] += len(value)
                parts = value.values() if isinstance(value, dict) else () if isinstance(value, bytearray) else value
                todo += [(f"{place}[]", part) for part in [*parts]]
    sizes.update(f"objects of {type(each).__module__}.{type(each).__qualname__}" for each in ours())
    sizes["tasks"] = len(asyncio.all_tasks())
    return sizes


def ours() -> list[Any]:
    return [each for each in gc.get_objects() if str(type(each).__module__).startswith("p2pfl.")]


def held() -> Iterator[tuple[str, Any]]:
    """Yield what attributes of our objects, and names in our modules, hold."""
    for owner in ours():
        kind = type(owner)
        slots = (slot for base in kind.__mro__ for slot in vars(base).get("__slots__", ()))
        attributes = {slot: getattr(owner, slot, None) for slot in slots} | getattr(owner, "__dict__", {})
        for name, value in attributes.items():
            yield f"{kind.__module__}.{kind.__qualname__}.{name}", value
    for module in [*sys.modules.values()]:
        if module.__name__.startswith("p2pfl."):
            for name, value in [*vars(module).items()]:
                if not name.startswith("__"):
                    yield f"{module.__name__}.{name}", value


def growth(*looks: Counter[str]) -> list[str]:
    """Name the places that have grown from look to look, by more than four in all: snapshots and tasks come and go."""
    return [
        f"{place}: {', '.join(str(look[place]) for look in looks)}"
        for place in sorted(looks[-1])
        if all(later[place] > earlier[place] for earlier, later in pairwise(looks))
        and looks[-1][place] > max(looks[0][place] + 4, BOUNDED.get(place, 0))
    ]


def lie(links: Any) -> None:
    """Make a node send models of NaN, each of them twice."""
    send = links.send

    def send_lies(peer: int, session: int, message: Any) -> None:
        if isinstance(message, Request | Reply):
            message = msgspec.structs.replace(message, body=b"\xff" * len(memoryview(message.body).cast("B")))
        send(peer, session, message)
        send(peer, session, message)

    links.send = send_lies


async def strangers(node: Any, number: int) -> None:
    """Noise from four new addresses, and a charter by a key that no member has."""
    for host in range(4):
        _, writer = await asyncio.open_connection("127.0.0.1", node.port, local_addr=(f"127.1.{number}.{host + 1}", 0))
        writer.write(random.Random(number).choice([b"GET / HTTP/1.1\r\n\r\n", b"\x16\x03\x01", bytes(300)]))
        await asyncio.sleep(0.01)
        writer.transport.abort()
    client = OneShotClient.of(node.setup.federation, Identity.generate())
    with suppress(UnreachableError):
        await client.bring(f"127.0.0.1:{node.port}", node.setup.member.key, random.Random(number).randbytes(500))


@pytest.mark.slow
@pytest.mark.timeout(300)
async def test_nothing_grows_in_a_node_whose_neighbors_come_and_go_and_lie(ward, start, request):
    logging.disable()  # pytest keeps what is logged, and what that holds
    request.addfinalizer(partial(logging.disable, logging.NOTSET))
    field = ward(4, training={"rounds": 10**6}, task={"step_s": 0.005}, federation={"topology": "complete"})
    node, _, liar = start(field, 0, 1, 3)
    node.port = field.ports[0]
    await liar.until(lambda: liar.rounds)
    lie(liar.application.driver.links)

    async def cycles(numbers: range) -> Counter[str]:
        for number in numbers:
            guest = type(node)(field, 2)  # the fixture would keep it
            await guest.until(lambda guest=guest: guest.rounds >= 2)
            await node.until(lambda number=number: node.rounds >= 8 * (number + 1))
            await strangers(node, number)
            await (guest.break_off() if number % 2 else guest.stop())
            del guest
        return places()

    looks = [await cycles(range(first, first + 3)) for first in (0, 3, 6)]
    while growth(*looks) and len(looks) < 6:  # what comes and goes may by chance be more each time, but not for long
        looks.append(await cycles(range(3 * len(looks), 3 * len(looks) + 3)))
    assert "quarantine" in node.status.alarms
    assert growth(*looks) == []


async def test_a_container_that_grows_is_named(monkeypatch):
    monkeypatch.setattr(p2pfl.net.limits, "planted", {"here": [0]}, raising=False)
    quota = p2pfl.net.limits.CpuQuota()
    looks = [places()]
    for number in range(2):
        p2pfl.net.limits.planted["here"] += range(20)
        for host in range(20):
            quota.know(f"127.0.{number}.{host}")
        looks.append(places())
    grown = [line.partition(":")[0] for line in growth(*looks)]
    assert grown == ["p2pfl.net.limits.CpuQuota._known_groups", "p2pfl.net.limits.planted[]"]
