"""A status page in a thread of its own, with what a test wants it to say, and a federation's folder that knows it."""

from __future__ import annotations

import asyncio
import json
import os
import threading
from contextlib import contextmanager

from p2pfl.features.status import StatusPage

MEMBERS = ("node0", "node1", "node2", "node3")
ROW = {
    "phase": "training",
    "rounds": 12,
    "accuracy": 0.875,
    "main": 0.875,
    "loss": 0.5,
    "distance": 0.0125,
    "staleness": 0.5,
    "bytes_sent": 1_234_567,
    "bytes_received": 7,
    "bytes_per_s": 1000.0,
    "exchanges": 24,
    "live": [1, 2],
    "alarms": 0,
    "standing": [],
    "quiet": False,
    "source": None,
    "at": 998.0,
    "charter": 0,
    "software": "0.1.0",
    "life": 5,
}
KNOWN = {
    "federation": "ward",
    "node": "node0",
    "now": 1000.0,
    "rounds_to_do": 40,
    "topology": "ring",
    "edges": [[0, 1], [1, 2], [2, 3], [0, 3]],
    "members": [
        {"index": 0, "name": "node0"} | ROW,
        {"index": 1, "name": "node1"} | ROW | {"standing": ["storage"], "at": 990.0},
        {"index": 2, "name": "node2"} | ROW | {"source": "node1", "at": 940.0, "rounds": 9},
        {"index": 3, "name": "node3"} | ROW | {"quiet": True, "at": 400.0, "source": "node1"},
    ],
    "alarms": [
        {
            "kind": "neighbor-lost",
            "about": "node3",
            "text": "no session for 60 s, since reset",
            "since": 700.0,
            "count": 1,
            "means": "It means this.",
            "does": "It does that.",
            "advice": "Do so.",
        }
    ],
    "events": [
        {"number": 1, "at": 100.0, "kind": "started", "about": None, "text": "again", "wrong": False},
        {"number": 2, "at": 700.0, "kind": "neighbor-lost", "about": "node3", "text": "gone", "wrong": True},
    ],
}


class Site:
    def __init__(self, known):
        self.known = known

    def whole(self):
        return json.dumps(self.known).encode()

    def history(self):
        return b"{}"


@contextmanager
def serving(said, known=None, **options):
    """Gives the address."""
    loop, ready = asyncio.new_event_loop(), threading.Event()
    ports, ending = [], asyncio.Event()

    async def serve():
        site = None if known is None else Site(known)
        async with StatusPage("127.0.0.1:0", lambda: said, site=site, **options) as page:
            ports.append(page.port)
            ready.set()
            await ending.wait()

    thread = threading.Thread(target=lambda: loop.run_until_complete(serve()))
    thread.start()
    try:
        assert ready.wait(60)
        yield f"127.0.0.1:{ports[0]}"
    finally:
        loop.call_soon_threadsafe(ending.set)
        thread.join(20)
        loop.close()


def note_address(folder, name, status, *, pid=None, listen=""):
    """As a running node does beside its state."""
    state = folder / name / "state"
    state.mkdir(exist_ok=True)
    there = {
        "federation": "ward",
        "node": name,
        "pid": os.getpid() if pid is None else pid,
        "listen": listen,
        "status": status,
    }
    (state / "address.json").write_text(json.dumps(there), encoding="utf-8")
