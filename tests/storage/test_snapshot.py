"""Snapshot files: exact round trips, and no byte may change unnoticed."""

from __future__ import annotations

import numpy as np
import pytest
import safetensors.numpy
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from p2pfl.errors import StorageError
from p2pfl.storage import State, disk
from p2pfl.storage.store import Snapshot, load, load_latest, pieces_of, save, state_of

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
    monkeypatch.setattr(disk, "LARGE_BYTES", len(small))
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
