"""Names of hosts that this machine's DNS does not know."""

from __future__ import annotations

import socket
from collections.abc import Iterable
from threading import Thread

MOST_NAMES = 32
PATIENCE_S = 2.0
"""How long all answers together may take; a name without an answer by then is not judged."""


def unknown_hosts(hosts: Iterable[str]) -> set[str]:
    """Return those of the first names that are certainly unknown."""
    unknown: set[str] = set()
    asked = list(dict.fromkeys(hosts))[:MOST_NAMES]
    threads = [Thread(target=_ask, args=(host, unknown), daemon=True) for host in asked]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_S / len(threads))
    return unknown


def _ask(host: str, unknown: set[str]) -> None:
    try:
        socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except socket.gaierror as error:
        if error.errno == socket.EAI_NONAME:  # not: no DNS answers, as on a machine that is offline
            unknown.add(host)
    except OSError:
        return
