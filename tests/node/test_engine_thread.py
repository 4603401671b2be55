"""What the engine's thread says of its work."""

from __future__ import annotations

import time
from types import SimpleNamespace

from p2pfl.core.effects import ApplyReply
from p2pfl.core.events import ReplyRefused, StorageFailed, StorageRestored
from p2pfl.errors import StorageError
from p2pfl.node import engine_thread
from p2pfl.node.engine_thread import RETRY_S, EngineThread, Operate


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


def test_a_disk_that_refuses_is_told_of_once_and_tried_again_after_three_seconds(monkeypatch, caplog):
    clock = SimpleNamespace(now=100.0, monotonic=lambda: clock.now)
    monkeypatch.setattr(engine_thread, "time", clock)
    engine, events, saved = SimpleNamespace(state="all of it"), [], []
    thread = EngineThread(engine, None, durability="snapshot", extra={})
    monkeypatch.setattr(thread, "checkpoint", saved.append)

    def refuse():
        raise StorageError("no space left")

    for _ in range(2):
        thread._guard(events, refuse)
    assert events == [StorageFailed()]
    assert len(caplog.records) == 1
    clock.now += RETRY_S - 0.1
    thread._upkeep(events)
    assert saved == []
    clock.now += 0.1
    thread._upkeep(events)
    assert saved == ["all of it"]
    assert events == [StorageFailed(), StorageRestored()]
