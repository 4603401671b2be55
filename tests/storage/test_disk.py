"""Files of the state folder: for their owner alone, and never written through a link that was put there."""

from __future__ import annotations

import os

import pytest
from disks import fill, tiny_disk

from p2pfl.errors import StorageError, UserError
from p2pfl.storage import (
    LEAST_LOG_BYTES,
    SLACK_BYTES,
    State,
    Store,
    Wal,
    create_file,
    free_bytes,
    lock_folder,
    log_limit,
    peek,
    read_log,
    replace_file,
    truncate_file,
    used_bytes,
    volume_bytes,
)

MINE = b"somebody's own file"


@pytest.fixture
def victim(tmp_path):
    """A file elsewhere that this user may write, and that a link planted in the state folder names."""
    path = tmp_path / "elsewhere"
    path.write_bytes(MINE)
    return path


@pytest.fixture
def state(tmp_path):
    folder = tmp_path / "state"
    folder.mkdir(mode=0o700)
    return folder


@pytest.mark.parametrize("hard", [False, True])
@pytest.mark.parametrize("name", ["result.json", "result.json.tmp"])
def test_a_file_is_replaced_and_what_a_link_names_stays(state, victim, name, hard):
    (state / name).hardlink_to(victim) if hard else (state / name).symlink_to(victim)
    replace_file(state / "result.json", [b"new"])
    assert (state / "result.json").read_bytes() == b"new"
    assert not (state / "result.json").is_symlink()
    assert victim.read_bytes() == MINE
    assert sorted(path.name for path in state.iterdir()) == ["result.json"]


def test_a_state_folder_that_is_a_link_is_refused_and_its_place_named(state, tmp_path):
    (tmp_path / "link").symlink_to(state)
    with pytest.raises(UserError, match="symbolic link") as caught:
        lock_folder(tmp_path / "link")
    assert str(state) in caught.value.allowed
    assert list(state.iterdir()) == []


def test_what_is_written_is_for_its_owner_alone_whatever_the_umask(state):
    (state / "result.json").touch(0o644)
    before = os.umask(0)
    try:
        replace_file(state / "result.json", [b"new"])
        create_file(state / "log", b"head")
        os.close(lock_folder(state))
    finally:
        os.umask(before)
    assert {path.stat().st_mode & 0o777 for path in state.iterdir()} == {0o600}


def test_a_new_file_is_never_made_where_a_link_points(state, victim):
    for target in (victim, victim.with_name("nothing")):
        (state / "log").symlink_to(target)
        with pytest.raises(StorageError, match="File exists"):
            create_file(state / "log", b"head")
        (state / "log").unlink()
    assert victim.read_bytes() == MINE
    assert not victim.with_name("nothing").exists()


def test_a_log_that_is_a_link_is_neither_cut_nor_continued(state, tmp_path):
    Wal.create(tmp_path / "other", bytes(32)).close()
    log = read_log(tmp_path / "other")
    (state / "log").symlink_to(tmp_path / "other")
    before = (tmp_path / "other").read_bytes()
    with pytest.raises(StorageError):
        truncate_file(state / "log", 3)
    with pytest.raises(StorageError):
        Wal(state / "log", end=log.end, size_bytes=log.valid_bytes)
    assert (tmp_path / "other").read_bytes() == before


def test_a_lock_that_is_a_link_is_refused(state, victim):
    (state / "lock").symlink_to(victim.with_name("new"))
    with pytest.raises(UserError, match="cannot be used"):
        lock_folder(state)
    assert not victim.with_name("new").exists()


@pytest.mark.parametrize("mode", [0o777, 0o770, 0o720, 0o702, 0o1777])
def test_a_folder_that_others_may_write_to_is_refused_with_what_to_do(state, mode):
    state.chmod(mode)
    with pytest.raises(UserError, match="others may write") as refused:
        Store.open(state, durability="exchange")
    assert refused.value.file == str(state)
    assert refused.value.value == f"mode {mode:o}"
    assert f"chmod 700 {state}" in refused.value.allowed
    assert list(state.iterdir()) == []


@pytest.mark.parametrize("mode", [0o700, 0o755, 0o750])
def test_a_folder_that_only_its_owner_can_write_to_is_taken(state, mode):
    state.chmod(mode)
    Store.open(state, durability="exchange").close()


def test_a_folder_of_another_user_is_refused_and_one_of_root_is_not(state, monkeypatch):
    there = state.stat().st_uid
    monkeypatch.setattr(os, "geteuid", lambda: there + 1)
    if there:
        with pytest.raises(UserError, match="belongs to another user"):
            lock_folder(state)
    else:
        os.close(lock_folder(state))
        os.chown(state, 12345, -1)
        with pytest.raises(UserError, match="belongs to another user") as refused:
            lock_folder(state)
        assert refused.value.value == "user 12345"


def test_a_new_folder_is_for_its_owner_alone_whatever_the_umask(tmp_path):
    before = os.umask(0)
    try:
        Store.open(tmp_path / "new" / "state", durability="exchange").close()
    finally:
        os.umask(before)
    assert (tmp_path / "new" / "state").stat().st_mode & 0o777 == 0o700


# -- A store on a disk that is full: what it gives up to come back, and what it never does.

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
        found.append((names(disk / "state"), free_bytes(disk)))
    assert found[2:] == [found[1]] * 4
    store.append("add", {"n": 1})
    store.flush()
    (disk / "ballast").unlink()
    keep(store, 3)
    assert names(disk / "state")[-1] == "snapshot-" + names(disk / "state")[-3].removeprefix("log-")


def test_what_a_store_needs_and_what_there_is(disk, store):
    assert free_bytes(disk) == volume_bytes(disk) == 512 * 1024
    keep(store, 1)
    assert SNAPSHOT_BYTES < used_bytes(disk / "state") < SNAPSHOT_BYTES + 16_000
    assert store.room_bytes == volume_bytes(disk)


@pytest.mark.parametrize(
    ("room", "limit"),
    [
        (float("inf"), 4_000_000),
        (100_000_000, 4_000_000),
        (3_000_000, (3_000_000 - 300_000 - SLACK_BYTES) // 2),
        (350_000, LEAST_LOG_BYTES),
        (0, LEAST_LOG_BYTES),
    ],
)
def test_two_logs_three_snapshots_and_something_more_find_room(room, limit):
    assert log_limit(room, snapshot_bytes=100_000, usual_bytes=4_000_000) == limit
