"""What a member has signed outlives it: whatever a crash leaves of the file, all that was acted on is there."""

from __future__ import annotations

import errno
import os
from types import SimpleNamespace

import pytest

from p2pfl.errors import StorageError, UserError
from p2pfl.features.sums import FILE_NAME, KeptSums, alone, next_life

KEYS = [n.to_bytes(32, "little") for n in range(200)]
RECORDS = [(bytes([n]) * 32, frozenset(range(n, n + 40 * n + 3))) for n in range(4)]


def fill(folder):
    kept = KeptSums(folder, KEYS)
    for record in RECORDS:
        kept.add(*record)
        kept.add(*record)
    return folder / FILE_NAME


def test_records_are_read_again_each_once(tmp_path):
    fill(tmp_path / "state")
    assert KeptSums(tmp_path / "state", KEYS).past == RECORDS


def test_members_are_known_by_their_keys_where_rows_of_the_federation_have_changed_places(tmp_path):
    kept = KeptSums(tmp_path, KEYS[:4])
    kept.add(bytes(32), frozenset({0, 1, 2}))
    kept.add(bytes(32), frozenset({0, 3}))
    moved = KeptSums(tmp_path, [KEYS[3], KEYS[0], KEYS[9]])
    assert [members for _, members in moved.past] == [frozenset({1, 3, 4}), frozenset({1, 0})]
    moved.add(bytes([1]) * 32, frozenset({0, 2}))
    assert KeptSums(tmp_path, KEYS[:10]).past[-1] == (bytes([1]) * 32, frozenset({3, 9}))


def test_a_record_that_a_crash_has_cut_off_is_removed_and_those_before_it_stay(tmp_path):
    path = fill(tmp_path)
    raw = path.read_bytes()
    last = len(raw) - (32 + 4 + 16 * len(RECORDS[-1][1]) + 8)
    for size in {*range(last, last + 60), *range(last + 60, len(raw), 97), len(raw) - 1}:
        path.write_bytes(raw[:size])
        kept = KeptSums(tmp_path, KEYS)
        assert kept.past == RECORDS[:-1]
        kept.add(*RECORDS[-1])
        assert path.read_bytes() == raw
    path.write_bytes(raw[:-1] + b"?")
    assert KeptSums(tmp_path, KEYS).past == RECORDS[:-1]


def test_a_record_that_is_damaged_in_the_middle_is_an_error(tmp_path):
    path = fill(tmp_path)
    raw = bytearray(path.read_bytes())
    raw[3] ^= 1
    path.write_bytes(raw)
    with pytest.raises(StorageError, match="is damaged"):
        KeptSums(tmp_path, KEYS)


def test_a_record_that_the_disk_refuses_leaves_nothing(tmp_path, monkeypatch):
    path = fill(tmp_path)
    raw = path.read_bytes()
    kept = KeptSums(tmp_path, KEYS)

    def half(fd, record):
        os.write(fd, record[:9])
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("p2pfl.features.sums.sessions.write_all", half)
        with pytest.raises(StorageError, match="No space left"):
            kept.add(bytes(32), frozenset({1, 2, 3}))
    assert path.read_bytes() == raw
    kept.add(bytes(32), frozenset({1, 2, 3}))
    assert len(KeptSums(tmp_path, KEYS).past) == len(RECORDS) + 1


@pytest.mark.parametrize("left", [b"7", b"", b"\xff", b"a", b"9" * 40])
def test_a_life_grows_or_begins_anew(tmp_path, left):
    (tmp_path / "sums.life").write_bytes(left)
    assert [next_life(tmp_path), next_life(tmp_path)] == ([8, 9] if left == b"7" else [1, 2])


def test_while_a_node_runs_it_sums_nothing_else(tmp_path):
    node = SimpleNamespace(name="north", state_dir=tmp_path)
    with alone(node), pytest.raises(UserError, match="north runs, or sums, at this moment"), alone(node):
        pass
    with alone(node):
        pass
