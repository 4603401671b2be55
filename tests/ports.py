"""Ports for nodes in other processes, which cannot be held for them until they take them."""

from __future__ import annotations

import contextlib
import os
import random
import socket
from collections.abc import Mapping

FIRST, LAST = 10_000, 15_000
"""Below those that the system gives to outgoing connections, and below those that `p2pfl demo` takes."""


def own_ports(environment: Mapping[str, str] = os.environ) -> range:
    """Those of this process among the processes of one run of the tests.

    Between the look that finds a port free and the start of its node, and while a killed node is down, nothing else
    keeps another process from taking it.
    """
    workers = int(environment.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    index = int(environment.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    share = (LAST - FIRST) // workers
    return range(FIRST + index * share, FIRST + (index + 1) * share)


def free_ports(count: int) -> range:
    """So many in a row."""
    own, chance = own_ports(), random.Random()
    while True:
        base = chance.randrange(own.start, own.stop - count + 1)
        found = range(base, base + count)
        with contextlib.suppress(OSError), contextlib.ExitStack() as held:
            for port in found:
                held.enter_context(socket.create_server(("127.0.0.1", port)))
            return found
