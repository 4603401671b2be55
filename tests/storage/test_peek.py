"""Reading the state of a running node changes nothing and sees what a restart would."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from p2pfl.errors import StorageError
from p2pfl.storage import State, Store, peek


def state(number: int) -> State:
    return State(header={"n": number}, arrays={"x": np.full(3, float(number))})


def append(store: Store, *numbers: int) -> None:
    for number in numbers:
        store.append("add", {"n": number})
    store.flush()


def contents(loaded):
    return loaded.state.header["n"], [record.header["n"] for record in loaded.records]


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


def test_the_owner_goes_on_as_if_nobody_had_looked(tmp_path, store):
    append(store, 1)
    peek(tmp_path)
    append(store, 2)
    store.checkpoint(state(2))
    append(store, 3)
    assert contents(peek(tmp_path)) == (2, [3])


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
