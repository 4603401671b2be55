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


_after = random.Random().choice(own_ports())
"""The last one that was given, or any."""


def free_ports(count: int) -> range:
    """So many in a row, and others each time until all have had their turn: who got some may not have begun yet."""
    global _after  # noqa: PLW0603 - of the process, as ports are
    own = own_ports()
    while True:
        base = _after + 1 if _after + 1 in own and _after + count in own else own.start
        found = range(base, base + count)
        _after = found[-1]
        with contextlib.suppress(OSError), contextlib.ExitStack() as held:
            for port in found:
                held.enter_context(socket.create_server(("127.0.0.1", port)))
            return found
