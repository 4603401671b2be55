"""What the engine's thread says of its work."""

from __future__ import annotations

import time
from types import SimpleNamespace

from p2pfl.core import ApplyReply, Refused, RequestFrozen, StorageFailed, StorageRestored
from p2pfl.errors import StorageError
from p2pfl.node import RETRY_S, EngineThread


class Works:
    """An engine that computes for a while, and then waits for as long."""

    def run(self, operation):
        until = time.thread_time() + 0.05
        while time.thread_time() < until:
            pass
        time.sleep(0.05)
        return SimpleNamespace(event=Refused(peer=operation.peer, message=None, reason=""), change=None, urgent=False)


def test_an_exchange_costs_the_time_for_which_the_engine_has_computed_and_not_waited():
    thread, events = EngineThread(Works(), None, durability="snapshot", extra={}), []
    begun_s = time.monotonic()
    thread._operate(ApplyReply(peer=1, reply=None), events)
    assert 0.05 <= events[0].cost_s < time.monotonic() - begun_s - 0.04


def test_a_disk_that_refuses_is_told_of_once_and_tried_again_after_three_seconds(monkeypatch, caplog):
    clock = SimpleNamespace(now=100.0, monotonic=lambda: clock.now)
    monkeypatch.setattr("p2pfl.node.engine_thread.time", clock)
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


class Refusing:
    """A log whose flushes end in a full disk, in whatever thread they run."""

    wal_bytes = 0

    def append(self, *_):
        pass

    def begin_flush(self):
        return SimpleNamespace(run=lambda: None, error=StorageError("no space left"))

    def settle(self):
        raise StorageError("no space left")


def test_a_flush_that_the_disk_refuses_is_told_of_and_what_waits_for_it_never_leaves():
    frozen = SimpleNamespace(event=RequestFrozen(peer=1, request=None), change=None, urgent=True)
    engine = SimpleNamespace(run=lambda _: frozen, state=SimpleNamespace(rounds=3))
    thread, told, done = EngineThread(engine, Refusing(), durability="exchange", extra={}), [], []
    thread.listener = SimpleNamespace(deliver=lambda *news: told.append(news), flushed=done.append)
    thread.jobs.put(ApplyReply(peer=1, reply=None))
    thread._batch()
    assert told == [([frozen.event], 1)], "the core goes on, and what it sends depends on the first flush"
    thread._batch()
    assert told[1:] == [([StorageFailed()], 1)]
    assert done == []
    thread.flushing.close()
