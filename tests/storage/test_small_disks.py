"""A store on a disk that is full: what it gives up to come back, and what it never does."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from p2pfl.errors import StorageError
from p2pfl.storage import State, Store, peek
from p2pfl.storage import disk as files

sys.path.insert(0, str(Path(__file__).parents[1]))
from disks import fill, tiny_disk

SNAPSHOT_BYTES = 60_000


@pytest.fixture
def disk(tmp_path):
    with tiny_disk(tmp_path / "tiny", "512k") as folder:
        yield folder


@pytest.fixture
def store(disk):
    store = Store.open(disk / "state", durability="exchange")
    yield store
    store.close()


def keep(store, value):
    store.checkpoint(State(header={"value": value}, blobs={"filling": bytes(SNAPSHOT_BYTES)}))


def kept(folder):
    """As from outside."""
    loaded = peek(folder)
    return loaded.state.header["value"], [record.header["n"] for record in loaded.records], loaded.complete


def names(folder):
    return sorted(path.name for path in folder.iterdir() if path.name != "lock")


def log_until_full(store, size=5_000):
    """How many records the log takes."""
    for count in range(10_000):
        try:
            store.append("add", {"n": count}, [bytes(size)])
            store.flush()
        except StorageError:
            return count
    raise AssertionError("the disk is not full")


def test_a_log_that_has_filled_the_disk_gives_way_to_a_snapshot(disk, store):
    for value in (1, 2):
        keep(store, value)
        store.append("add", {"n": 0}, [bytes(20_000)])
    assert log_until_full(store) > 10
    keep(store, 3)
    assert names(disk / "state") == ["log-00000002", "log-00000003", "snapshot-00000002", "snapshot-00000003"]
    keep(store, 4)
    store.append("add", {"n": 7})
    store.flush()
    assert kept(disk / "state") == (4, [7], True)


def test_the_older_generation_is_given_up_only_where_there_is_no_room_beside_it(disk, store):
    for value in range(4):
        keep(store, value)
    assert names(disk / "state") == ["log-00000003", "log-00000004", "snapshot-00000003", "snapshot-00000004"]
    ballast = fill(disk)
    keep(store, 4)
    assert names(disk / "state") == ["log-00000004", "log-00000005", "snapshot-00000004", "snapshot-00000005"]
    ballast.unlink()


def test_however_often_a_full_disk_is_tried_it_takes_no_more_room(disk, store):
    keep(store, 1)
    store.append("add", {"n": 0})
    store.flush()
    fill(disk, leave_bytes=30_000)
    found = []
    for _ in range(6):
        with pytest.raises(StorageError, match="No space left"):
            keep(store, 2)
        found.append((names(disk / "state"), files.free_bytes(disk)))
    assert found[2:] == [found[1]] * 4
    store.append("add", {"n": 1})
    store.flush()
    (disk / "ballast").unlink()
    keep(store, 3)
    assert names(disk / "state")[-1] == "snapshot-" + names(disk / "state")[-3].removeprefix("log-")


def test_what_a_store_needs_and_what_there_is(disk, store):
    assert files.free_bytes(disk) == files.volume_bytes(disk) == 512 * 1024
    keep(store, 1)
    assert SNAPSHOT_BYTES < files.used_bytes(disk / "state") < SNAPSHOT_BYTES + 16_000
    assert store.room_bytes == files.volume_bytes(disk)


@pytest.mark.parametrize(
    ("room", "limit"),
    [
        (float("inf"), 4_000_000),
        (100_000_000, 4_000_000),
        (3_000_000, (3_000_000 - 300_000 - files.SLACK_BYTES) // 2),
        (350_000, files.LEAST_LOG_BYTES),
        (0, files.LEAST_LOG_BYTES),
    ],
)
def test_two_logs_three_snapshots_and_something_more_find_room(room, limit):
    assert files.log_limit(room, snapshot_bytes=100_000, usual_bytes=4_000_000) == limit
