"""The write-ahead log: whole records or none, a torn tail in silence, damage loudly."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest
import safetensors.numpy
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from p2pfl.errors import StorageError
from p2pfl.storage import FAST, PLAIN, Snapshot, State, Wal, load, load_latest, pieces_of, read_log, save, state_of

PREVIOUS = bytes(32)
HEAD_BYTES = 64


@pytest.fixture
def path(tmp_path):
    return tmp_path / "log-00000001"


def written(path, count=4, form=PLAIN) -> list[int]:
    """A log of `count` records; returns where each begins and where the last ends."""
    wal = Wal.create(path, PREVIOUS, form)
    borders = [wal.size_bytes]
    for number in range(count):
        wal.append("mix", {"n": number, "who": b"\x01\x02"}, [b"a" * number, memoryview(b"xyz")])
        borders.append(wal.size_bytes)
    wal.flush()
    wal.close()
    return borders


def numbers(log) -> list[int]:
    return [record.header["n"] for record in log.records]


def test_records_come_back_in_order_with_their_blobs(path):
    borders = written(path)
    log = read_log(path)
    assert numbers(log) == [0, 1, 2, 3]
    assert (log.records[2].kind, log.records[2].header) == ("mix", {"n": 2, "who": b"\x01\x02"})
    assert log.records[2].blobs == [b"aa", b"xyz"]
    assert (log.previous, log.valid_bytes) == (PREVIOUS, borders[-1])
    assert not log.damaged


def test_nothing_reaches_the_file_before_a_flush_and_all_of_it_after(path):
    wal = Wal.create(path, PREVIOUS)
    wal.append("mix", {"n": 1}, [])
    assert read_log(path).records == []
    wal.flush()
    assert (path.stat().st_size, read_log(path).end) == (wal.size_bytes, wal.end)
    wal.close()


def test_a_flush_of_nothing_new_does_not_touch_the_disk(path, monkeypatch):
    wal = Wal.create(path, PREVIOUS)
    wal.append("mix", {}, [])
    wal.flush()
    monkeypatch.setattr("os.fdatasync", pytest.fail)
    wal.flush()
    wal.close()


def test_cut_off_at_any_byte_the_whole_records_before_remain_in_silence(path):
    borders = written(path)
    whole = path.read_bytes()
    for size in range(len(whole)):
        path.write_bytes(whole[:size])
        log = read_log(path)
        assert numbers(log) == [n for n in range(4) if borders[n + 1] <= size]
        assert log.valid_bytes <= size
        assert not log.damaged


def test_zeros_in_place_of_a_tail_are_no_damage(path):
    borders = written(path)
    whole = path.read_bytes()
    for size in range(HEAD_BYTES, len(whole)):
        path.write_bytes(whole[:size] + bytes(len(whole) - size))
        log = read_log(path)
        assert numbers(log)[: sum(border <= size for border in borders) - 1] == numbers(log)
        assert not log.damaged


@pytest.mark.parametrize("form", [PLAIN, FAST], ids=["plain", "fast"])
def test_a_changed_byte_ends_the_log_there_and_is_reported_if_data_follow(path, form):
    borders = written(path, form=form)
    whole = path.read_bytes()
    for position in range(len(whole)):
        path.write_bytes(whole[:position] + bytes([whole[position] ^ 0x10]) + whole[position + 1 :])
        log = read_log(path)
        record = sum(border <= position for border in borders) - 1
        assert numbers(log) == list(range(max(0, record)))
        assert log.damaged or record == 3
        assert (log.previous is None) == (position < HEAD_BYTES)


def test_records_left_over_from_another_log_at_the_same_place_are_not_taken(path, tmp_path):
    borders = written(tmp_path / "old")
    written(path)
    stale = (tmp_path / "old").read_bytes()
    for border in borders:
        path.write_bytes(path.read_bytes()[:border] + stale[border:])
        assert numbers(read_log(path)) == list(range(borders.index(border)))
        written_again = tmp_path / f"again{border}"
        written(written_again)
        path.write_bytes(written_again.read_bytes())


@pytest.mark.parametrize("form", [PLAIN, FAST], ids=["plain", "fast"])
def test_a_resumed_log_goes_on_after_its_last_whole_record(path, form):
    borders = written(path, form=form)
    with path.open("r+b") as file:
        file.truncate(borders[3] + 10)
    wal = Wal.resume(path, read_log(path))
    wal.append("mix", {"n": 9}, [])
    wal.flush()
    wal.close()
    log = read_log(path)
    assert numbers(log) == [0, 1, 2, 9]
    assert (log.valid_bytes, log.end) == (path.stat().st_size, wal.end)


def test_the_caller_may_reuse_its_memory_at_once(path):
    wal = Wal.create(path, PREVIOUS)
    memory = bytearray(b"before")
    wal.append("mix", {}, [memory])
    memory[:] = b"after!"
    wal.flush()
    wal.close()
    assert read_log(path).records[0].blobs == [b"before"]


def test_a_header_that_cannot_be_encoded_leaves_the_log_as_it_was(path):
    wal = Wal.create(path, PREVIOUS)
    with pytest.raises(TypeError):
        wal.append("mix", {"what": object()}, [])
    wal.append("mix", {"n": 1}, [])
    wal.flush()
    wal.close()
    assert numbers(read_log(path)) == [1]


def test_a_large_blob_is_written_without_a_copy_in_memory(path):
    """A copy of megabytes would hold up every thread of the process."""
    blob, wal = bytes(range(256)) * (32 << 10), Wal.create(path, PREVIOUS)
    tracemalloc.start()
    for number in range(3):
        wal.append("mix", {"n": number}, [b"small", blob, b"small"])
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    wal.flush()
    wal.close()
    assert peak < len(blob) / 4
    log = read_log(path)
    assert [record.blobs for record in log.records] == [[b"small", blob, b"small"]] * 3
    assert log.valid_bytes == path.stat().st_size


# -- Snapshot files: exact round trips, and no byte may change unnoticed.

END = bytes(range(32))
STATE = State(
    header={"round": 7, "rate": 0.1, "names": ["ä", None]},
    arrays={"x": np.arange(5.0), "flag": np.array([True, False]), "none": np.empty((0, 3), np.float32)},
    blobs={"frozen": b"\x00\xff", "empty": b""},
)


def assert_same(left: State, right: State) -> None:
    assert (left.header, left.blobs) == (right.header, right.blobs)
    assert sorted(left.arrays) == sorted(right.arrays)
    for name, array in left.arrays.items():
        found = right.arrays[name]
        assert (found.shape, found.dtype, found.tobytes()) == (array.shape, array.dtype, array.tobytes())


def saved(folder, generation, state=STATE):
    save(folder, Snapshot(generation=generation, state=state, log_end=END))
    return folder / f"snapshot-{generation:08d}"


@given(
    arrays=st.dictionaries(
        st.text(max_size=5),
        hnp.arrays(
            st.one_of(
                hnp.boolean_dtypes(),
                hnp.integer_dtypes(endianness="<"),
                hnp.floating_dtypes(sizes=(16, 32, 64), endianness="<"),
            ),
            hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4),
        ),
        max_size=4,
    ),
    blobs=st.dictionaries(st.text(max_size=5), st.binary(max_size=20), max_size=3),
)
def test_any_state_comes_back_bit_for_bit(arrays, blobs):
    state = State(header={"a": [1, 2.5]}, arrays=arrays, blobs=blobs)
    found, metadata = state_of(memoryview(b"".join(pieces_of(state, {"more": "text"}))))
    assert_same(state, found)
    assert metadata == {"more": "text"}


def test_arrays_of_another_layout_are_stored_by_value():
    arrays = {"big": np.array([1.5, 2.5], ">f8"), "fortran": np.asfortranarray(np.arange(6.0).reshape(2, 3))}
    found, _ = state_of(memoryview(b"".join(pieces_of(State(header={}, arrays=arrays), {}))))
    assert {name: array.tolist() for name, array in found.arrays.items()} == {
        "big": [1.5, 2.5],
        "fortran": [[0, 1, 2], [3, 4, 5]],
    }


def test_a_large_snapshot_comes_back_and_no_changed_byte_passes(tmp_path, monkeypatch):
    small = saved(tmp_path, 1).read_bytes()
    monkeypatch.setattr("p2pfl.storage.disk.LARGE_BYTES", len(small))
    file = saved(tmp_path, 2)
    assert_same(load(tmp_path, 1).state, load(tmp_path, 2).state)
    whole = file.read_bytes()
    assert (small[:8], whole[:8]) == (b"p2pfls1\n", b"p2pfls2\n")
    for position in range(0, len(whole), 3):
        file.write_bytes(whole[:position] + bytes([whole[position] ^ 0x10]) + whole[position + 1 :])
        with pytest.raises(StorageError, match="digest does not match"):
            load(tmp_path, 2)


def test_an_array_of_objects_is_refused():
    with pytest.raises(ValueError, match="array 'x' of dtype object"):
        pieces_of(State(header={}, arrays={"x": np.array([None])}), {})


def test_any_safetensors_reader_opens_the_body(tmp_path):
    body = saved(tmp_path, 1).read_bytes()[40:]
    tensors = safetensors.numpy.load(body)
    assert tensors["array:x"].tolist() == [0, 1, 2, 3, 4]
    assert tensors["array:none"].shape == (0, 3)
    assert tensors["blob:frozen"].tobytes() == b"\x00\xff"


def test_a_saved_snapshot_is_loaded_for_its_owner_only(tmp_path):
    path = saved(tmp_path, 3)
    snapshot = load(tmp_path, 3)
    assert (snapshot.generation, snapshot.log_end) == (3, END)
    assert_same(snapshot.state, STATE)
    assert path.stat().st_mode & 0o777 == 0o600
    assert [entry.name for entry in tmp_path.iterdir()] == [path.name]


def test_every_changed_or_missing_byte_is_noticed(tmp_path):
    path = saved(tmp_path, 1)
    whole = path.read_bytes()
    for position in range(len(whole)):
        path.write_bytes(whole[:position] + bytes([whole[position] ^ 1]) + whole[position + 1 :])
        with pytest.raises(StorageError, match="digest does not match"):
            load(tmp_path, 1)
        path.write_bytes(whole[:position])
        with pytest.raises(StorageError, match="digest does not match"):
            load(tmp_path, 1)


def test_a_snapshot_under_the_name_of_another_generation_is_refused(tmp_path):
    saved(tmp_path, 1).rename(tmp_path / "snapshot-00000002")
    with pytest.raises(StorageError, match="snapshot-00000002 is damaged"):
        load(tmp_path, 2)


def test_a_damaged_snapshot_gives_way_to_the_older_one_loudly(tmp_path):
    saved(tmp_path, 1)
    saved(tmp_path, 2).write_bytes(b"nothing")
    snapshot, warnings = load_latest(tmp_path)
    assert snapshot.generation == 1
    assert warnings == [f"{tmp_path}/snapshot-00000002 is damaged: its digest does not match"]


def test_when_no_snapshot_is_whole_the_error_names_each_and_says_what_to_do(tmp_path):
    saved(tmp_path, 1).write_bytes(b"")
    path = saved(tmp_path, 2)
    path.unlink()
    path.mkdir()
    with pytest.raises(StorageError) as caught:
        load_latest(tmp_path)
    assert str(caught.value) == (
        f"no snapshot in {tmp_path} is usable: {tmp_path}/snapshot-00000002 cannot be read: Is a directory; "
        f"{tmp_path}/snapshot-00000001 is damaged: its digest does not match. Restore one of these files from a "
        "backup, or move the folder away to start anew"
    )
