"""Whatever instant a crash or a full disk picks, what was acknowledged is there, in order and without a gap."""

from __future__ import annotations

import contextlib
import itertools
import os
import shutil
from pathlib import Path

import pytest

from p2pfl.errors import StorageError
from p2pfl.storage import State, Store

# c: checkpoint, a: append, f: flush
SCRIPT = "caafafcafacaf"


@pytest.fixture(autouse=True)
def _syncs_cost_nothing(monkeypatch):
    """What a sync means is the model's business here; the machine itself does not lose power."""
    monkeypatch.setattr("os.fsync", lambda _: None)
    monkeypatch.setattr("os.fdatasync", lambda _: None)


class Counter:
    """Counts to the number of records; the state is the count, each record is the next number."""

    def __init__(self) -> None:
        self.count = 0
        self.acknowledged = -1

    def run(self, store: Store, script: str) -> int:
        """Returns how many steps the store refused."""
        refusals = 0
        for step in script:
            try:
                self._step(store, step)
            except StorageError:
                refusals += 1
        return refusals

    def _step(self, store: Store, step: str) -> None:
        match step:
            case "a":
                self.count += 1
                try:
                    store.append("add", {"n": self.count}, [bytes([self.count - 1]) * 40])
                except StorageError:
                    self.count -= 1
                    raise
            case "f":
                store.flush()
                self.acknowledged = self.count
            case "c":
                store.checkpoint(State(header={"n": self.count}, blobs={"some": b"blob"}))
                self.acknowledged = self.count


def recovered_count(store: Store, *, quietly: bool) -> int:
    loaded = store.load()
    if loaded is None:
        return -1
    count = loaded.state.header["n"]
    assert [record.header["n"] for record in loaded.records] == list(range(count + 1, count + 1 + len(loaded.records)))
    assert [record.blobs for record in loaded.records] == [
        [bytes([count + k]) * 40] for k in range(len(loaded.records))
    ]
    if quietly:
        assert (loaded.complete, loaded.warnings) == (True, [])
    return count + len(loaded.records)


def run_all(disk, folder: Path, script: str, monkeypatch) -> tuple[Counter, int]:
    counter = Counter()
    with monkeypatch.context() as patch:
        disk.install(patch)
        store = Store.open(folder, durability="exchange")
        assert store.load() is None
        refusals = counter.run(store, script)
        store.close()
    return counter, refusals


def rebuild(folder: Path, files) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    for name, content in files:
        (folder / name).write_bytes(content)


def assert_goes_on(folder: Path, count: int) -> None:
    """After the recovery the store works as if nothing had happened, a second restart included."""
    for script in ("afa", "c", "af", "c"):
        store = Store.open(folder, durability="exchange")
        counter = Counter()
        counter.count = max(0, recovered_count(store, quietly=True))
        assert counter.count >= count
        assert counter.run(store, script if store.wal_bytes else "c" + script) == 0
        store.close()
        count = counter.acknowledged


@pytest.mark.parametrize("buffer_bytes", [1 << 20, 1])
def test_a_power_loss_after_any_operation_recovers_all_that_was_acknowledged(
    tmp_path, monkeypatch, crashing_disk, buffer_bytes
):
    monkeypatch.setattr("p2pfl.storage.disk._BUFFER_BYTES", buffer_bytes)
    disk = crashing_disk(tmp_path / "live")
    bounds: dict[tuple, tuple[int, int]] = {}
    counter = Counter()

    def note() -> None:
        for state in disk.possible_states():
            low, high = bounds.get(state, (-1, 99))
            bounds[state] = max(low, counter.acknowledged), min(high, counter.count)

    disk.after_each = note
    with monkeypatch.context() as patch:
        disk.install(patch)
        store = Store.open(tmp_path / "live", durability="exchange")
        store.load()
        counter.run(store, SCRIPT)
        store.close()
    note()
    assert len(bounds) > 70
    for number, (files, (low, high)) in enumerate(bounds.items()):
        rebuild(tmp_path / "crashed", files)
        store = Store.open(tmp_path / "crashed", durability="exchange")
        count = recovered_count(store, quietly=True)
        store.close()
        assert low <= count <= high, [name for name, _ in files]
        if number % 7 == 0:
            assert_goes_on(tmp_path / "crashed", count)


@pytest.mark.parametrize("length", [1, 2, 1000])
def test_a_disk_that_is_full_for_some_operations_loses_nothing_acknowledged(
    tmp_path, monkeypatch, crashing_disk, length
):
    for first in itertools.count(3):  # 0 to 2 are those of `load`
        folder = tmp_path / str(first)
        disk = crashing_disk(folder, range(first, first + length))
        counter, refusals = run_all(disk, folder, SCRIPT, monkeypatch)
        if disk.operations <= first:
            assert first > 30
            return
        for number, files in enumerate(disk.possible_states()):
            rebuild(folder / str(number), files)
            store = Store.open(folder / str(number), durability="exchange")
            count = recovered_count(store, quietly=not refusals)
            assert counter.acknowledged <= count <= counter.count
            after = Counter()
            after.count = max(0, count)
            assert after.run(store, "caf") == 0
            store.close()
            if number % 20 == 0:
                assert_goes_on(folder / str(number), after.acknowledged)


def test_after_a_refused_flush_appends_are_refused_until_a_checkpoint_succeeds(tmp_path, monkeypatch):
    def refuse(fd):
        raise OSError(5, "Input/output error")

    store = Store.open(tmp_path, durability="exchange")
    counter = Counter()
    assert counter.run(store, "ca") == 0
    with monkeypatch.context() as patch:
        patch.setattr("os.fdatasync", refuse)
        with pytest.raises(StorageError, match=r"cannot write .*log-00000001: Input/output error"):
            store.flush()
    with pytest.raises(StorageError, match="until a checkpoint succeeds"):
        store.append("add", {"n": 2})
    with pytest.raises(StorageError, match="until a checkpoint succeeds"):
        store.flush()
    assert counter.run(store, "caf") == 0
    store.close()
    assert recovered_count(Store.open(tmp_path, durability="exchange"), quietly=True) == 2


class KilledError(Exception):
    pass


def test_what_a_restart_after_a_kill_has_read_survives_a_power_loss_too(tmp_path, monkeypatch, crashing_disk):
    for last in range(1, 1000):
        folder = tmp_path / str(last)
        disk = crashing_disk(folder)

        def kill(disk=disk, last=last) -> None:
            if disk.operations == last:
                raise KilledError

        disk.after_each = kill
        with monkeypatch.context() as patch:
            disk.install(patch)
            store = Store.open(folder, durability="exchange")
            with contextlib.suppress(KilledError):
                store.load()
                Counter().run(store, SCRIPT)
            survived = disk.operations < last
            disk.forget_process()
            os.close(store._lock)
            store = Store.open(folder, durability="exchange")
            count = recovered_count(store, quietly=True)
            store.close()
        for number, files in enumerate(disk.possible_states()):
            rebuild(folder / str(number), files)
            store = Store.open(folder / str(number), durability="exchange")
            assert recovered_count(store, quietly=True) == count
            store.close()
        if survived:
            assert last > 30
            return
