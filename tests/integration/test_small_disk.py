"""Nodes on disks that are small, or full for a while: nothing that was learned is lost while the process lives."""

from __future__ import annotations

import asyncio

import pytest
from disks import tiny_disk

from p2pfl.errors import StorageError, UserError
from p2pfl.node import read_learned
from p2pfl.storage import Store
from p2pfl.storage import disk as files

pytestmark = pytest.mark.usefixtures("lone")

REFUSED = "cannot write /some/where: No space left on device"


@pytest.fixture(autouse=True)
def _tried_again_at_once(monkeypatch):
    monkeypatch.setattr("p2pfl.node.shutdown.RETRY_S", 0.02, raising=False)
    monkeypatch.setattr("p2pfl.node.engine_thread.RETRY_S", 0.02)


class Disk:
    """Refuses checkpoints, and flushes too, while it is `full`; `refused` counts them."""

    def __init__(self, monkeypatch):
        self.full, self.refused, self.checkpoints = False, 0, 0
        for name in ("checkpoint", "flush"):
            monkeypatch.setattr(Store, name, self._before(getattr(Store, name)))

    def _before(self, real):
        def write(store, *arguments):
            if self.full:
                self.refused += 1
                raise StorageError(REFUSED)
            self.checkpoints += real.__name__ == "checkpoint"
            return real(store, *arguments)

        return write


@pytest.fixture
def disk(monkeypatch):
    return Disk(monkeypatch)


@pytest.fixture
def alone(ward, start):
    """A node that nobody joins, which therefore trains by itself."""

    def alone(**training):
        field = ward(2, training={"rounds": 30, "closing_rounds": 1, **training}, gossip={"start_wait_s": 0.1})
        (node,) = start(field, 1)
        return field, node

    return alone


def waits(node):
    return node.phase == "waiting for disk"


async def test_the_last_snapshot_waits_for_a_full_disk_and_says_so(alone, disk, caplog):
    field, node = alone()
    await node.until(lambda: node.rounds > 3)
    disk.full = True
    await node.until(lambda: waits(node) or node.end_wait())
    assert node.status.disk_refuses == REFUSED
    assert node.status.alarms["storage"]
    assert node.lines[-1].phase == "waiting for disk"
    assert f"waiting for the disk, tried again every 0.02 s: {REFUSED}" in caplog.text
    disk.full = False
    result = await node.result()
    assert (result.finished, result.rounds, result.phase) == (True, 30, "finished")
    assert read_learned(field.folder / "node1").rounds == 30


async def test_a_node_that_is_stopped_on_a_full_disk_keeps_what_it_has_learned_since(alone, disk):
    field, node = alone(rounds=100_000)
    await node.until(lambda: node.rounds > 3)
    disk.full = True
    filled = node.rounds
    await node.until(lambda: node.rounds > filled + 3)
    learned = node.rounds
    node.application.stop()
    await node.until(lambda: waits(node))
    disk.full = False
    result = await node.result()
    assert not result.finished
    assert read_learned(field.folder / "node1").rounds == result.rounds >= learned


async def test_whoever_stops_it_twice_gives_up_and_is_told_what_is_lost(alone, disk):
    field, node = alone(rounds=100_000)
    await node.until(lambda: node.rounds > 3)
    disk.full = True
    kept = read_learned(field.folder / "node1").rounds
    await node.until(lambda: node.rounds > kept)
    node.application.stop()
    await node.until(lambda: waits(node))
    node.application.stop()
    with pytest.raises(StorageError, match=rf"{REFUSED}; given up: what was learned after round \d+ is lost"):
        await node.result()
    assert read_learned(field.folder / "node1").rounds >= kept


async def test_nobody_gives_up_what_he_has_not_been_told_of(alone, disk):
    """Ctrl-C twice in a row, before the disk has refused once."""
    field, node = alone(rounds=100_000)
    await node.until(lambda: node.rounds > 3)
    disk.full = True
    node.application.stop()
    node.application.stop()
    await node.until(lambda: waits(node))
    disk.full = False
    result = await node.result()
    assert read_learned(field.folder / "node1").rounds == result.rounds


async def test_a_node_that_has_finished_is_not_given_up_by_the_first_stop(alone, disk, caplog):
    _, node = alone()
    await node.until(lambda: node.rounds > 3)
    disk.full = True
    await node.until(lambda: waits(node) or node.end_wait())
    node.application.stop()
    assert "stop again to discard them" in caplog.text
    disk.full = False
    result = await node.result()
    assert result.finished


async def test_a_start_waits_for_a_full_disk_and_leaves_the_old_state_as_it_is(alone, disk, start):
    field, node = alone()
    await node.until(lambda: node.rounds > 3)
    before = (await node.stop()).rounds
    files = {path.name: path.read_bytes() for path in node.setup.node.state_dir.glob("snapshot-*")}
    disk.full = True
    (again,) = start(field, 1)
    await again.until(lambda: waits(again))
    assert {path.name: path.read_bytes() for path in node.setup.node.state_dir.glob("snapshot-*")} == files
    disk.full = False
    await again.until(lambda: again.rounds > before)
    await again.stop()


async def test_a_start_that_waits_for_a_disk_can_be_stopped_and_leaves_no_folder_behind(alone, disk):
    disk.full = True
    _, node = alone()
    await node.until(lambda: waits(node))
    assert await node.stop() is None
    assert not node.setup.node.state_dir.exists()


async def test_a_volume_that_is_too_small_is_named_with_what_is_needed(alone, monkeypatch):
    monkeypatch.setattr(files, "volume_bytes", lambda _: 100_000)
    _, node = alone()
    with pytest.raises(UserError, match=r"state_dir: the volume is too small .*100,000 bytes.*at least \d+,\d+ bytes"):
        await node.result()


async def test_a_disk_with_too_little_room_is_told_at_the_start(alone, monkeypatch, caplog):
    monkeypatch.setattr(files, "free_bytes", lambda _: 50_000)
    _, node = alone()
    await node.until(lambda: node.rounds > 1)
    await node.stop()
    assert "bytes for the state, and there are" in caplog.text


@pytest.mark.long
async def test_a_log_is_as_long_as_the_disk_has_room_for(alone, disk, monkeypatch):
    """64 kB at least: on a faked disk of no room at all a checkpoint follows each such log."""
    monkeypatch.setattr(files, "free_bytes", lambda _: 0)
    _, node = alone(rounds=100_000)
    await node.until(lambda: node.rounds > 1)
    thread = node.application.thread
    await node.until(lambda: thread.store.wal_bytes > files.LEAST_LOG_BYTES // 2)
    before = disk.checkpoints
    await node.until(lambda: disk.checkpoints > before + 1)
    assert thread.log_limit() == files.LEAST_LOG_BYTES
    await node.stop()


@pytest.mark.long
async def test_the_log_of_a_node_on_a_small_disk_leaves_room_for_snapshots(ward, start, tmp_path, caplog):
    """With a limit of 4 MiB whatever the disk, its own log fills 3 MB in seconds, and the node never comes back."""
    field = ward(2, training={"rounds": 100_000, "closing_rounds": 1}, task={"size": 2000})
    with tiny_disk(tmp_path / "tiny", "3m") as folder:
        field.write_node("node0", state_dir=str(folder / "state"))
        nodes = start(field)
        await nodes[0].until(lambda: nodes[0].rounds > 1)
        written, most, last = 0, 0, 0
        while written < 3 * 3_000_000:
            size = nodes[0].application.thread.store.wal_bytes
            written, last = written + max(0, size - last), size
            most = max(most, files.used_bytes(folder / "state"))
            await asyncio.sleep(0.005)
            assert not nodes[0].task.done()
        assert nodes[0].status.alarms == {}
        assert most < files.volume_bytes(folder)
        for node in nodes:
            await node.stop()
