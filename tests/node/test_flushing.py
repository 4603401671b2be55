"""Flushes beside the engine: whatever the disk does, no message leaves before its records are there, and none stays."""

from __future__ import annotations

import errno
import os
import threading
from contextlib import closing
from itertools import chain, repeat

import numpy as np
import pytest

from p2pfl.compress import make_compressor
from p2pfl.core import Freeze, RequestFrozen, Send, StorageFailed, StorageRestored
from p2pfl.engine import Codecs, Engine, NodeState
from p2pfl.errors import StorageError
from p2pfl.node import DurableOutbox, EngineThread, Order, replay
from p2pfl.storage import Store, peek
from p2pfl.storage import disk as storage_disk

CODECS = Codecs(make_compressor("none"), {})
HEAD = {"compressor": "none", "compressors": {}, "method": {"spec": "none", "seed": 0}}


class Disk:
    """Stalls the flushes of logs, or refuses them with an error number."""

    def __init__(self):
        self.is_reached, self.may_go_on, self.refuses = threading.Event(), threading.Event(), None
        self.may_go_on.set()
        self.flushes = 0

    def fdatasync(self, fd):
        self.is_reached.set()
        self.flushes += 1
        self.may_go_on.wait(30.0)
        if self.refuses is not None:
            raise OSError(self.refuses, os.strerror(self.refuses))
        os.fsync(fd)


@pytest.fixture
def disk(monkeypatch):
    monkeypatch.setattr("p2pfl.node.engine_thread.RETRY_S", 0.0)
    disk = Disk()

    def sync(fd, *, only_content=False):
        disk.fdatasync(fd) if only_content else os.fsync(fd)

    monkeypatch.setattr(storage_disk, "sync", sync)
    yield disk
    disk.may_go_on.set()


class Node:
    """The engine's thread, one batch at a time, and the messages that its answers lead to."""

    def __init__(self, store, folder, peers=(1, 2, 3)):
        self.folder = folder
        state = NodeState.new(np.ones(4, np.float32), 10, peers)
        self.thread = EngineThread(
            Engine(index=0, state=state, codecs=CODECS), store, durability="exchange", extra=HEAD
        )
        self.thread.listener = self
        self.sent, self.told = [], []
        self.held = DurableOutbox(self.send)
        self.thread.checkpoint(state)

    def send(self, effect):
        assert effect.peer in kept(self.folder), "a restart would not know it"
        self.sent.append(effect)

    def deliver(self, events, flush):
        self.held.promise(flush)
        for event in events:
            self.told.append(type(event))
            if isinstance(event, StorageFailed):
                self.held.forget()
            if isinstance(event, RequestFrozen):
                self.say(event.peer, event.request)

    def say(self, peer, message):
        self.held.put(Send(peer=peer, session=1, message=message))

    def flushed(self, flush):
        self.held.release(flush)

    def fail(self, error):
        raise error

    def ask(self, *peers):
        for peer in peers:
            place = {"incarnation": 0, "seq": 1, "version": 0, "echo": None}
            self.thread.jobs.put(Freeze(peer=peer, weight=1.0, staleness=1.0, pace_s=0.0, audit=False, **place))
        self.thread._batch()

    def end_flushes(self):
        """Take what the flushing thread reports."""
        while self.thread.flushing.is_owed:
            self.thread._batch()

    @property
    def asks(self):
        return [effect.peer for effect in self.sent]


@pytest.fixture
def node(tmp_path, disk):
    with closing(Store.open(tmp_path / "state", durability="exchange")) as store:
        assert store.load() is None
        node = Node(store, tmp_path)
        yield node
        disk.may_go_on.set()
        node.thread.flushing.close()


def kept(tmp_path):
    edges = replay(peek(tmp_path / "state")).edges
    return [peer for peer, edge in edges.items() if edge.record.pending is not None]


@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EIO])
def test_after_a_refused_flush_messages_leave_once_a_snapshot_is_written(node, disk, error):
    disk.refuses = error
    node.ask(1)
    node.end_flushes()
    assert node.told == [RequestFrozen, StorageFailed, StorageRestored]
    node.say(1, "again")
    assert node.asks[-1:] == [1]
    assert not node.held.waiting


def test_a_refused_flush_that_an_append_meets_first_keeps_no_rounds(node, disk):
    disk.may_go_on.clear()
    node.thread.engine.state.rounds = 7
    node.ask(1)
    assert disk.is_reached.wait(10.0)
    disk.refuses = errno.ENOSPC
    disk.may_go_on.set()
    node.thread.broken_since = float("inf")
    with pytest.raises(StorageError):
        node.thread.store.flush()
    node.thread._batch()
    assert node.thread.kept_rounds == 0
    assert node.thread.flushing.is_owed


def test_nothing_leaves_during_a_flush_and_all_that_comes_meanwhile_shares_the_next(node, disk):
    disk.may_go_on.clear()
    for peer in (1, 2, 3):
        node.ask(peer)
        assert disk.is_reached.wait(10.0)
    assert node.told == [RequestFrozen] * 3
    assert not node.asks
    disk.may_go_on.set()
    node.end_flushes()
    assert node.asks == [1, 2, 3]
    assert disk.flushes == 2


def test_the_end_waits_for_the_flush_that_is_running(node, disk):
    disk.may_go_on.clear()
    node.ask(1)
    assert disk.is_reached.wait(10.0)
    threading.Timer(0.02, disk.may_go_on.set).start()
    node.thread.jobs.put(Order.QUIT)
    node.ask(2)
    assert 2 in node.asks  # which includes the first, whose thread may be about to say so
    assert not node.thread.flushing.is_owed


def test_a_snapshot_answers_what_a_refused_flush_did_not(node, disk):
    disk.may_go_on.clear()
    node.ask(1)
    assert disk.is_reached.wait(10.0)
    disk.refuses = errno.EIO
    disk.may_go_on.set()
    node.thread.jobs.put(Order.CHECKPOINT)
    node.thread._batch()
    disk.refuses = None
    node.ask(2)
    node.end_flushes()
    assert node.asks == [1, 2]
    assert StorageFailed not in node.told


def test_a_flush_that_fails_otherwise_is_no_flush(node, disk, monkeypatch):
    writers = chain([lambda *_: memoryview(None)], repeat(storage_disk.write_all))

    def write(fd, piece):
        next(writers)(fd, piece)

    monkeypatch.setattr(storage_disk, "write_all", write)
    node.ask(1)
    node.end_flushes()
    assert node.told == [RequestFrozen, StorageFailed, StorageRestored]
