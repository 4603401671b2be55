"""What the engine's thread says of its work."""

from __future__ import annotations

import time
from types import SimpleNamespace

from p2pfl.core.effects import ApplyReply
from p2pfl.core.events import ReplyRefused
from p2pfl.node.engine_thread import EngineThread, Operate


class Works:
    """An engine that computes for a while, and then waits for as long."""

    def run(self, operation):
        until = time.thread_time() + 0.05
        while time.thread_time() < until:
            pass
        time.sleep(0.05)
        return SimpleNamespace(
            event=ReplyRefused(peer=operation.peer, reply=None, reason=""), change=None, urgent=False
        )


def test_an_exchange_costs_the_time_for_which_the_engine_has_computed_and_not_waited():
    thread, events = EngineThread(Works(), None, durability="snapshot", extra={}), []
    begun_s = time.monotonic()
    thread._operate(Operate(ApplyReply(peer=1, reply=None)), events)
    assert 0.05 <= events[0].cost_s < time.monotonic() - begun_s - 0.04
