"""The store as the engine sees it."""

from __future__ import annotations

import os
import subprocess
import sys
import threading

import numpy as np
import pytest

from p2pfl.errors import StorageError, UserError
from p2pfl.storage import State, Store, peek


@pytest.fixture
def opened(tmp_path):
    """Opens the same folder again and again, as a restart would."""
    stores: list[Store] = []

    def open_again(durability="exchange", folder=tmp_path / "state") -> Store:
        if stores:
            stores.pop().close()
        stores.append(Store.open(folder, durability=durability))
        return stores[-1]

    yield open_again
    for store in stores:
        store.close()


def state(number: int) -> State:
    return State(header={"n": number}, arrays={"x": np.full(3, float(number))})


def fill(store: Store, numbers: str) -> None:
    """A digit appends itself and flushes, c makes a checkpoint of the digit before."""
    last = 0
    for step in numbers:
        if step == "c":
            store.checkpoint(state(last))
        else:
            last = int(step)
            store.append("add", {"n": last})
            store.flush()


def contents(loaded) -> tuple[int, list[int]]:
    return loaded.state.header["n"], [record.header["n"] for record in loaded.records]


def spoil(path, position: int) -> None:
    content = bytearray(path.read_bytes())
    content[position] ^= 1
    path.write_bytes(content)


def test_a_restart_gives_the_last_checkpoint_and_the_records_after_it(opened):
    store = opened()
    assert store.load() is None
    fill(store, "c1c23")
    loaded = opened().load()
    assert contents(loaded) == (1, [2, 3])
    assert loaded.state.arrays["x"].tolist() == [1, 1, 1]
    assert (loaded.warnings, loaded.complete) == ([], True)


def test_a_state_that_was_small_goes_on_as_a_large_one(opened, monkeypatch):
    fill(opened(), "c1c2")
    monkeypatch.setattr("p2pfl.storage.disk.LARGE_BYTES", 0)
    for numbers, expected in (("3", (1, [2, 3])), ("c4", (3, [4])), ("5", (3, [4, 5]))):
        store = opened()
        store.load()
        fill(store, numbers if numbers != "c4" else "3c4")
        loaded = opened().load()
        assert (contents(loaded), loaded.complete) == (expected, True)


def test_two_generations_are_kept_and_unfinished_files_are_removed(tmp_path, opened):
    fill(opened(), "c1c2c3c")
    (tmp_path / "state" / "snapshot-00000009.tmp").write_bytes(b"half")
    opened()
    assert sorted(path.name for path in (tmp_path / "state").iterdir()) == [
        "lock",
        "log-00000003",
        "log-00000004",
        "snapshot-00000003",
        "snapshot-00000004",
    ]


def test_a_damaged_snapshot_loses_nothing_while_both_logs_are_whole(tmp_path, opened):
    fill(opened(), "c12c34")
    spoil(tmp_path / "state" / "snapshot-00000002", 100)
    loaded = opened().load()
    assert contents(loaded) == (0, [1, 2, 3, 4])
    assert loaded.complete
    assert "snapshot-00000002 is damaged" in loaded.warnings[0]


def test_after_a_damaged_snapshot_the_good_one_outlives_the_next_checkpoint(tmp_path, opened):
    fill(opened(), "c12c34")
    spoil(tmp_path / "state" / "snapshot-00000002", 100)
    store = opened()
    store.load()
    fill(store, "5c6")
    spoil(tmp_path / "state" / "snapshot-00000003", 100)
    loaded = opened().load()
    assert contents(loaded) == (0, [1, 2, 3, 4, 5, 6])
    assert loaded.complete


def test_damage_in_the_older_log_keeps_the_newer_one_from_being_replayed_over_the_gap(tmp_path, opened):
    fill(opened(), "c12c34")
    spoil(tmp_path / "state" / "snapshot-00000002", 100)
    spoil(tmp_path / "state" / "log-00000001", -1)
    loaded = opened().load()
    assert contents(loaded) == (0, [1])
    assert not loaded.complete
    assert "log-00000002 does not continue what is before it" in loaded.warnings[1]


def test_a_log_that_cannot_be_read_is_told_and_what_follows_it_is_not_replayed(tmp_path, opened):
    fill(opened(), "c12c34")
    spoil(tmp_path / "state" / "snapshot-00000002", 100)
    (tmp_path / "state" / "log-00000001").unlink()
    (tmp_path / "state" / "log-00000001").mkdir()
    loaded = opened().load()
    assert (contents(loaded), loaded.complete) == ((0, []), False)
    (warning,) = loaded.warnings[1:]
    assert "log-00000001 cannot be read" in warning


def test_where_the_log_cannot_be_continued_loading_says_so_and_appends_are_refused(opened, monkeypatch):
    def resume(*_):
        raise StorageError("worn out")

    fill(opened(), "c12")
    monkeypatch.setattr("p2pfl.storage.store.Wal.resume", resume)
    store = opened()
    loaded = store.load()
    assert (contents(loaded), loaded.warnings) == ((0, [1, 2]), ["worn out"])
    with pytest.raises(StorageError, match="worn out"):
        store.append("add", {"n": 3})


def test_damage_within_the_log_is_reported_and_appends_wait_for_a_checkpoint(tmp_path, opened):
    fill(opened(), "c123")
    spoil(tmp_path / "state" / "log-00000001", 70)
    store = opened()
    loaded = store.load()
    assert contents(loaded) == (0, [])
    assert not loaded.complete
    assert "log-00000001 is damaged after byte 64" in loaded.warnings[0]
    with pytest.raises(StorageError, match="until a checkpoint succeeds"):
        store.append("add", {"n": 4})
    fill(store, "c5")
    assert contents(opened().load()) == (0, [5])


def test_when_both_snapshots_are_damaged_loading_raises_and_changes_nothing(tmp_path, opened):
    fill(opened(), "c12c34")
    for generation in (1, 2):
        spoil(tmp_path / "state" / f"snapshot-0000000{generation}", 100)
    with pytest.raises(StorageError, match=r"no snapshot in .* is usable"):
        opened().load()
    assert len(list((tmp_path / "state").iterdir())) == 5


def test_a_log_whose_snapshots_were_deleted_is_not_taken_for_a_new_folder(tmp_path, opened):
    fill(opened(), "c1")
    (tmp_path / "state" / "snapshot-00000001").unlink()
    with pytest.raises(StorageError, match="log-00000001 continues a snapshot that is missing"):
        opened().load()


def test_before_the_first_checkpoint_appends_are_refused(opened):
    with pytest.raises(StorageError, match="there is no snapshot yet"):
        opened().append("add", {})


def test_in_snapshot_durability_records_are_not_kept(tmp_path, opened):
    fill(opened("snapshot"), "c1c23")
    assert not list((tmp_path / "state").glob("log-*"))
    loaded = opened("snapshot").load()
    assert contents(loaded) == (1, [])
    assert loaded.complete


def test_in_snapshot_durability_falling_back_is_known_to_lose(tmp_path, opened):
    fill(opened("snapshot"), "c1c")
    spoil(tmp_path / "state" / "snapshot-00000002", 100)
    loaded = opened("snapshot").load()
    assert contents(loaded) == (0, [])
    assert not loaded.complete


def test_durability_may_change_at_every_restart(tmp_path, opened):
    fill(opened("exchange"), "c12")
    store = opened("snapshot")
    assert contents(store.load()) == (0, [1, 2])
    fill(store, "2c3c")
    store = opened("exchange")
    assert contents(store.load()) == (3, [])
    fill(store, "45")
    loaded = opened("snapshot").load()
    assert contents(loaded) == (3, [4, 5])
    spoil(tmp_path / "state" / "snapshot-00000003", 100)
    loaded = opened("exchange").load()
    assert contents(loaded) == (2, [])
    assert not loaded.complete


def test_the_size_of_the_log_grows_with_appends_and_starts_anew_at_a_checkpoint(opened):
    store = opened()
    assert store.wal_bytes == 0
    fill(store, "c")
    empty = store.wal_bytes
    store.append("add", {"n": 1}, [bytes(1000)])
    assert 1000 < store.wal_bytes - empty < 1100
    fill(store, "c")
    assert store.wal_bytes == empty


def test_a_second_process_is_told_that_the_folder_is_in_use(tmp_path, opened):
    opened()
    program = "import sys; from p2pfl.storage import Store; Store.open(sys.argv[1], durability='exchange')"
    second = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path / "state")],
        check=False,
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert second.returncode != 0
    assert f"UserError: {tmp_path}/state: the state folder is in use by another process" in second.stderr


def test_a_file_in_place_of_the_folder_is_the_users_mistake(tmp_path):
    (tmp_path / "state").write_text("")
    with pytest.raises(UserError, match="state folder cannot be used: File exists"):
        Store.open(tmp_path / "state", durability="exchange")


# -- Reading the state of a running node changes nothing and sees what a restart would.


def append(store: Store, *numbers: int) -> None:
    for number in numbers:
        store.append("add", {"n": number})
    store.flush()


def files(folder):
    return {path.name: (path.read_bytes(), path.stat().st_mtime_ns) for path in folder.iterdir()}


@pytest.fixture
def store(tmp_path):
    store = Store.open(tmp_path, durability="exchange")
    store.checkpoint(state(0))
    yield store
    store.close()


def test_a_missing_folder_is_not_created(tmp_path):
    with pytest.raises(StorageError, match="cannot be listed"):
        peek(tmp_path / "none")
    assert not (tmp_path / "none").exists()


def test_while_the_owner_writes_the_last_flushed_record_is_there(tmp_path, store):
    append(store, 1, 2)
    loaded = peek(tmp_path)
    assert contents(loaded) == (0, [1, 2])
    assert loaded.complete


def test_torn_and_unfinished_files_are_left_as_they_are(tmp_path, store):
    append(store, 1)
    (tmp_path / "snapshot-00000002.tmp").write_bytes(b"half of it")
    with (tmp_path / "log-00000001").open("ab") as log:
        log.write(b"torn")
    before = files(tmp_path)
    assert contents(peek(tmp_path)) == (0, [1])
    assert files(tmp_path) == before


def test_damage_is_the_same_error_as_at_a_restart(tmp_path, store):
    (tmp_path / "snapshot-00000001").write_bytes(b"garbage")
    with pytest.raises(StorageError, match=r"no snapshot in .* is usable"):
        peek(tmp_path)


@pytest.mark.parametrize("durability", ["exchange", "snapshot"])
def test_amid_checkpoints_every_look_is_whole_and_never_goes_back(tmp_path, durability):
    store = Store.open(tmp_path, durability=durability)
    store.checkpoint(state(0))
    done = threading.Event()

    def write():
        for number in range(1, 120):
            append(store, number)
            if number % 3 == 0:
                store.checkpoint(state(number))
        done.set()

    seen = []
    writer = threading.Thread(target=write)
    writer.start()
    while not done.is_set():
        try:
            loaded = peek(tmp_path)
        except StorageError as error:
            assert "faster than it can be read" in str(error)  # noqa: PT017 - the one refusal that is allowed
            continue
        assert loaded.complete
        base, numbers = contents(loaded)
        assert numbers == list(range(base + 1, base + 1 + len(numbers)))
        seen.append(base + len(numbers))
    writer.join()
    assert seen == sorted(seen)
    assert contents(peek(tmp_path))[0] == 117
    store.close()
