"""A disk that stalls delays a node's messages, not its rounds, and nothing leaves that is not on it."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from p2pfl.node import replay
from p2pfl.storage import disk, peek

STALLED = 1
"""The middle one of three: it answers the first, and asks the last."""


@pytest.fixture
def stall(monkeypatch):
    """Records of one folder reach the file only once they may; what is in the file counts as durable."""

    class Stall:
        def __init__(self):
            self.folder, self.is_reached, self.is_over = "none", threading.Event(), threading.Event()

        def write_all(self, fd, piece):
            if str(Path(f"/proc/self/fd/{fd}").readlink()).startswith(self.folder):
                self.is_reached.set()
                self.is_over.wait(30.0)
            return real(fd, piece)

    stall, real = Stall(), disk.write_all
    monkeypatch.setattr(disk, "write_all", stall.write_all)
    yield stall
    stall.is_over.set()


@pytest.mark.long
@pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="the file of a descriptor is read from /proc")
async def test_rounds_go_on_while_the_disk_stalls_and_nothing_leaves_before_it_is_written(ward, start, finish, stall):
    field = ward(3, training={"rounds": 12, "closing_rounds": 2}, gossip={"max_wait_s": 0.1})
    nodes = start(field)
    node = nodes[STALLED]
    await node.until(lambda: node.rounds >= 3)
    folder = field.folder / field.names[STALLED] / "state"
    stall.folder = str(folder)
    await node.until(stall.is_reached.is_set)
    before = [each.rounds for each in nodes]
    await node.until(lambda: all(each.rounds >= at + 3 for each, at in zip(nodes, before, strict=True)))
    kept = replay(peek(folder)).edges
    shown = {peer: nodes[peer].application.driver.core.edges[STALLED].exchange.record for peer in (0, 2)}
    assert shown[0].seq <= kept[0].record.seq, "the first has no answer that could be forgotten"
    asked = kept[2].record.pending
    assert shown[2].seq <= (kept[2].record.seq if asked is None else asked.seq), "nor the last a question"
    assert node.application.driver.held.waiting, "something waits for the disk"
    stall.is_over.set()
    await finish(nodes, rounds=12)
    assert not node.application.driver.held.waiting
